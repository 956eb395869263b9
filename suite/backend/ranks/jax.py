"""Processes in jax; each may have several devices."""

import pickle
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from suite import backend

SIGNALS = [None, "SIGINT", "SIGTERM"]


def connect(rank: int, world: int, address: str, deadline: float) -> None:
    """Join the other processes; `address` is host:port, `deadline` in seconds."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    silent = max(10, min(100, int(deadline)))  # seconds after which a process that says nothing counts as lost
    begin = int(deadline)
    jax.distributed.initialize(address, world, rank, initialization_timeout=begin, heartbeat_timeout_seconds=silent)


def disconnect() -> None:
    """Leave the other processes."""
    jax.distributed.shutdown()


def tell(value: Any) -> Any:
    """Process 0's value, on all of them."""
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    padded = np.zeros(size, np.uint8)
    padded[: min(size, len(data))] = data[:size]
    return pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())


def hear(value: Any) -> list[Any]:
    """Every process's value, on all of them."""
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(data)))
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: len(data)] = data
    return [pickle.loads(row.tobytes()) for row in multihost_utils.process_allgather(padded)]  # padding is not read


class Ranks:
    """All processes of a run; the twin of `suite.backend.ranks.torch.Ranks`."""

    def __init__(self) -> None:
        self.processes = jax.process_count()

    def tell(self, value: Any) -> Any:
        """Process 0's value, on all of them."""
        return value if self.processes == 1 else tell(value)

    def slowest(self, seconds: float) -> float:
        """The largest value over processes."""
        return seconds if self.processes == 1 else float(multihost_utils.process_allgather(np.float64(seconds)).max())

    def agree(self, signal: str | None) -> str | None:
        """A signal that any process has received, on all of them."""
        if self.processes == 1:
            return signal
        return SIGNALS[int(multihost_utils.process_allgather(np.asarray(SIGNALS.index(signal))).max())]

    def compare(self, held: Iterable[Iterable[np.ndarray]]) -> None:
        """Make sure that every device holds the same.

        Args:
            held: of each of this process's devices.

        Raises:
            RanksDiffer: which do not.
        """
        digests = np.array([backend.digest(arrays) for arrays in held], np.uint32)
        found = digests if self.processes == 1 else multihost_utils.process_allgather(digests)
        backend.compare(found.reshape(-1).tolist())
