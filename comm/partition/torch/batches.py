"""Which inputs of a model have samples, and the samples of a micro-batch."""

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from suite.comm.partition.torch.trace import Inputs
from suite.contract import UserError

Batched = Any  # a truth value for each input, or for a container of inputs


def find_samples(inputs: Inputs, targets: Any, batched: Batched = None) -> tuple[list[bool], int]:
    """Find which tensors have the samples of a batch along axis 0.

    Args:
        inputs: of the model.
        targets: of the loss; those as long as the batch have samples.
        batched: of each input, whether it has samples; None: those as long as the first tensor have.

    Returns:
        A truth value for each leaf of (inputs, targets), and the number of samples.

    Raises:
        UserError: if no input has samples, or one that should has another number of them.
    """
    leaves, structure = pytree.tree_flatten(inputs)
    given = [None] * len(leaves) if batched is None else pytree._broadcast_to_and_flatten(batched, structure)
    if given is None:
        raise UserError(
            f"batched={batched}: pass a truth value for each of the {len(inputs)} inputs, in their structure"
        )
    lengths = [len(leaf) if isinstance(leaf, Tensor) and leaf.ndim else None for leaf in leaves]
    possible = [length for length, chosen in zip(lengths, given, strict=True) if length and chosen in (None, True)]
    if not possible:
        raise UserError("inputs: no tensor with the samples along axis 0; pass a tuple, for example (ids, mask)")
    count = possible[0]
    for number, (length, chosen) in enumerate(zip(lengths, given, strict=True)):
        if chosen and length != count:
            raise UserError(
                f"batched={batched}: tensor {number} of the inputs does not have {count} samples along axis 0"
            )
    split = [length == count and chosen is not False for length, chosen in zip(lengths, given, strict=True)]
    return [*split, *(_has(leaf, count) for leaf in pytree.tree_leaves(targets))], count


def _has(leaf: Any, count: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == count


def take_samples(batch: Any, split: list[bool], part: slice) -> Any:
    """Return some samples of a batch; tensors without samples are whole.

    Args:
        batch: (inputs, targets).
        split: from `find_samples`.
        part: of the samples.
    """
    leaves, structure = pytree.tree_flatten(batch)
    return structure.unflatten([leaf[part] if has else leaf for leaf, has in zip(leaves, split, strict=True)])
