"""Processes in jax, each with one or more devices."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from suite import engine, signals
from suite.comm.transport.jax_messages import broadcast, gather
from suite.engine.ranks.listening import find_own_host

SIGNALS = [None, *signals.CODES]


def connect(rank: int, world: int, address: str, deadline: float, device: str = "auto") -> None:
    """Connect to the other processes.

    Args:
        rank: of this process.
        world: number of processes.
        address: host:port of process 0.
        deadline: seconds to wait for the other processes.
        device: without effect; jax chooses the connection of each device.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    heartbeat = max(10, min(100, int(deadline)))  # seconds without heartbeat after which a process counts as failed
    begin = int(deadline)
    own, port = find_own_host(address), address.rpartition(":")[2]
    jax.distributed.initialize(
        address,
        world,
        rank,
        initialization_timeout=begin,
        heartbeat_timeout_seconds=heartbeat,
        coordinator_bind_address=f"[{own}]:{port}" if ":" in own else f"{own or '[::]'}:{port}",
    )


def disconnect() -> None:
    """Disconnect from the other processes."""
    jax.distributed.shutdown()


class Ranks:
    """All processes of a run: `suite.contract.Ranks` in jax."""

    def __init__(self) -> None:
        self.processes = jax.process_count()

    def broadcast(self, value: Any) -> Any:
        """Broadcast process 0's value to all processes."""
        return value if self.processes == 1 else broadcast(value)

    def gather(self, value: Any) -> list[Any]:
        """Gather every process's value, in the order of processes."""
        return [value] if self.processes == 1 else gather(value)

    def slowest(self, seconds: float) -> float:
        """Return the largest value over processes."""
        return seconds if self.processes == 1 else float(multihost_utils.process_allgather(np.float64(seconds)).max())

    def agree(self, signal: str | None) -> str | None:
        """Return a signal that any process has received; None if there is none. All processes return the same."""
        if self.processes == 1:
            return signal
        return SIGNALS[int(multihost_utils.process_allgather(np.asarray(SIGNALS.index(signal))).max())]

    def compare(self, held: Iterable[Iterable[np.ndarray]], checksums: np.ndarray | None) -> None:
        """Check that all devices hold the same weights, and have received what others sent.

        Args:
            held: the weights on each of this process's devices.
            checksums: (devices, 2, world), of what each device has sent and received; None with one device.

        Raises:
            RanksDiffer: naming the ranks that do not.
        """
        if checksums is None:
            return
        world = checksums.shape[-1]
        digests = np.array([[engine.compute_digest(arrays)] for arrays in held], np.uint32)
        local = np.concatenate([digests, checksums.reshape(-1, 2 * world)], 1)
        table = (local if self.processes == 1 else multihost_utils.process_allgather(local)).reshape(world, -1)
        engine.compare_exchanges(table[:, 1 : 1 + world], table[:, 1 + world :])
        engine.compare_digests(table[:, 0].tolist())
