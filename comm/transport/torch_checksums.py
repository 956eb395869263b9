"""Checksums of what ranks exchange, in torch."""

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

WORD = 8  # bytes


class Checksums:
    """Sums, modulo 2^64, of the words that this rank has sent to and received from every other rank.

    A changed byte always changes such a sum. The sums stay on the device until `numbers` is called.

    Args:
        world: number of ranks of the whole run.
    """

    def __init__(self, world: int):
        self.totals = torch.zeros((2, world), dtype=torch.int64)  # sent, received
        self.lock = threading.Lock()  # a schedule may send from its own thread

    def send(self, ranks: Sequence[int], rows: Tensor) -> None:
        """Count row r of (n, …) as sent to rank `ranks[r]`."""
        self._add(0, ranks, rows)

    def receive(self, ranks: Sequence[int], rows: Tensor) -> None:
        """Count row r of (n, …) as received from rank `ranks[r]`."""
        self._add(1, ranks, rows)

    @torch.no_grad()
    def _add(self, direction: int, ranks: Sequence[int], rows: Tensor) -> None:
        if not rows.numel():
            return
        sums = word_sums(rows)
        with self.lock:
            if self.totals.device != sums.device:
                self.totals = self.totals.to(sums.device)
            self.totals[direction].index_add_(0, torch.tensor(ranks).to(sums.device, non_blocking=True), sums)

    def numbers(self) -> list[list[int]]:
        """Sums of what was sent to each rank, and of what was received from each; waits for the device."""
        return self.totals.tolist()


def word_sums(rows: Tensor) -> Tensor:
    """Return the sum of each row's 8-byte words and of its last bytes, (n,) int64, of an (n, …) array of any type."""
    data = rows.detach().contiguous().reshape(-1).view(torch.uint8).view(len(rows), -1)
    count = data.shape[1] // WORD * WORD
    words, rest = data[:, :count], data[:, count:].sum(1, dtype=torch.int64)
    if not count:
        return rest
    if not words.is_contiguous() or words.storage_offset() % WORD or words.stride(0) % WORD:
        words = words.clone(memory_format=torch.contiguous_format)
    return words.view(torch.int64).sum(1) + rest
