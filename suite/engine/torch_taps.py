"""Taps in torch: the inputs and output gradients of layers while a model runs."""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from suite.contract import Layer, UserError
from suite.engine.torch_layers import check_output
from suite.optimizers._base.torch import widen_floats
from suite.optimizers._linalg.torch import multiply_matrices

Tree = dict[str, Tensor]
Taps = dict[tuple[str, int], tuple[Tensor, Tensor]]
Observer = tuple[Mapping[str, Layer], Callable[[Taps, Tensor], Tree]]


@contextlib.contextmanager
def tap_layers(
    model: nn.Module, layers: Mapping[str, Layer], add: Callable[[Taps], None]
) -> Iterator[Callable[[], Collection[str]]]:
    """A context in which each layer's inputs and output gradients are passed on when its backward pass is complete.

    Under autocast, taps have the types of the layers' inputs and output gradients, such as bfloat16.

    Args:
        model: the model.
        layers: its layers to tap, by module name.
        add: called once per layer with its taps, keyed by name and number of the call. They are not stored after that.

    Yields:
        A function to call after the backward pass. It passes on the taps of layers that have outputs on which the loss
        does not depend, and returns the names of the layers that were called.
    """
    calls: Counter[str] = Counter()
    seen: dict[str, Taps] = {}

    def tap(name: str, layer: Layer) -> Callable[..., None]:
        def forward(module: Any, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> None:
            if not output.requires_grad:  # the first forward pass of reentrant checkpointing
                return
            x = (*inputs, *named.values())[0].detach()
            check_output(name, module, x, output)
            call, version = calls[name], x._version
            calls[name] += 1

            def backward(dy: Tensor) -> None:
                if x._version != version:
                    raise UserError(f"the input of layer {name} was changed in place after the call; change a copy")
                with torch.no_grad():
                    taps = seen.setdefault(name, {})
                    taps[name, call] = module.normalize(widen_floats(x)) if layer.kind == "batchnorm" else x, dy
                    if len(taps) == calls[name]:
                        add(seen.pop(name))

            output.register_hook(backward)

        return forward

    def rest() -> Collection[str]:
        with torch.no_grad():
            while seen:
                add(seen.pop(next(iter(seen))))
        return calls.keys()

    handles = [
        # before the user's hooks, which may change the output
        model.get_submodule(name).register_forward_hook(tap(name, layer), with_kwargs=True, prepend=True)
        for name, layer in layers.items()
    ]
    try:
        yield rest
    finally:
        for handle in handles:
            handle.remove()


class Statistics:
    """Sums of the layers' statistics over samples and micro-batches.

    Args:
        observe: computes the sums of one layer's statistics from its taps and the samples' weights.
        finished: called with the name and mean of each statistic after the last micro-batch.
    """

    def __init__(self, observe: Callable[[Taps, Tensor], Tree], finished: Callable[[str, Tensor], None]):
        self.observe, self.finished = observe, finished
        self.sums, self.means = Tree(), Tree()
        self.weight: Tensor | None = None  # weights of this micro-batch's samples
        self.divisor: Tensor | None = None  # set in the last micro-batch

    def add(self, taps: Taps) -> None:
        """Add one layer's taps of one micro-batch."""
        assert self.weight is not None
        for name, value in self.observe(taps, self.weight).items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            if self.divisor is not None:
                self.means[name] = self.sums.pop(name) / self.divisor
                self.finished(name, self.means[name])

    def values(self) -> Tree:
        """Return the means, including those of layers without taps in the last micro-batch."""
        assert self.divisor is not None
        return self.means | {name: value / self.divisor for name, value in self.sums.items()}


def whole_gradients(taps: Taps, weight: Tensor) -> Tree:
    """Return the gradients Σ dyᵀ x (outputs, inputs) of whole matrices, including places without a stored block."""
    sums: Tree = {}
    for (name, _), (x, dy) in taps.items():
        product = multiply_matrices(dy.flatten(0, -2).t(), x.flatten(0, -2))
        sums[name] = sums[name] + product if name in sums else product
    return sums
