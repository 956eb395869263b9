"""Pre-training samples: masking words, the format of a record, and batches of records.

A record has the contents of BERT's pre-training files (input_ids, input_mask, segment_ids, masked_lm_positions,
masked_lm_ids, masked_lm_weights, next_sentence_labels); the masks and segments are stored as three lengths.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

MASKED, KEPT = 0.8, 0.9  # of the chosen tokens 80 % become [MASK], 10 % stay, 10 % are redrawn (Devlin et al., §3.1)
STREAM = int.from_bytes(b"masks")  # high word of the counter: separates these draws from others with the same key
LARGEST = 1 << 16  # number of word pieces that a record can represent


@dataclass(frozen=True)
class Pieces:
    """A vocabulary's size, its special pieces, and which pieces continue a word."""

    size: int
    pad: int
    cls: int
    sep: int
    mask: int
    continues: np.ndarray  # (size,) bool


@dataclass(frozen=True)
class Hiding:
    """Rule by which tokens are masked.

    Attributes:
        probability: share of a sequence's tokens that are masked; special tokens are counted.
        predictions: largest number of masked tokens, and the fixed length of a record's list.
        whole_word: mask all pieces of a word together, as in BERT's later models.
    """

    probability: float
    predictions: int
    whole_word: bool = False

    def count(self, length: int) -> int:
        """Return the number of tokens to mask in a sequence of `length`, rounded as in create_pretraining_data.py."""
        return min(self.predictions, max(1, round(length * self.probability)))

    def apply(self, tokens: np.ndarray, pieces: Pieces, *, seed: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Mask some of a sequence's tokens: a pure function of the sequence, the seed and the record's number.

        Args:
            tokens: (T,) integers, with [CLS] and [SEP], without padding.
            pieces: the vocabulary.
            seed: of the preparation.
            number: of the record.

        Returns:
            The corrupted tokens (T,), and the sorted positions (M,) whose tokens are to be predicted.
        """
        words = np.random.Philox(key=[seed, number], counter=[0, 0, 0, STREAM]).random_raw(3 * len(tokens))
        rank, fate, other = (words >> np.uint64(11)).reshape(3, -1) * 2.0**-53  # uniform, below 1
        free = np.flatnonzero((tokens != pieces.cls) & (tokens != pieces.sep))
        budget = self.count(len(tokens))
        if self.whole_word:
            chosen = self._words(free, rank, ~pieces.continues[tokens[free]], budget)
        else:
            chosen = free[np.argsort(rank[free], kind="stable")[:budget]]
        chosen = np.sort(chosen)
        redrawn = (other * pieces.size).astype(tokens.dtype)  # from the whole vocabulary, as BERT's code does
        corrupted = tokens.copy()
        corrupted[chosen] = np.where(
            fate[chosen] < MASKED, pieces.mask, np.where(fate[chosen] < KEPT, tokens[chosen], redrawn[chosen])
        )
        return corrupted, chosen

    def _words(self, free: np.ndarray, rank: np.ndarray, starts: np.ndarray, budget: int) -> np.ndarray:
        """Choose whole words in random order; a word that does not fit any more is skipped."""
        words = np.split(free, np.flatnonzero(starts)[1:]) if len(free) else []
        chosen: list[int] = []
        for word in sorted(words, key=lambda word: rank[word[0]]):
            if len(chosen) + len(word) <= budget:
                chosen += word.tolist()
        return np.array(chosen, np.int64)


def make_record_type(sequence: int, predictions: int) -> np.dtype:
    """Return the type of one sample of a source; 2 · sequence + 4 · predictions + 7 bytes."""
    return np.dtype(
        [
            ("tokens", "<u2", (sequence,)),  # corrupted, padded
            ("length", "<u2"),  # tokens before the padding
            ("second", "<u2"),  # start of the second segment; `length` without one
            ("random_next", "?"),  # whether the second segment was taken from elsewhere: BERT's label 1
            ("count", "<u2"),  # number of masked tokens
            ("position", "<u2", (predictions,)),  # their positions, 0 after the last
            ("label", "<u2", (predictions,)),  # their original values, 0 after the last
        ]
    )


def fill_record(
    row: Any, first: np.ndarray, second: np.ndarray, pieces: Pieces, hiding: Hiding, *, seed: int, number: int
) -> None:
    """Write [CLS] first [SEP] (second [SEP]) into a zeroed record, with some tokens masked; see `Hiding.apply`."""
    parts = [[pieces.cls], first, [pieces.sep], *([second, [pieces.sep]] if len(second) else [])]
    tokens = np.concatenate(parts).astype(np.int64)
    corrupted, position = hiding.apply(tokens, pieces, seed=seed, number=number)
    row["tokens"] = pieces.pad
    row["tokens"][: len(tokens)] = corrupted
    row["length"], row["second"] = len(tokens), len(first) + 2
    row["count"] = len(position)
    row["position"][: len(position)] = position
    row["label"][: len(position)] = tokens[position]


def expand_records(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Convert records (n,) to a batch.

    Returns:
        `tokens` and `segment` (n, T) int32, `visible` (n, T) bool, `position` and `label` (n, P) int32, `masked`
        (n, P) float32, 0 after the last prediction, and `random_next` (n,) int32.
    """
    place = np.arange(rows["tokens"].shape[1])
    visible = place < rows["length"][:, None]
    return {
        "tokens": rows["tokens"].astype(np.int32),
        "segment": ((place >= rows["second"][:, None]) & visible).astype(np.int32),
        "visible": visible,
        "position": rows["position"].astype(np.int32),
        "label": rows["label"].astype(np.int32),
        "masked": (np.arange(rows["label"].shape[1]) < rows["count"][:, None]).astype(np.float32),
        "random_next": rows["random_next"].astype(np.int32),
    }
