"""Processes in torch, each with one device."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from suite import engine
from suite.comm.transport.torch_checksums import Checksums


def connect(rank: int, world: int, address: str, deadline: float) -> None:
    """Join the process group; `address` is host:port, `deadline` the seconds until a collective times out."""
    kind = "nccl" if torch.cuda.is_available() else "gloo"
    options = {"rank": rank, "world_size": world, "timeout": timedelta(seconds=deadline)}
    if kind == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())  # nccl sends pickled objects through the current device
    dist.init_process_group(kind, init_method=f"tcp://{address}", **options)


def disconnect() -> None:
    """Leave the process group."""
    dist.destroy_process_group()


def broadcast(value: Any) -> Any:
    """Broadcast rank 0's value, which must pickle, to all ranks."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def gather(value: Any) -> list[Any]:
    """Gather every rank's value, which must pickle, in the order of ranks."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


class Ranks:
    """All processes of a run, one for each device: `suite.contract.Ranks` in torch.

    Args:
        world: number of processes.
        device: this process's device.
    """

    def __init__(self, world: int, device: torch.device):
        self.world, self.device = world, device

    def broadcast(self, value: Any) -> Any:
        """Broadcast rank 0's value, which must pickle, to all ranks."""
        return value if self.world == 1 else broadcast(value)

    def gather(self, value: Any) -> list[Any]:
        """Gather every rank's value, which must pickle, in the order of ranks."""
        return [value] if self.world == 1 else gather(value)

    def slowest(self, seconds: float) -> float:
        """Return the largest value over ranks."""
        if self.world == 1:
            return seconds
        largest = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return float(largest)

    def agree(self, signal: str | None) -> str | None:
        """Return a signal that any rank has received; None if there is none. All ranks return the same."""
        if self.world == 1:
            return signal
        return next((name for name in gather(signal) if name), None)

    def compare(self, held: Iterable[np.ndarray], checksums: Checksums) -> None:
        """Check that all ranks hold the same weights, and have received what others sent.

        Args:
            held: this rank's weights.
            checksums: of what this rank has sent and received.

        Raises:
            RanksDiffer: naming the ranks that do not.
        """
        if self.world > 1:
            digests, exchanged = zip(*gather((engine.compute_digest(held), checksums.numbers())), strict=True)
            engine.compare_exchanges(*np.array(exchanged).transpose(1, 0, 2))
            engine.compare_digests(digests)
