"""Sums of many terms that torch adds up in bfloat16 on a CPU, although their result is float32."""

import contextlib
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suite.contract import UserError

# Of 65,536 ones, each gradient is 256 (torch 2.13). Sums, means, convolutions, products, BatchNorm and GroupNorm are
# added up in float32 inside their kernels.
NARROW = {
    "native_layer_norm_backward": "LayerNorm",
    "embedding_dense_backward": "Embedding",
    "_embedding_bag_backward": "EmbeddingBag",
}
ADDING = ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put", "put", "put_")  # of h[ids], h.take(ids)


class NarrowSums(TorchDispatchMode):
    """A context in which the backward pass of such a layer with values in bfloat16 is rejected.

    Raises:
        UserError: there is one.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().removeprefix("aten::").split(".")[0]
        layer = NARROW.get(name)
        if name in ADDING and (True in args[3:] or (kwargs or {}).get("accumulate")):
            layer = "lookup by index"
        if layer and any(getattr(value, "dtype", None) == torch.bfloat16 for value in tree_leaves(args)):
            raise UserError(
                f"precision=bfloat16: the model's {layer} has values in bfloat16, and torch on a CPU adds up its "
                "gradients in bfloat16; convert its input to float32 (x.float()), or set precision=float32"
            )
        return function(*args, **(kwargs or {}))


def reject_narrow_sums(device: torch.device, *, narrow: bool) -> contextlib.AbstractContextManager[Any]:
    """Return the context, for a model that trains in bfloat16 on a CPU; else one without effect."""
    return NarrowSums() if narrow and device.type == "cpu" else contextlib.nullcontext()
