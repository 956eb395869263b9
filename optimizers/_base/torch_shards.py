"""Parameters that `fully_shard` splits over the ranks (DTensor): gathered, and split again."""

import torch
from torch import Tensor


def is_sharded(value: Tensor) -> bool:
    """Return whether a tensor is a DTensor, as `fully_shard` makes it; importing the class takes half a second."""
    return hasattr(value, "placements")


def gather_whole(value: Tensor) -> Tensor:
    """Return a whole tensor; the ranks gather one that is split."""
    if not is_sharded(value):
        return value
    from torch.distributed.tensor import DTensor

    assert isinstance(value, DTensor)
    return value.full_tensor()


def view_local(value: Tensor) -> Tensor:
    """Return a tensor without its gradient, or of one that is split the part that this rank holds: a view."""
    value = value.detach()
    if not is_sharded(value):
        return value
    from torch.distributed.tensor import DTensor

    assert isinstance(value, DTensor)
    return value.to_local()


def split_like(value: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor, which is equal on all ranks, split as another one is."""
    if not is_sharded(like):
        return value
    from torch.distributed.tensor import DTensor, Replicate

    assert isinstance(like, DTensor)
    mesh = like.device_mesh
    whole = DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(placements=like.placements)


def make_whole_zeros(parameter: Tensor, kind: torch.dtype) -> Tensor:
    """Return whole zeros of a parameter's shape."""
    if is_sharded(parameter):
        return torch.zeros(parameter.shape, dtype=kind, device=parameter.device)
    return torch.zeros_like(parameter, dtype=kind)
