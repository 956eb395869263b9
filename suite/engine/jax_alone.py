"""K-FAC, K-BFGS and VOGN, which use the layers' inputs and output gradients, in your own jax training loop.

def loss_of(params, x, y):  # with a model of flax or equinox
    return cross_entropy(model.apply({"params": params}, x), y)

layers = layers_of(loss_of, params, x, y)
optimizer = kfac(layers=layers, shapes=shapes_of(params), lr=0.05)
observe = observing(loss_of, optimizer)

@jax.jit
def step(params, state, x, y):
    loss, grads, statistics = observe(params, state, x, y)
    updates, state = optimizer.update(grads, state, params, statistics=statistics)
    return optax.apply_updates(params, updates), state, loss
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import UserError
from suite.engine.jax_layers import Tap, layers_of, tap_modules
from suite.engine.jax_step import Calls
from suite.engine.layers import check_input
from suite.optimizers._base.jax import Optimizer, full_precision, name_leaves, widen_floats, widen_type
from suite.optimizers._base.jax_mesh import call_with_auto_axes

__all__ = ["layers_of", "observing", "shapes_of"]
Look = Callable[..., tuple[Array, Any, dict[str, Array]]]


def shapes_of(params: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a tree's leaves by their path, such as `layer.weight`."""
    return {name: value.shape for name, value in name_leaves(params).items()}


def observing(loss: Callable[..., Array], optimizer: Optimizer, *, counted: int | None = None) -> Look:
    """Return a function that differentiates a loss and computes the layers' statistics.

    Args:
        loss: (params, *arguments) to the mean loss of a model of flax or equinox, whose layers `layers_of` finds. For
            other models (params, *arguments, tap=…): it passes each layer's input and output to `tap`, and uses the
            result as the output: `y = tap("name", x, y)`. `suite.contract.Layer` describes x and y. The first axis is
            that of the samples.
        optimizer: `kfac`, `kbfgs` or `vogn` of this suite. VOGN draws new weights in each step.
        counted: the number of terms, for example words, that the loss is a mean over; None: the number of samples.

    Returns:
        A function of (params, state, *arguments) that returns (loss, gradients, statistics).

    Raises:
        UserError: the optimizer uses the gradient only, `counted` is below 1, the state is not the optimizer's own, the
            loss does not call a layer, or a layer's input has no samples.
    """
    if "observe" not in vars(optimizer):
        raise UserError(
            "observing: takes what kfac, kbfgs or vogn returned, before optax wraps it; an optimizer that needs "
            "no more than the gradient takes jax.value_and_grad(loss)"
        )

    if not optimizer.layers:
        raise UserError("observing: the optimizer has no layers; print(layers_of(loss, params, …)) shows why")
    if counted is not None and counted < 1:
        raise UserError(f"observing: counted={counted}; set it to the number of terms that the loss is a mean over")
    by_hand = "tap" in inspect.signature(loss).parameters

    def run(params: Any, arguments: tuple[Any, ...], tap: Tap) -> Array:
        def tap_own(name: str, x: Array, y: Array) -> Array:
            return tap(name, x, y) if name in optimizer.layers else y

        if by_hand:
            return loss(params, *arguments, tap=tap_own)
        with tap_modules(params, tap_own):
            return loss(params, *arguments)

    def observe(params: Any, state: Any, *arguments: Any) -> tuple[Array, Any, dict[str, Array]]:
        if "steps" not in state:
            raise UserError(
                "observing: the state is not that of kfac, kbfgs or vogn alone; take theirs out of what optax has "
                "wrapped around it, as state[1] of an optax.chain"
            )
        structure, key = jax.tree.structure(params), jnp.stack([jnp.zeros_like(state["steps"]), state["steps"]])
        drawn = optimizer.forward_params(name_leaves(params), state, key.astype(jnp.uint32))
        # the model computes in the types of its parameters, as without `observing`
        kinds = zip(name_leaves(params), jax.tree.leaves(params), strict=True)
        weights = jax.tree.unflatten(structure, [drawn[name].astype(value.dtype) for name, value in kinds])
        outputs = Calls()
        jax.eval_shape(lambda p: run(p, arguments, lambda name, x, y: outputs.add(name, y)), weights)
        if missing := sorted(set(optimizer.layers) - {name for name, _ in outputs.values}):
            raise UserError(
                f"observing: the loss does not tap {', '.join(missing)}; "
                + (
                    "write y = tap(name, x, y) behind each layer, and go on with y"
                    if by_hand
                    else "leave it out of layers"
                )
            )
        probes = {call: jnp.zeros(value.shape, value.dtype) for call, value in outputs.values.items()}

        def probed(params: Any, probes: dict[Any, Array]) -> tuple[Array, dict[Any, Array]]:
            calls = Calls()
            value = run(params, arguments, lambda name, x, y: y + probes[calls.note(name, x)])
            return value, calls.values

        gradient = jax.value_and_grad(probed, (0, 1), has_aux=True)
        (value, inputs), (grads, slopes) = gradient(weights, probes)
        for (name, _), x in inputs.items():
            check_input(name, optimizer.layers[name], x.shape)
        lengths = sorted({(name, len(x)) for (name, _), x in inputs.items()})
        if len({length for _, length in lengths}) > 1:
            shown = ", ".join(f"{name} {length}" for name, length in lengths)
            raise UserError(
                f"observing: the first axis must be that of the samples in every layer, but the lengths are {shown}; "
                "expand the input, or leave a layer out of layers"
            )
        samples = len(next(iter(inputs.values())))
        # a tap has the gradient of the summed loss
        kind = jnp.result_type(*(widen_type(value.dtype) for value in slopes.values()))
        taps = {
            call: (widen_to(inputs[call], kind), widen_to((counted or samples) * widen_floats(slope), kind))
            for call, slope in slopes.items()
        }
        weight = jnp.ones(samples, kind)
        with full_precision():
            sums = call_with_auto_axes(optimizer.observe, taps, weight)
        return value, grads, {name: total / samples for name, total in sums.items()}

    def look(params: Any, state: Any, *arguments: Any) -> tuple[Array, Any, dict[str, Array]]:
        try:
            return observe(params, state, *arguments)
        except jax.errors.UnexpectedTracerError as error:
            raise UserError(
                "observing: a layer is called inside jax.jit, jax.checkpoint, jax.lax.scan or the like; call it "
                "outside, or leave it out of layers"
            ) from error

    return look


def widen_to(value: Array, kind: Any) -> Array:
    """Return a value in a type. Integers, and floats whose products already have this type, are not changed."""
    exact = not jnp.issubdtype(value.dtype, jnp.floating) or widen_type(value.dtype) == kind
    return value if exact else value.astype(kind)
