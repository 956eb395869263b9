"""Encoding with a memory, in torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from suite import stream
from suite.comm.codecs._codec import Codec, Draw


class Coder:
    """Encodes rows of values under one name.

    Args:
        name: of the array, for its residuals and its random numbers.
        codec: of the values.
        state: residuals by `<name>/<slot>`, changed in place; None without error feedback.
        key: (seed, step), for codecs that draw.
        rank: of this process in the whole run; every rank draws other numbers.
    """

    def __init__(self, name: str, codec: Codec, state: dict[str, Tensor] | None, key: tuple[int, int], rank: int):
        self.name, self.codec, self.state, self.key, self.rank = name, codec, state, key, rank

    def encode(self, slot: str, rows: Tensor) -> Tensor:
        """(r, k) values to (r, nbytes(k)) payloads, each row by itself."""
        name = f"{self.name}/{slot}"
        if self.state is not None:
            rows = rows + self.state.get(name, torch.zeros_like(rows))
        payloads = _stacked([self.codec.encode(row, self._draw(name, at, rows)) for at, row in enumerate(rows)])
        if self.state is not None:
            self.state[name] = rows - self.decode(payloads, rows[0])
        return payloads

    def decode(self, payloads: Tensor, like: Tensor) -> Tensor:
        """(r, nbytes(k)) payloads back to (r, k) values; `like` is one row."""
        return _stacked([self.codec.decode(payload, like) for payload in payloads])

    def total(self, payloads: Tensor, like: Tensor) -> Tensor:
        """The sum of the payloads' values, in order; (k,)."""
        first, *others = payloads
        found = self.codec.decode(first, like)  # perhaps the payload itself, seen as values
        if not others:
            return found.clone()
        found = found + self.codec.decode(others[0], like)
        for payload in others[1:]:
            found += self.codec.decode(payload, like)
        return found

    def _draw(self, name: str, row: int, rows: Tensor) -> Draw | None:
        """Uniform numbers for one row, counted on from rank to rank and row to row."""

        def draw(count: int) -> Tensor:
            first = (self.rank * len(rows) + row) * count
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


def _stacked(rows: list[Tensor]) -> Tensor:
    """(n,) rows to (r, n); one by itself is not copied."""
    return rows[0][None] if len(rows) == 1 else torch.stack(rows)


Coders = Callable[[str, Codec], Coder]  # the coder of a name and a codec, with the run's residuals and random numbers
