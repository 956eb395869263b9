"""Layers of a torch model that curvature methods and Muon support."""

import itertools
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from suite.contract import Layer, UserError
from suite.engine.layers import Layers

KINDS = (nn.Linear, nn.Embedding, nn.Conv2d)


def layers_of(model: nn.Module) -> Layers:
    """Return the layers of a model that K-FAC, K-BFGS, Muon and VOGN support, by module name.

    These are `nn.Linear`, `nn.Embedding`, `Conv1D` of Hugging Face's transformers, and `nn.Conv2d` if square and
    zero-padded, without groups and dilation. The optimizers update the parameters of all other modules, and of layers
    that are tied or frozen, by their rule for parameters without a layer. `print(layers_of(model))` shows both.
    """
    uses = Counter(id(p) for _, module in model.named_modules() for p in module.parameters(recurse=False))
    uncalled: dict[nn.Module, str] = {
        module.out_proj: "nn.MultiheadAttention reads its weight without calling it"
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
    }
    found: dict[str, Layer] = {}
    rest: dict[str, str] = {}
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        names = tuple(f"{name}.{leaf}" if name else leaf for leaf in own)
        layer = _describe_layer(module, names)
        reasons = [uncalled[module]] if module in uncalled else [*_find_reasons(module, uses)] if layer else []
        if layer and not reasons:
            found[name] = layer
        else:
            kind = "Conv2d that is not ordinary" if isinstance(module, nn.Conv2d) else type(module).__name__
            rest[name] = reasons[0] if reasons else f"{kind}, with {', '.join(own)}"
    return Layers(found, rest)


def _describe_layer(module: nn.Module, names: tuple[str, ...]) -> Layer | None:
    """Return what curvature methods read of a module; None for one that they do not support."""
    if isinstance(module, nn.Linear):
        return Layer("linear", names)
    if isinstance(module, nn.Embedding):
        return Layer("embedding", names)
    if isinstance(module, nn.Conv2d) and _is_ordinary(module):
        kernel, stride, padding = module.kernel_size[0], module.stride[0], module.padding[0]
        return Layer("conv2d", names, kernel, stride, int(padding))
    if (type(module).__module__, type(module).__name__) == ("transformers.pytorch_utils", "Conv1D"):
        return Layer("linear", names, transposed=True)
    return None


def check_output(name: str, module: nn.Module, x: Tensor, output: Tensor) -> None:
    """Check that a layer whose class has its own forward method computes what its weight, bias and input give.

    Such a class may cast its weight, for example. If it scales it, the statistics would be those of another weight.

    Raises:
        UserError: the output is another one.
    """
    own = itertools.takewhile(lambda base: base not in KINDS, type(module).__mro__)
    if not any(method in vars(place) for place in (module, *own) for method in ("forward", "_conv_forward")):
        return
    with torch.no_grad():
        expected = _compute_output(module, x)
        if expected is None or torch.dist(output.to(expected.dtype), expected) <= 0.05 * expected.norm():
            return
    raise UserError(
        f"observed: the forward method of layer {name} ({type(module).__name__}) does not compute what its weight, "
        f"bias and input give; leave it out of layers: del layers[{name!r}]"
    )


def _compute_output(module: nn.Module, x: Tensor) -> Tensor | None:
    """Return the output of an ordinary layer with a module's parameters; None for modules of further kinds."""
    if isinstance(module, nn.Embedding):
        return functional.embedding(x, module.weight)
    if isinstance(module, nn.Linear):
        return functional.linear(x.to(module.weight.dtype), module.weight, module.bias)
    if isinstance(module, nn.Conv2d):
        x = x.to(module.weight.dtype)
        return functional.conv2d(x, module.weight, module.bias, module.stride, module.padding)
    return None


def _is_ordinary(module: nn.Conv2d) -> bool:
    sides = module.kernel_size, module.stride, module.padding
    square = all(not isinstance(side, str) and len(set(side)) == 1 for side in sides)
    return square and module.groups == 1 and set(module.dilation) == {1} and module.padding_mode == "zeros"


def _find_reasons(module: nn.Module, uses: Counter[int]) -> Iterator[str]:
    """Yield why the statistics of a layer would not be those of its parameters."""
    own = dict(module.named_parameters(recurse=False))
    if next(iter(own)) != "weight":
        yield "its weight is computed from other parameters"
    if not all(parameter.numel() for parameter in own.values()):
        yield "it is empty"
    if further := own.keys() - {"weight", "bias"}:
        yield f"it has a further parameter {', '.join(sorted(further))}"
    if tied := [name for name, parameter in own.items() if uses[id(parameter)] > 1]:
        yield f"its {' and '.join(tied)} is tied to another module"
    if frozen := [name for name, parameter in own.items() if not parameter.requires_grad]:
        yield f"its {' and '.join(frozen)} is frozen"
    if isinstance(module, nn.Embedding) and module.scale_grad_by_freq:
        yield "scale_grad_by_freq=True changes its gradients"
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        yield "its row padding_idx has no gradient"
