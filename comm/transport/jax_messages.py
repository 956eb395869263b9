"""Small values that all processes need, in jax; `suite.messages` states which."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from suite.messages import decode_message, encode_message


def broadcast(value: Any) -> Any:
    """Broadcast process 0's value to all processes."""
    data = _pack(value if jax.process_index() == 0 else None)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    padded = np.zeros(size, np.uint8)
    padded[: min(size, len(data))] = data[:size]
    return decode_message(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())


def gather(value: Any) -> list[Any]:
    """Gather every process's value, in the order of processes."""
    data = _pack(value)
    sizes = multihost_utils.process_allgather(np.int32(len(data)))
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: len(data)] = data
    received = multihost_utils.process_allgather(padded)
    return [decode_message(row[:size].tobytes()) for row, size in zip(received, sizes, strict=True)]


def _pack(value: Any) -> np.ndarray:
    return np.frombuffer(encode_message(value), np.uint8)
