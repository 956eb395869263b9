"""The codec in torch."""

import torch
from torch import Tensor


def encode(values: Tensor) -> Tensor:
    """(n,) floating-point values to their uint8 payload."""
    return values.contiguous().view(torch.uint8)


def decode(payload: Tensor, like: Tensor) -> Tensor:
    """The payload of an array of `like`'s type and length, back to values."""
    return payload.view(like.dtype)
