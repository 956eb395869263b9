"""K-FAC, K-BFGS and VOGN, which use the layers' inputs and output gradients, in your own torch training loop.

layers = layers_of(model)
optimizer = kfac(model.named_parameters(), layers=layers, lr=0.05)
for x, y in batches:
    optimizer.zero_grad()
    with observed(model, optimizer):
        loss = cross_entropy(model(x), y)
        loss.backward()
    optimizer.step()
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from suite.contract import Layer, UserError
from suite.engine.torch_taps import Taps, tap_layers
from suite.optimizers._base.torch_observing import Observing


def layers_of(model: nn.Module) -> dict[str, Layer]:
    """Return the layers of a model that K-FAC, K-BFGS, Muon and VOGN support, by module name.

    These are `nn.Linear`, `nn.Embedding`, and `nn.Conv2d` if square and zero-padded, without groups and dilation. The
    optimizers update the parameters of all other modules by their rule for parameters without a layer.
    """
    layers: dict[str, Layer] = {}
    for name, module in model.named_modules():
        names = tuple(f"{name}.{leaf}" if name else leaf for leaf, _ in module.named_parameters(recurse=False))
        if isinstance(module, nn.Linear):
            layers[name] = Layer("linear", names)
        elif isinstance(module, nn.Embedding):
            layers[name] = Layer("embedding", names)
        elif isinstance(module, nn.Conv2d) and _ordinary(module):
            kernel, stride, padding = module.kernel_size[0], module.stride[0], module.padding[0]
            layers[name] = Layer("conv2d", names, kernel, stride, int(padding))
    return layers


def _ordinary(module: nn.Conv2d) -> bool:
    sides = module.kernel_size, module.stride, module.padding
    square = all(not isinstance(side, str) and len(set(side)) == 1 for side in sides)
    return square and module.groups == 1 and set(module.dilation) == {1} and module.padding_mode == "zeros"


@contextlib.contextmanager
def observed(model: nn.Module, optimizer: torch.optim.Optimizer, *, counted: int | None = None) -> Iterator[None]:
    """A context for one forward and backward pass, in which the optimizer computes its layers' statistics.

    The loss must be a mean, and the first axis of every layer's input must be that of the samples. The statistics of
    several passes before one step add up, as their gradients do. Inside, VOGN replaces the weights by a draw.

    Args:
        model: the model that contains the optimizer's layers.
        optimizer: `KFAC`, `KBFGS` or `VOGN` of this suite.
        counted: the number of terms that the loss is a mean over; None: the samples of the pass. For a mean over words
            it is the number of words; for micro-batches whose losses are divided by their number, the samples of all of
            them.

    Raises:
        UserError: the optimizer uses the gradient only, or the model lacks one of its layers.
    """
    if not isinstance(optimizer, Observing):
        raise UserError(f"observed: {type(optimizer).__name__} needs no more than the gradient; leave it out")
    modules = dict(model.named_modules())
    if missing := sorted(set(optimizer.layers) - set(modules)):
        raise UserError(f"observed: the model has no layer {', '.join(missing)}; set layers=layers_of(model)")
    samples = 0

    def add(taps: Taps) -> None:
        nonlocal samples
        samples = len(next(iter(taps.values()))[0])
        scale = counted or samples  # a tap has the gradient of the summed loss
        weight = next(iter(taps.values()))[1].new_ones(samples)
        scaled = {call: (x, dy * scale) for call, (x, dy) in taps.items()}
        sums = optimizer.observe(scaled, weight)
        for name, value in sums.items():
            total[name] = total[name] + value if name in total else value

    total: dict[str, Tensor] = {}
    due = optimizer.due()
    with optimizer.forward_weights(), tap_layers(model, optimizer.layers if due else {}, add) as rest:
        yield
        rest()
    if samples:
        optimizer.see(total, samples)
