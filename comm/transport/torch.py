"""Bytes over a torch process group: gloo between CPUs, NCCL between GPUs."""

import torch
import torch.distributed as dist
from torch import Tensor

from suite.comm.transport import Ledger, entry

# renamed in torch 2.13
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Transport:
    """Collectives of the default process group, each one counted. Every rank must call them in the same order."""

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        alone = not dist.is_initialized()
        self.rank, self.world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())

    def _count(self, operation: str, name: str, value: Tensor) -> None:
        dtype = str(value.dtype).removeprefix("torch.")
        self.ledger.add([entry(operation, name, dtype, value.numel() * value.element_size(), self.world)])

    def all_reduce(self, name: str, value: Tensor) -> Tensor:
        """The sum over ranks, in the array's own type."""
        self._count("all_reduce", name, value)
        total = value.contiguous().clone()
        dist.all_reduce(total)
        return total

    def all_to_all(self, name: str, value: Tensor) -> Tensor:
        """Row r of (world, …) goes to rank r; the rows that came back, in rank order."""
        self._count("all_to_all", name, value)
        received = torch.empty_like(value, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, value.contiguous())
        return received

    def all_gather(self, name: str, value: Tensor) -> Tensor:
        """Every rank's (k, …) rows one after another: (world · k, …)."""
        self._count("all_gather", name, value)
        gathered = value.new_empty((self.world * value.shape[0], *value.shape[1:]))
        _all_gather(gathered, value.contiguous())
        return gathered
