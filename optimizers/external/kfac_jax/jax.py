"""kfac-jax's curvature and preconditioning in jax."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct, eval_shape, lax, random, tree

from suite.contract import Layer, Objective, UserError
from suite.optimizers._base.jax import Optimizer, decayed, hyper
from suite.optimizers.external import imported

Tree = dict[str, Array]
State = dict[str, Any]
LABELS = {"empirical": "given", "sampled": "sampled"}
# orders of axes: torch's (out, in) and OIHW as kfac-jax's (in, out) and HWIO, and back
THEIRS, OURS = {2: (1, 0), 4: (2, 3, 1, 0)}, {2: (1, 0), 4: (3, 2, 0, 1)}


def kfac_jax(
    *,
    layers: Mapping[str, Layer],
    shapes: Mapping[str, tuple[int, ...]],
    objective: Objective,
    jax: str = "kfac_jax",
    path: str | None = None,
    lr: float = 0.1,
    momentum: float = 0.9,
    damping: float = 0.1,
    factor_decay: float = 0.95,
    inverse_interval: int = 1,
    weight_decay: float = 0.0,
    fisher: str = "empirical",
) -> Optimizer:
    """Heavy-ball momentum on the gradient that kfac-jax preconditioned.

    Args:
        layers: those of the model.
        shapes: the parameters', by name.
        objective: the loss that kfac-jax traces.
        jax: the library's module.
        path: folder to import it from, None for none.
        lr: learning rate η.
        momentum: μ.
        damping: λ, split between a block's two factors by their mean eigenvalues.
        factor_decay: β, its `curvature_ema`.
        inverse_interval: steps from one inverse to the next, its `inverse_update_period`.
        weight_decay: added to the gradient of matrices and filters.
        fisher: `empirical` or `sampled`.

    Raises:
        UserError: where the library is not there or cannot trace the loss, or for another `fisher`.
    """
    if fisher not in LABELS:
        raise UserError(f"optimizer.fisher={fisher}: one of {', '.join(LABELS)}")
    library: Any = imported(f"optimizer.jax={jax}", jax, path)
    size = objective.context["batch"]["weight"].shape[0]
    known = registrable(layers, shapes, objective)
    weights = {layer.parameters[0] for layer in known.values()}

    def ordered(values: Tree, axes: Mapping[int, tuple[int, ...]]) -> Tree:
        """The layers' weights in another order of axes."""
        return {n: v.transpose(axes[v.ndim]) if n in weights and v.ndim in axes else v for n, v in values.items()}

    def registered(layer: Layer, x: Array, y: Array, params: Tree) -> Array:
        own = [params[name] for name in layer.parameters]
        if layer.kind == "batchnorm":
            return library.register_scale_and_shift(y, x, *own)
        if layer.kind == "linear":
            return library.register_dense(y, x, *own, variant="dense" if x.ndim == 2 else "repeated_dense")
        numbers = lax.conv_dimension_numbers(x.shape, own[0].shape, ("NHWC", "HWIO", "NHWC"))
        window = {"window_strides": (layer.stride,) * 2, "padding": ((layer.padding,) * 2,) * 2}
        return library.register_conv2d(y, x, *own, dimension_numbers=numbers, **window)

    def loss(params: Tree, context: Tree) -> Array:
        """The summed loss, as kfac-jax traces it; parameters in its order of axes."""

        def tap(name: str, x: Array, y: Array) -> Array:
            return registered(known[name], x, y, params) if name in known else y

        total, _ = objective.value(ordered(params, OURS), context, labels=LABELS[fisher], tap=tap)
        # as a squared error with prediction 0 and target -½: whatever the loss is, 1 is its derivative by itself, times
        # √N for the √N by which kfac-jax divides what is empirical
        own = (total - lax.stop_gradient(total))[None]
        library.register_squared_error_loss(own, jnp.full_like(own, -0.5), weight=size**0.5)
        return total

    curvature = library.BlockDiagonalCurvature(loss, default_estimation_mode="fisher_empirical")
    example = eval_shape(lambda params: ordered(params, THEIRS), _shaped(shapes)), objective.context
    with _understood(jax, library):
        curvature.finalize(example)

    def init(params: Tree) -> State:
        arguments = params, objective.context  # not read: it was traced before
        powers = {"exact_powers_to_cache": None, "approx_powers_to_cache": -1}
        values = {"lr": lr, "momentum": momentum, "damping": damping}
        return {
            "hyper": hyper(**values, factor_decay=factor_decay, weight_decay=weight_decay),
            "count": jnp.zeros((), jnp.int32),
            "curvature": curvature.init(random.key(0), arguments, **powers),  # nothing is drawn
            "velocity": tree.map(jnp.zeros_like, params),
        }

    def update(grads: Tree, state: State, params: Tree, *, reduce: Any, context: Tree) -> tuple[Tree, State]:
        at = state["hyper"]
        damped = {"identity_weight": at["damping"], "pmap_axis_name": None}
        with _understood(jax, library):
            found = curvature.update_curvature_matrix_estimate(
                state["curvature"],
                ema_old=at["factor_decay"],
                ema_new=1.0,
                batch_size=size,
                rng=None,
                func_args=(ordered(params, THEIRS), context),
                **damped,
            )
        found = _averaged(library.utils.WeightedMovingAverage, found, reduce)
        powers = {"exact_powers": None, "approx_powers": -1, "eigenvalues": False}
        due = state["count"] % inverse_interval == 0
        found = lax.cond(due, lambda old: curvature.update_cache(old, **powers, **damped), lambda old: old, found)
        vector = ordered(decayed(grads, params, at["weight_decay"]), THEIRS)
        how = {"power": -1, "exact_power": False, "use_cached": True}
        direction = ordered(curvature.multiply_matpower(found, vector, **how, **damped), OURS)
        velocity = tree.map(lambda v, d: at["momentum"] * v + d, state["velocity"], direction)
        updates = tree.map(lambda v: -at["lr"] * v, velocity)
        return updates, state | {"count": state["count"] + 1, "curvature": found, "velocity": velocity}

    def facts(state: State) -> dict[str, int]:
        return dict(Counter(type(block).__name__ for block in curvature.blocks))

    return Optimizer(init, update, facts=facts)


def registrable(
    layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]], objective: Objective
) -> dict[str, Layer]:
    """The layers that kfac-jax has a block for: called once, with parameters that no other layer has."""
    calls: Counter[str] = Counter()

    def tap(name: str, x: Array, y: Array) -> Array:
        calls[name] += 1
        return y

    eval_shape(lambda params, context: objective.value(params, context, tap=tap)[0], _shaped(shapes), objective.context)
    uses = Counter(name for layer in layers.values() for name in layer.parameters)
    return {
        name: layer
        for name, layer in layers.items()
        if layer.kind != "embedding" and calls[name] == 1 and all(uses[each] == 1 for each in layer.parameters)
    }


@contextmanager
def _understood(jax: str, library: Any) -> Iterator[None]:
    """Say of an error inside what kfac-jax traces which version that is."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"optimizer.jax={jax}: {library.__file__} cannot trace this loss ({str(error).partition(chr(10))[0]}); "
            "release 0.0.8 traces none on jax 0.10, a checkout does: optimizer.path=DIR"
        ) from error


def _shaped(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    return {name: ShapeDtypeStruct(shape, jnp.result_type(float)) for name, shape in shapes.items()}


def _averaged(average: type, curvature: Any, reduce: Any) -> Any:
    """The estimates with means over ranks in their moving averages, whose weights are the same on all."""
    leaves, structure = tree.flatten(curvature, is_leaf=lambda leaf: isinstance(leaf, average))
    own = {str(place): leaf.value for place, leaf in enumerate(leaves) if isinstance(leaf, average)}
    mean = reduce.exact(own)
    leaves = [
        dataclasses.replace(leaf, value=mean[str(place)]) if str(place) in mean else leaf
        for place, leaf in enumerate(leaves)
    ]
    return tree.unflatten(structure, leaves)


make = kfac_jax
