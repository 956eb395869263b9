"""Reads lines of Criteo's logs, thousands at a time, as arrays.

A field of at most eight characters is one 64-bit word: its first character is the lowest byte, and bytes beyond its end
are 0. A few operations on words then read all digits of all fields at once.
"""

import numpy as np

from suite.tasks.dlrm.architecture import DENSE, FEATURES

COLUMNS = 1 + DENSE + FEATURES
WIDTH = 8  # characters of a word
TAB, NEWLINE = b"\t"[0], b"\n"[0]
MINUS, ZERO = (np.uint64(character) for character in b"-0")
MASKS = np.array([(1 << (8 * length)) - 1 for length in range(WIDTH + 1)], np.uint64)
HIGH, ZEROS, SIX = (np.uint64(byte * 0x0101_0101_0101_0101) for byte in (0xF0, 0x30, 0x06))
MALFORMED = 0x80  # beyond every digit
HEX = np.array(
    [
        0 if byte == 0 else int(chr(byte), 16) if chr(byte) in "0123456789abcdefABCDEF" else MALFORMED
        for byte in range(256)
    ],
    np.uint8,
)
# Sums of neighbouring digits, of pairs and of fours: the digits that are kept, the factor and the shift
STEPS = tuple(
    (np.uint64(kept), np.uint64(factor), np.uint64(shift))
    for kept, factor, shift in (
        (0x0F0F_0F0F_0F0F_0F0F, 10 << 8 | 1, 8),
        (0x00FF_00FF_00FF_00FF, 100 << 16 | 1, 16),
        (0x0000_FFFF_0000_FFFF, 10000 << 32 | 1, 32),
    )
)


class MalformedError(ValueError):
    """Some line has a malformed field."""


class Rows:
    """Fields of some lines.

    Attributes:
        label: (n, 1) uint8.
        counts: (n, 13) float64, 0 where unknown or negative.
        words: (n, 26) uint64, equal for equal words only; 0 where unknown.
    """

    def __init__(self, lines: list[bytes], *, whole: bool = True):
        """Read lines without their ends.

        Args:
            lines: at least one.
            whole: whether the last one ended with a newline.

        Raises:
            MalformedError: a line has another number of columns, or a malformed field, or is cut off.
        """
        _require(whole)
        text = b"\n".join([*lines, bytes(WIDTH)])
        content = np.frombuffer(text, np.uint8)
        _require(text.count(0) == WIDTH)
        ends = np.flatnonzero((content == TAB) | (content == NEWLINE))
        _require(len(ends) == COLUMNS * len(lines))
        starts = np.concatenate([[0], ends[:-1] + 1]).reshape(-1, COLUMNS)
        ends = ends.reshape(-1, COLUMNS)
        _require((content[ends[:, -1]] == NEWLINE).all())
        lengths = ends - starts
        _require((lengths[:, 0] == 1).all() and (lengths[:, 1 + DENSE :] <= WIDTH).all())
        words = np.ndarray(len(text) - WIDTH + 1, "<u8", text, strides=(1,))[starts]
        words &= MASKS[lengths.clip(max=WIDTH)]
        label = words[:, :1] - ZERO
        _require((label <= 1).all())
        self.label = label.astype(np.uint8)
        self.counts = _read_counts(words[:, 1 : 1 + DENSE], lengths[:, 1 : 1 + DENSE], starts[:, 1:], text)
        self.words = np.ascontiguousarray(words[:, 1 + DENSE :])
        self._lengths = lengths[:, 1 + DENSE :]
        self._digits = HEX[self.words.view(np.uint8)]
        _require(not (self._digits & MALFORMED).any())

    def read_numbers(self) -> np.ndarray:
        """Return the hexadecimal words as numbers, (n, 26) int64."""
        pairs = self._digits[:, 0::2] << 4 | self._digits[:, 1::2]
        return pairs.view(">u4").astype(np.int64) >> 4 * (WIDTH - self._lengths)


def _read_counts(words: np.ndarray, lengths: np.ndarray, starts: np.ndarray, text: bytes) -> np.ndarray:
    """Return decimal integers as float64, 0 where negative. Those of more than eight characters are read one by one.

    Raises:
        MalformedError: a field is no integer.
    """
    negative = words & np.uint64(0xFF) == MINUS
    _require((lengths[negative] > 1).all())
    digits = np.where(negative, words >> np.uint64(8), words)
    places = lengths.clip(max=WIDTH) - negative
    for shown in (digits, digits + SIX):  # each byte from 0x30 to 0x39
        _require((shown & HIGH == ZEROS & MASKS[places]).all())
    values = digits << (8 * (WIDTH - places)).astype(np.uint64)
    for kept, factor, shift in STEPS:
        values = (values & kept) * factor >> shift
    counts = np.where(negative, 0.0, values)
    for row, column in np.argwhere(lengths > WIDTH):
        start = starts[row, column]
        field = text[start : start + lengths[row, column]]
        _require(field.removeprefix(b"-").isdigit())
        counts[row, column] = max(int(field), 0)
    return counts


def _require(right: bool | np.bool) -> None:
    if not right:
        raise MalformedError
