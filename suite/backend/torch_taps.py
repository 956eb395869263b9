"""What the torch engine sees of layers while a model runs: inputs, and gradients by outputs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from suite.contract import Layer

Tree = dict[str, Tensor]
Taps = dict[tuple[str, int], tuple[Tensor, Tensor]]
Observer = tuple[Mapping[str, Layer], Callable[[Taps, Tensor], Tree]]


@contextlib.contextmanager
def tapped(model: nn.Module, layers: Mapping[str, Layer]) -> Iterator[Taps]:
    """Inputs and output gradients of layers, as one forward and backward pass inside makes them.

    Keyed by name and by how often the layer has been called.
    """
    seen: Taps = {}
    handles = [
        model.get_submodule(name).register_forward_hook(_tap(name, layer, seen)) for name, layer in layers.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _tap(name: str, layer: Layer, seen: Taps) -> Callable[..., None]:
    calls = 0

    def forward(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal calls
        call, calls = calls, calls + 1
        x = inputs[0].detach()

        def backward(dy: Tensor) -> None:
            with torch.no_grad():
                seen[name, call] = (module.normalize(x) if layer.kind == "batchnorm" else x, dy)

        output.register_hook(backward)

    return forward


def whole_gradients(taps: Taps, weight: Tensor) -> Tree:
    """Of fully connected layers, Σ dyᵀ x (outputs, inputs): also where no weight is stored."""
    sums: Tree = {}
    for (name, _), (x, dy) in taps.items():
        wide = torch.promote_types(dy.dtype, torch.float32)  # under autocast x and dy may differ in type
        found = dy.flatten(0, -2).to(wide).t() @ x.flatten(0, -2).to(wide)
        sums[name] = sums[name] + found if name in sums else found
    return sums
