"""Encoding with a memory, in torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from suite import stream
from suite.comm.codecs._codec import Codec, Draw
from suite.comm.layout import pieces


class Coder:
    """Encodes rows of values under one name, in pieces of their length.

    Args:
        name: of the array, for its residuals and its random numbers.
        codec: of the values.
        state: residuals by `<name>/<slot>`, changed in place; None without error feedback.
        key: (seed, step), for codecs that draw.
        rank: of this process in the whole run; every rank draws other numbers.
        piece_bytes: of a row's payload, about, which is more than one where that is longer.
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
        """(r, k) values to payloads (r, nbytes), each row by itself: one for each piece of the length k.

        A piece is encoded when it is asked for, so that the one before may be on its way; all of them must be.
        """
        name, lost = f"{self.name}/{slot}", []
        if self.state is not None:
            rows = rows + self.state.get(name, 0.0)  # never as they are: -0 becomes 0, as in jax
        begin = 0
        for part in self._cut(rows):
            draws = [self._draw(name, rows, number * rows.shape[1] + begin) for number in range(len(rows))]
            payloads = _joined([self.codec.encode(*each)[None] for each in zip(part, draws, strict=True)])
            if self.state is not None:
                lost.append(part - self._decode(payloads, part[0]))
            yield payloads
            begin += part.shape[1]
        if self.state is not None:
            self.state[name] = _joined(lost, 1)

    def decode(self, payloads: Iterable[Tensor], like: Tensor) -> Tensor:
        """The payloads (r, nbytes) of all pieces back to (r, k) values; `like` is one row."""
        return _joined([self._decode(*each) for each in zip(payloads, self._cut(like), strict=True)], 1)

    def total(self, payloads: Iterable[Tensor], like: Tensor) -> Tensor:
        """The sum of the rows, in order, whose payloads (r, nbytes) these are, piece by piece; (k,), a new array."""
        found = torch.empty_like(like, memory_format=torch.contiguous_format)
        for (first, *others), part, total in zip(payloads, self._cut(like), self._cut(found), strict=True):
            decoded = self.codec.decode(first, part)  # perhaps the payload itself, seen as values
            if not others:
                total.copy_(decoded)
            for number, payload in enumerate(others):
                torch.add(total if number else decoded, self.codec.decode(payload, part), out=total)
        return found

    def _cut(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Pieces of (…, k) values."""
        return rows.split(pieces(self.codec, rows.shape[-1], rows.element_size(), self.piece_bytes), -1)

    def _decode(self, payloads: Tensor, like: Tensor) -> Tensor:
        return _joined([self.codec.decode(payload, like)[None] for payload in payloads])

    def _draw(self, name: str, rows: Tensor, begin: int) -> Draw | None:
        """Uniform numbers for the rows' values from number `begin` on, counted on from rank to rank."""

        def draw(count: int) -> Tensor:
            first = self.rank * rows.numel() + begin
            index = np.arange(first, first + count, dtype=np.uint64)
            return torch.from_numpy(stream.uniform(np, self.key, name, index)).to(rows.device)

        return draw if self.codec.draws else None


def chunks(values: Tensor, count: int) -> Tensor:
    """(n,) values to (count, k): where that does not come out, the last values once more.

    Zeros would enter the means and percentiles that some codecs take.
    """
    missing = -len(values) % count
    more = values[len(values) - missing :] if missing <= len(values) else values.new_zeros(missing)
    return (torch.cat([values, more]) if missing else values).view(count, -1)


def _joined(parts: list[Tensor], axis: int = 0) -> Tensor:
    """Parts one after another along an axis; one by itself is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


class Coders(Protocol):
    """Makes coders with the run's residuals and random numbers."""

    def __call__(self, name: str, codec: Codec, whole: bool = False) -> Coder:
        """The coder of a name and a codec; `whole`: not in pieces, as inside a host."""
        ...
