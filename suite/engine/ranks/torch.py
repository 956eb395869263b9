"""Processes in torch, each with one device."""

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from suite import engine
from suite.comm.transport.torch_checksums import Checksums
from suite.comm.transport.torch_messages import broadcast, gather
from suite.engine.ranks.listening import listen_at
from suite.engine.torch_device import device_for


def connect(rank: int, world: int, address: str, deadline: float, device: str = "auto") -> None:
    """Join the process group.

    Args:
        rank: of this process.
        world: number of processes.
        address: host:port of rank 0.
        deadline: seconds until a collective times out.
        device: as in `device=`; ranks on GPUs use NCCL.
    """
    own = device_for(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)  # messages go through the current device
    kind, timeout = "nccl" if own.type == "cuda" else "gloo", timedelta(seconds=deadline)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun listens
        dist.init_process_group(kind, init_method=f"tcp://{address}", rank=rank, world_size=world, timeout=timeout)
        return
    host, _, port = address.rpartition(":")
    listener = None if rank else listen_at(address).detach()
    store = dist.TCPStore(
        host.strip("[]"), int(port), world, rank == 0, timeout, wait_for_workers=False, master_listen_fd=listener
    )
    dist.init_process_group(kind, store=store, rank=rank, world_size=world, timeout=timeout)


def disconnect() -> None:
    """Leave the process group."""
    dist.destroy_process_group()


class Ranks:
    """All processes of a run, one for each device: `suite.contract.Ranks` in torch.

    Args:
        world: number of processes.
        device: this process's device.
    """

    def __init__(self, world: int, device: torch.device):
        self.world, self.device = world, device

    def broadcast(self, value: Any) -> Any:
        """Broadcast rank 0's value to all ranks."""
        return value if self.world == 1 else broadcast(value)

    def gather(self, value: Any) -> list[Any]:
        """Gather every rank's value, in the order of ranks."""
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
