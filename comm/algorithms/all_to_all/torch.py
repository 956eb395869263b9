"""All-to-all reduction in torch."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def mean(name: str, values: Tensor, *, codec: Any, transport: Any) -> tuple[Tensor, Tensor]:
    """The mean over ranks of a flat (n,) array, and what this rank contributed to it as the others decode it."""
    world, count = transport.world, values.numel()
    chunks = functional.pad(values, (0, -count % world)).chunk(world)
    encoded = torch.stack([codec.encode(chunk) for chunk in chunks])
    sent = torch.cat([codec.decode(payload, chunks[0]) for payload in encoded])[:count]
    payloads = transport.all_to_all(f"{name}/scatter", encoded)
    total = codec.decode(payloads[0], chunks[0]).clone()
    for payload in payloads[1:]:
        total += codec.decode(payload, chunks[0])
    parts = transport.all_gather(f"{name}/gather", codec.encode(total / world)[None])
    return torch.cat([codec.decode(part, chunks[0]) for part in parts])[:count], sent
