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
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from suite.contract import Layer, UserError
from suite.engine.layers import check_input
from suite.engine.torch_layers import layers_of
from suite.engine.torch_taps import Taps, tap_layers
from suite.optimizers._base.torch import widen_floats
from suite.optimizers._base.torch_observing import Observing
from suite.optimizers._base.torch_shards import is_sharded

__all__ = ["layers_of", "observed"]


@runtime_checkable
class Wrapper(Protocol):
    """An optimizer that holds another one, as `accelerate` wraps it."""

    optimizer: torch.optim.Optimizer


@contextlib.contextmanager
def observed(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Wrapper,
    *,
    counted: int | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> Iterator[None]:
    """A context for one forward and backward pass, in which the optimizer computes its layers' statistics.

    The loss must be a mean, and the first axis of every layer's input must be that of the samples. The statistics of
    several passes before one step add up, as their gradients do. Inside, VOGN replaces the weights by a draw. Where a
    default process group exists, `step` averages the statistics over its ranks, as DistributedDataParallel averages
    gradients.

    Args:
        model: the model that contains the optimizer's layers, not compiled.
        optimizer: `KFAC`, `KBFGS` or `VOGN` of this suite.
        counted: the number of terms that the loss is a mean over; None: the samples of the pass. For a mean over words
            it is the number of words; for micro-batches whose losses are divided by their number, the samples of all of
            them.
        scaler: what scales the loss inside the context, if anything does.

    Raises:
        UserError: the optimizer uses the gradient only, or is none; `counted` is below 1; the model is compiled, lacks
            one of the layers, or has other parameters; a layer's input has no samples; a layer has a gradient and was
            not called, or was called in several passes.
    """
    inner = optimizer.optimizer if isinstance(optimizer, Wrapper) else optimizer
    if not isinstance(inner, torch.optim.Optimizer):
        raise UserError(f"observed: {type(inner).__name__} is no optimizer; write observed(model, optimizer)")
    if not isinstance(inner, Observing):
        raise UserError(f"observed: {type(inner).__name__} needs no more than the gradient; leave it out")
    if counted is not None and counted < 1:
        raise UserError(f"observed: counted={counted}; set it to the number of terms that the loss is a mean over")
    model = _find_model(model, inner.layers)
    inner.forget_cleared()
    tapped = inner.layers if inner.due() else {}
    modules = _find_modules(model, inner.layers)
    _check_parameters(modules, inner)
    total: dict[str, Tensor] = {}
    observed_layers: set[str] = set()
    samples = 0

    def add(taps: Taps) -> None:
        nonlocal samples
        ((name, _), (_, first)) = next(iter(taps.items()))
        if name in observed_layers:
            raise UserError(
                f"observed: layer {name} took part in several backward passes; use one observed for each pass, and "
                "checkpoint with use_reentrant=False"
            )
        observed_layers.add(name)
        for (layer, _), (x, _) in taps.items():
            check_input(layer, inner.layers[layer], tuple(x.shape))
        lengths = {len(x) for x, _ in taps.values()} | {samples} - {0}
        if len(lengths) > 1:
            raise UserError(
                f"observed: the first axis of layer {name} has length {len(first)}, that of another call or layer "
                f"{', '.join(map(str, sorted(lengths - {len(first)})))}; it must be that of the samples in every call: "
                f"expand the input, or leave the layer out: del layers[{name!r}]"
            )
        samples = len(first)
        scale = (counted or samples) / (scaler.get_scale() if scaler else 1.0)  # a tap: gradient of the summed loss
        scaled = {call: (x, widen_floats(dy) * scale) for call, (x, dy) in taps.items()}
        total.update(inner.observe(scaled, widen_floats(first).new_ones(samples)))

    with inner.forward_weights(), tap_layers(model, tapped, add) as rest:
        yield
        called = rest()
    graded = [p for name in tapped for p in modules[name].parameters(recurse=False) if p.grad is not None]
    if graded and not called:
        raise UserError(
            "observed: the layers have gradients, but none was called inside; run forward and backward inside, on the "
            "model itself: code that torch.compile has compiled skips hooks"
        )
    for name in tapped:
        if name not in called and any(p.grad is not None for p in modules[name].parameters(recurse=False)):
            raise UserError(
                f"observed: layer {name} has a gradient, but was not called, and has no statistics; leave it out of "
                f"layers: del layers[{name!r}]"
            )
    inner.scaled = scaler is not None
    if samples:
        inner.see(total, samples)


def _find_model(model: nn.Module, layers: Mapping[str, Layer]) -> nn.Module:
    """Return the model after which the layers are named: DistributedDataParallel, or the one that it wraps."""
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return model
    wrapped = dict(model.named_modules())
    outside = all(name in wrapped and name.partition(".")[0] == "module" for name in layers)
    return model if outside else model.module


def _find_modules(model: nn.Module, layers: Mapping[str, Layer]) -> dict[str, nn.Module]:
    """Return the modules of a model by name.

    Raises:
        UserError: a part of the model is compiled, or a layer is missing.
    """
    modules = dict(model.named_modules())
    if "_orig_mod" in {name.rpartition(".")[2] for name in modules} or any(
        module._compiled_call_impl is not None for module in modules.values()
    ):
        raise UserError("observed: the model is compiled, and compiled code skips hooks; use it without torch.compile")
    if missing := sorted(set(layers) - set(modules)):
        raise UserError(f"observed: the model has no layer {', '.join(missing)}; set layers=layers_of(model)")
    return modules


def _check_parameters(modules: Mapping[str, nn.Module], optimizer: Observing) -> None:
    """Check that the layers' parameters are the optimizer's; `fully_shard` replaces them for a while.

    Raises:
        UserError: the model is another one than the optimizer's.
    """
    known = {id(value): value for group in optimizer.param_groups for value in group["params"]}
    if any(is_sharded(value) for value in known.values()):
        return
    for name, layer in optimizer.layers.items():
        for parameter in layer.parameters:
            value = getattr(modules[name], parameter.rpartition(".")[2])
            if isinstance(value, nn.Parameter) and id(value) not in known:
                raise UserError(
                    f"observed: {parameter} of this model is not the optimizer's parameter of that name; pass the "
                    "model that has the optimizer's parameters, not a copy"
                )
