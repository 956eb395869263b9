"""Processes in torch."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from suite import backend


def connect(rank: int, world: int, address: str, deadline: float) -> None:
    """Join the process group; `address` is host:port, `deadline` in seconds."""
    kind = "nccl" if torch.cuda.is_available() else "gloo"
    options = {"rank": rank, "world_size": world, "timeout": timedelta(seconds=deadline)}
    if kind == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())  # where objects go when they are sent
    dist.init_process_group(kind, init_method=f"tcp://{address}", **options)


def disconnect() -> None:
    """Leave the process group."""
    dist.destroy_process_group()


def tell(value: Any) -> Any:
    """Rank 0's value, on all ranks."""
    told = [value]
    dist.broadcast_object_list(told, src=0)
    return told[0]


def hear(value: Any) -> list[Any]:
    """Every rank's value, on all ranks."""
    heard: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(heard, value)
    return heard


class Ranks:
    """All processes of a run, one for each device.

    Args:
        world: how many.
        device: of this one.
    """

    def __init__(self, world: int, device: torch.device):
        self.world, self.device = world, device

    def tell(self, value: Any) -> Any:
        """Rank 0's value, on all ranks."""
        return value if self.world == 1 else tell(value)

    def slowest(self, seconds: float) -> float:
        """The largest value over ranks."""
        if self.world == 1:
            return seconds
        found = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return float(found)

    def agree(self, signal: str | None) -> str | None:
        """A signal that any rank has received, on all ranks."""
        if self.world == 1:
            return signal
        return next((name for name in hear(signal) if name), None)

    def compare(self, held: Iterable[np.ndarray]) -> None:
        """Make sure that every rank holds the same.

        Raises:
            RanksDiffer: which do not.
        """
        if self.world > 1:
            backend.compare(hear(backend.digest(held)))
