"""Parameters that `fully_shard` splits over the ranks (DTensor): gathered, and split again."""

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
    """Return a detached view of a tensor; if it is split, of this rank's part."""
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
