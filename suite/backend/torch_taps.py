"""What the torch engine sees of layers while a model runs: inputs, and gradients by outputs."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from suite.contract import Layer

Tree = dict[str, Tensor]
Taps = dict[tuple[str, int], tuple[Tensor, Tensor]]
Observer = tuple[Mapping[str, Layer], Callable[[Taps, Tensor], Tree]]


@contextlib.contextmanager
def tapped(
    model: nn.Module, layers: Mapping[str, Layer], found: Callable[[Taps], None]
) -> Iterator[Callable[[], None]]:
    """Hand a layer's inputs and output gradients to `found` as soon as the backward pass inside has made all of them.

    Keyed by name and by how often the layer had been called. Nothing is held longer than that. What this yields is to
    be called when backward is over, for layers some of whose outputs the loss does not depend on.
    """
    calls: Counter[str] = Counter()
    seen: dict[str, Taps] = {}

    def tap(name: str, layer: Layer) -> Callable[..., None]:
        def forward(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            call, x = calls[name], inputs[0].detach()
            calls[name] += 1

            def backward(dy: Tensor) -> None:
                with torch.no_grad():
                    taps = seen.setdefault(name, {})
                    taps[name, call] = module.normalize(x) if layer.kind == "batchnorm" else x, dy
                    if len(taps) == calls[name]:
                        found(seen.pop(name))

            output.register_hook(backward)

        return forward

    def rest() -> None:
        with torch.no_grad():
            while seen:
                found(seen.pop(next(iter(seen))))

    handles = [model.get_submodule(name).register_forward_hook(tap(name, layer)) for name, layer in layers.items()]
    try:
        yield rest
    finally:
        for handle in handles:
            handle.remove()


class Statistics:
    """Sums over samples of what an observer makes of layers' taps, over micro-batches.

    Args:
        observe: makes them.
        finished: told of each one by name, once the last micro-batch's share has come and it has been divided.
    """

    def __init__(self, observe: Callable[[Taps, Tensor], Tree], finished: Callable[[str, Tensor], None]):
        self.observe, self.finished = observe, finished
        self.sums, self.means = Tree(), Tree()
        self.weight: Tensor | None = None  # of the samples of this micro-batch
        self.divisor: Tensor | None = None  # known in the last one

    def add(self, taps: Taps) -> None:
        """Take in one layer's taps of one micro-batch."""
        assert self.weight is not None
        for name, value in self.observe(taps, self.weight).items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            if self.divisor is not None:
                self.means[name] = self.sums.pop(name) / self.divisor
                self.finished(name, self.means[name])

    def values(self) -> Tree:
        """Sums divided by the divisor: also of layers that the last micro-batch did not come to."""
        assert self.divisor is not None
        return self.means | {name: value / self.divisor for name, value in self.sums.items()}


def whole_gradients(taps: Taps, weight: Tensor) -> Tree:
    """Of fully connected layers, Σ dyᵀ x (outputs, inputs): also where no weight is stored."""
    sums: Tree = {}
    for (name, _), (x, dy) in taps.items():
        wide = torch.promote_types(dy.dtype, torch.float32)  # under autocast x and dy may differ in type
        found = dy.flatten(0, -2).to(wide).t() @ x.flatten(0, -2).to(wide)
        sums[name] = sums[name] + found if name in sums else found
    return sums
