"""Small values that all ranks of the default group need, in torch; `suite.messages` states which."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from suite.messages import decode_message, encode_message


def broadcast(value: Any) -> Any:
    """Broadcast rank 0's value to all ranks."""
    data = _pack(value if dist.get_rank() == 0 else None)
    size = torch.tensor(len(data), device=data.device)
    dist.broadcast(size, 0)
    padded = data.new_zeros(int(size))
    padded[: min(len(data), len(padded))] = data[: len(padded)]
    dist.broadcast(padded, 0)
    return _unpack(padded)


def gather(value: Any) -> list[Any]:
    """Gather every rank's value, in the order of ranks."""
    data, world = _pack(value), dist.get_world_size()
    sizes = [torch.tensor(0, device=data.device) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor(len(data), device=data.device))
    padded = data.new_zeros(int(max(sizes)))
    padded[: len(data)] = data
    received = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(received, padded)
    return [_unpack(row[: int(size)]) for row, size in zip(received, sizes, strict=True)]


def _pack(value: Any) -> Tensor:
    """Return a message as a uint8 tensor, where the group's backend can send it."""
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    return torch.frombuffer(bytearray(encode_message(value)), dtype=torch.uint8).to(device)


def _unpack(data: Tensor) -> Any:
    return decode_message(bytes(data.cpu().numpy()))
