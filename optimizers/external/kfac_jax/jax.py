"""kfac-jax's curvature and preconditioning in jax."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct, eval_shape, lax, random, tree

from suite.contract import Layer, Objective, Reduce, UserError
from suite.declared import describe_settings
from suite.optimizers._base.jax import Optimizer, add_weight_decay, validate_settings
from suite.optimizers.external.imports import import_library
from suite.optimizers.external.kfac_jax import Settings

Tree = dict[str, Array]
State = dict[str, Any]
LABELS = {"empirical": "given", "sampled": "sampled"}
# orders of axes: torch's (out, in) and OIHW as kfac-jax's (in, out) and HWIO, and back
THEIRS, OURS = {2: (1, 0), 4: (2, 3, 1, 0)}, {2: (1, 0), 4: (3, 2, 0, 1)}


@describe_settings(Settings)
def kfac_jax(
    *, layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]], objective: Objective, **settings: Any
) -> Optimizer:
    """Heavy-ball momentum on the gradient that kfac-jax preconditioned.

    Args:
        layers: those of the model, by name.
        shapes: the parameters', by name.
        objective: the loss that kfac-jax traces.
        settings: by name, as listed below.

    Raises:
        UserError: for a setting that is unknown or out of range; where the library is missing or cannot trace the loss.
    """
    rule = KFACJax(validate_settings(Settings, "kfac_jax", settings), layers, shapes, objective)
    return Optimizer(rule.init, rule.update, settings=rule.settings.scheduled(), facts=rule.facts)


class KFACJax:
    """Functions of the optimizer, for one model, its loss and these settings."""

    def __init__(
        self,
        settings: Settings,
        layers: Mapping[str, Layer],
        shapes: Mapping[str, tuple[int, ...]],
        objective: Objective,
    ):
        self.settings, self.objective = settings, objective
        self.library: Any = import_library(f"optimizer.jax={settings.jax}", settings.jax, settings.path)
        self.samples = objective.context["batch"]["weight"].shape[0]
        self.layers = find_registrable_layers(layers, shapes, objective)
        self.weights = {layer.parameters[0] for layer in self.layers.values()}
        self.curvature = self.library.BlockDiagonalCurvature(self._loss, default_estimation_mode="fisher_empirical")
        example = eval_shape(lambda params: self._ordered(params, THEIRS), _shaped(shapes)), objective.context
        with explain_tracing_errors(settings.jax, self.library):
            self.curvature.finalize(example)

    def init(self, params: Tree) -> State:
        """kfac-jax's initial curvature, and a velocity of zero."""
        arguments = params, self.objective.context  # not read: it was traced before
        powers = {"exact_powers_to_cache": None, "approx_powers_to_cache": -1}
        return {
            "count": jnp.zeros((), jnp.int32),
            "curvature": self.curvature.init(random.key(0), arguments, **powers),  # nothing is drawn
            "velocity": tree.map(jnp.zeros_like, params),
        }

    def facts(self, state: State) -> dict[str, float]:
        """Number of blocks of each class."""
        return dict(Counter(type(block).__name__ for block in self.curvature.blocks))

    def update(
        self, grads: Tree, state: State, params: Tree, *, reduce: Reduce[Array], context: Tree
    ) -> tuple[Tree, State]:
        """Return the changes of the parameters, and the next state.

        Args:
            grads: by parameter.
            state: of the optimizer.
            params: by name.
            reduce: communication between ranks.
            context: the other inputs of the loss in this step.
        """
        hyper = state["hyper"]
        damped = {"identity_weight": hyper["damping"], "pmap_axis_name": None}
        estimate = average_curvature(self.library, self._estimate(state, params, context, damped), reduce)
        powers = {"exact_powers": None, "approx_powers": -1, "eigenvalues": False}
        estimate = lax.cond(
            state["count"] % self.settings.inverse_interval == 0,
            lambda old: self.curvature.update_cache(old, **powers, **damped),
            lambda old: old,
            estimate,
        )
        vector = self._ordered(add_weight_decay(grads, params, hyper["weight_decay"]), THEIRS)
        how = {"power": -1, "exact_power": False, "use_cached": True}
        direction = self._ordered(self.curvature.multiply_matpower(estimate, vector, **how, **damped), OURS)
        velocity = tree.map(lambda v, d: hyper["momentum"] * v + d, state["velocity"], direction)
        changes = tree.map(lambda v: -hyper["lr"] * v, velocity)
        return changes, state | {"count": state["count"] + 1, "curvature": estimate, "velocity": velocity}

    def _estimate(self, state: State, params: Tree, context: Tree, damped: Mapping[str, Any]) -> Any:
        """kfac-jax's curvature with the statistics of this rank's batch taken in."""
        with explain_tracing_errors(self.settings.jax, self.library):
            return self.curvature.update_curvature_matrix_estimate(
                state["curvature"],
                ema_old=state["hyper"]["factor_decay"],
                ema_new=1.0,
                batch_size=self.samples,
                rng=None,
                func_args=(self._ordered(params, THEIRS), context),
                **damped,
            )

    def _loss(self, params: Tree, context: Tree) -> Array:
        """Return the summed loss, as kfac-jax traces it; parameters in its order of axes."""

        def tap(name: str, x: Array, y: Array) -> Array:
            return self._registered(self.layers[name], x, y, params) if name in self.layers else y

        labels = LABELS[self.settings.fisher]
        total, _ = self.objective.value(self._ordered(params, OURS), context, labels=labels, tap=tap)
        # as a squared error with prediction 0 and target -½: whatever the loss is, 1 is its derivative by itself, times
        # √N for the √N by which kfac-jax divides what is empirical
        prediction = (total - lax.stop_gradient(total))[None]
        target = jnp.full_like(prediction, -0.5)
        self.library.register_squared_error_loss(prediction, target, weight=self.samples**0.5)
        return total

    def _registered(self, layer: Layer, x: Array, y: Array, params: Tree) -> Array:
        """A layer's output, registered with kfac-jax as that of the layer's kind."""
        values = [params[name] for name in layer.parameters]
        if layer.kind == "batchnorm":
            return self.library.register_scale_and_shift(y, x, *values)
        if layer.kind == "linear":
            return self.library.register_dense(y, x, *values, variant="dense" if x.ndim == 2 else "repeated_dense")
        numbers = lax.conv_dimension_numbers(x.shape, values[0].shape, ("NHWC", "HWIO", "NHWC"))
        window = {"window_strides": (layer.stride,) * 2, "padding": ((layer.padding,) * 2,) * 2}
        return self.library.register_conv2d(y, x, *values, dimension_numbers=numbers, **window)

    def _ordered(self, values: Tree, axes: Mapping[int, tuple[int, ...]]) -> Tree:
        """Return the values, with those of layers' weights in another order of axes."""
        return {
            name: value.transpose(axes[value.ndim]) if name in self.weights and value.ndim in axes else value
            for name, value in values.items()
        }


def find_registrable_layers(
    layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]], objective: Objective
) -> dict[str, Layer]:
    """Return the layers that kfac-jax has a block for: called once, with parameters that no other layer has."""
    calls: Counter[str] = Counter()

    def tap(name: str, x: Array, y: Array) -> Array:
        calls[name] += 1
        return y

    eval_shape(lambda params, context: objective.value(params, context, tap=tap)[0], _shaped(shapes), objective.context)
    uses = Counter(name for layer in layers.values() for name in layer.parameters)
    return {
        name: layer
        for name, layer in layers.items()
        if layer.kind != "embedding"
        and calls[name] == 1
        and all(uses[parameter] == 1 for parameter in layer.parameters)
    }


def _shaped(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    return {name: ShapeDtypeStruct(shape, jnp.result_type(float)) for name, shape in shapes.items()}


make = kfac_jax


@contextmanager
def explain_tracing_errors(module: str, library: Any) -> Iterator[None]:
    """Say of an error inside kfac-jax's tracing which version raised it.

    Args:
        module: the library's, as typed.
        library: the imported module.

    Raises:
        UserError: for an error inside the context.
    """
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"optimizer.jax={module}: {library.__file__} cannot trace this loss ({str(error).partition(chr(10))[0]}); "
            "release 0.0.8 traces none on jax 0.10, a checkout does: optimizer.path=DIR"
        ) from error


def average_curvature(library: Any, curvature: Any, reduce: Reduce[Array]) -> Any:
    """Return the curvature with the means over ranks of its moving averages, whose weights are the same on all ranks.

    Args:
        library: the imported module.
        curvature: kfac-jax's state, a tree.
        reduce: communication between ranks.
    """
    average = library.utils.WeightedMovingAverage
    leaves, structure = tree.flatten(curvature, is_leaf=lambda leaf: isinstance(leaf, average))
    values = {str(number): leaf.value for number, leaf in enumerate(leaves) if isinstance(leaf, average)}
    means = reduce.exact(values)
    leaves = [
        dataclasses.replace(leaf, value=means[str(number)]) if str(number) in means else leaf
        for number, leaf in enumerate(leaves)
    ]
    return tree.unflatten(structure, leaves)
