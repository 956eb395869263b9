"""Encoding of named arrays with error feedback, in torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from suite.comm.codecs._codec import Codec, Draw
from suite.comm.codecs._parts.torch import by_parts
from suite.comm.layout import cut_pieces
from suite.comm.transport.torch import Arriving
from suite.stream.torch import uniform


class Encoder:
    """Encodes rows of values under one name; long rows are cut into pieces.

    Args:
        name: of the array, for its residuals and random numbers.
        codec: of the values.
        state: residuals by `<name>/<slot>`, changed in place; None without error feedback.
        key: (seed, step), for codecs that draw.
        rank: of this process in the whole run; ranks draw different numbers.
        piece_bytes: approximate size of a piece's payload.
    """

    def __init__(
        self,
        name: str,
        codec: Codec,
        state: dict[str, Tensor] | None,
        key: tuple[int, int],
        rank: int,
        piece_bytes: float = float("inf"),
    ):
        self.name, self.codec, self.state, self.key, self.rank = name, codec, state, key, rank
        self.piece_bytes = piece_bytes

    def encode(self, slot: str, rows: Tensor) -> Iterator[Tensor]:
        """(r, k) values to payloads (r, nbytes), each row by itself: one payload for each piece of the length k.

        A piece is encoded when the generator is asked for it, while the previous piece is being sent. The caller must
        take all pieces: the residual is stored after the last.
        """
        name, lost = f"{self.name}/{slot}", []
        if self.state is not None:
            before = self.state.get(name, 0.0)
            if isinstance(before, Tensor) and before.is_cuda:  # another stream may have made it, as in a resumed run
                before.record_stream(torch.cuda.current_stream(before.device))
            rows = rows + before  # added even when it is zero: -0 becomes 0, as in jax
        begin = 0
        for part in self._cut(rows):
            draws = [self._draw(name, rows, number * rows.shape[1] + begin) for number in range(len(rows))]
            payloads = _joined([self.codec.encode(row, drawn)[None] for row, drawn in zip(part, draws, strict=True)])
            if self.state is not None:  # nothing is kept of values that are not finite, or all later ones would be NaN
                lost.append((part - self._decode(payloads, part[0])).nan_to_num_(0.0, 0.0, 0.0))
            yield payloads
            begin += part.shape[1]
        if self.state is not None:
            self.state[name] = _joined(lost, 1)

    def decode(self, payloads: Iterable[Tensor | Arriving], like: Tensor) -> Tensor:
        """Decode the payloads (r, nbytes) of all pieces to (r, k) values; `like` is one row (k,)."""
        parts = zip(_arrived(payloads), self._cut(like), strict=True)
        return _joined([self._decode(payload, part) for payload, part in parts], 1)

    def total(self, payloads: Iterable[Tensor | Arriving], like: Tensor) -> Tensor:
        """Return the sum of the r rows, in order, that `decode` would return; a new array (k,)."""
        sums = torch.empty_like(like, memory_format=torch.contiguous_format)
        for (first, *others), part, total in zip(_arrived(payloads), self._cut(like), self._cut(sums), strict=True):
            decoded = self.codec.decode(first, part)  # may be a view of the payload
            if not others:
                total.copy_(decoded)
            for number, payload in enumerate(others):
                torch.add(total if number else decoded, self.codec.decode(payload, part), out=total)
        return sums

    def _cut(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Pieces of (…, k) values."""
        return rows.split(cut_pieces(self.codec, rows.shape[-1], rows.element_size(), self.piece_bytes), -1)

    def _decode(self, payloads: Tensor, like: Tensor) -> Tensor:
        return _joined([self.codec.decode(payload, like)[None] for payload in payloads])

    def _draw(self, name: str, rows: Tensor, begin: int) -> Draw | None:
        """Uniform numbers for the values from index `begin` on; the index continues from rank to rank."""

        def fill_draws(draws: Tensor, index: Tensor) -> None:
            draws.copy_(uniform(self.key, name, index))

        def draw(count: int) -> Tensor:
            first = self.rank * rows.numel() + begin
            draws = torch.empty(count, device=rows.device)
            by_parts(fill_draws, draws, torch.arange(first, first + count, device=rows.device))
            return draws

        return draw if self.codec.draws else None


def _arrived(payloads: Iterable[Tensor | Arriving]) -> Iterator[Tensor]:
    """Each payload; waits for one at a time, when it is asked for."""
    return (payload if isinstance(payload, Tensor) else payload.wait() for payload in payloads)


def _joined(parts: list[Tensor], axis: int = 0) -> Tensor:
    """Parts one after another along an axis; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)
