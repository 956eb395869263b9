"""Base of the jax optimizers: an optax transformation with optional parts beside `init` and `update`.

The state is a dictionary. `state["hyper"]` has the hyper-parameters that may change while training, as scalars; edit
them like torch's `param_groups`. State below a key `owned` is split among the ranks along its leading axis.
"""

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.core import Tracer

from suite.contract import Layer, Plan, Rows, UserError
from suite.declared import Declared
from suite.optimizers._base.jax_mesh import call_with_auto_axes, restore_axes
from suite.optimizers._base.jax_shapes import Shapes, check_gradients, check_parameters, check_shapes

Values = TypeVar("Values", bound=Declared)
LONGEST = 10**6  # largest number of steps in the table of programs of an update without an engine
NARROW = (jnp.bfloat16, jnp.float16)  # parameters of these types have state in float32


class Optimizer(optax.GradientTransformationExtraArgs):
    """An optax transformation with the further parts of `suite.contract`: plan, observe, absorb, program, host, reset.

    It remains a tuple of two functions for `optax.chain`, which passes extra arguments on, but lacks the further parts.

    The `init` and `update` that are passed in take parameters by name, `{"layer.weight": array}`. Those of the result
    take any tree and name its leaves by their path: `{"layer": {"weight": array}}` is equal to the above. Parameters
    and gradients in bfloat16 or float16 are passed on in float32, so that all state is in float32.
    """

    plan: Plan
    layers: Mapping[str, Layer]  # the layers that `observe` computes statistics of
    observe: Callable[..., Any]
    prepare: Callable[..., Any]
    absorb: Callable[..., Any]
    collect: Callable[..., Any]
    program: Callable[..., Any]
    host: Callable[..., Any]
    drain: Callable[[], None]
    forward_params: Callable[..., Any]
    evaluated_params: Callable[..., Any]
    reset: Callable[..., Any]
    facts: Callable[..., dict[str, float]]

    def __new__(
        cls,
        init: Callable[..., Any],
        update: Callable[..., Any],
        *,
        settings: Mapping[str, Any] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        **offers: Any,
    ) -> "Optimizer":
        """Make an optimizer from two optax functions and the parts of the contract that it lists in NEEDS.

        Args:
            init: parameters to state.
            update: (gradients, state, parameters) to (updates, state); takes the inputs listed in NEEDS as keyword
                arguments.
            settings: hyper-parameters that may change while training; they are added to the state as `hyper`. A jax
                array, as `optax.inject_hyperparams` passes it, replaces the state's value in each update. A schedule, a
                function of the number of updates before, does so, too.
            shapes: that the optimizer was planned for, by name; None: any.
            offers: the further parts, by name.

        Raises:
            UserError: a hyper-parameter is rounded to bfloat16 or float16.
        """
        values_by_name = dict(settings or {})
        injected = {name: value for name, value in values_by_name.items() if isinstance(value, Array)}
        schedules: dict[str, Callable[[Any], Any]] = {n: v for n, v in values_by_name.items() if callable(v)}
        if narrow := [name for name, value in injected.items() if value.dtype in NARROW]:
            raise UserError(
                f"{', '.join(narrow)}: rounded to {injected[narrow[0]].dtype.name}, in which 0.999 is 1; use "
                "optax.inject_hyperparams(…, hyperparam_dtype=jnp.float32)"
            )
        axes = Shapes(offers.get("layers", {}))
        parameters = inspect.signature(update).parameters
        everything = any(kind.kind is inspect.Parameter.VAR_KEYWORD for kind in parameters.values())

        def begin(params: Any) -> Any:
            values = name_leaves(params)
            check_parameters(values)
            if shapes is not None:
                check_shapes(values, shapes)
            state, kind = init(axes.unify(values)), find_type(values)
            hyper = values_by_name | {name: schedule(0) for name, schedule in schedules.items()}
            counted = {"count": jnp.zeros((), jnp.int32)} if schedules else {}
            return {"hyper": make_hyperparameters(kind, **hyper)} | counted | state if values_by_name else state

        def change(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
            if params is None:
                raise UserError("update(grads, state): the parameters are missing; call update(grads, state, params)")
            values, structure = name_leaves(params), jax.tree.structure(params)
            counted = {"count": state["count"] + 1} if schedules else {}
            if now := {**injected} | {name: schedule(state["count"]) for name, schedule in schedules.items()}:
                state = state | {"hyper": state["hyper"] | make_hyperparameters(find_type(values), **now)}
            # other members of an optax.chain may take further arguments
            known = {name: value for name, value in extra.items() if everything or name in parameters}
            functions = {name: value for name, value in known.items() if callable(value)}
            arrays = {name: value for name, value in known.items() if name not in functions}

            def unnamed(by_name: dict[str, Any]) -> Any:
                return jax.tree.unflatten(structure, [by_name[name] for name in values])

            given = name_leaves(updates), state, values, arrays
            check_gradients(given[0], values)
            if evaluate := functions.get("evaluate"):
                explicit = restore_axes(evaluate, *given, like=params)
                functions["evaluate"] = lambda w, **options: explicit(unnamed(axes.restore(w, values)), **options)

            def compute_changes(grads: Any, state: Any, values: Any, arrays: Any) -> tuple[Any, Any]:
                with full_precision():
                    changes, new = update(axes.unify(grads), state, axes.unify(values), **arrays, **functions)
                return axes.restore(changes, values), keep_types(new, state)

            changes, state = call_with_auto_axes(compute_changes, *given, like=(values, state))
            return unnamed(changes), state | counted

        self = super().__new__(cls, begin, change)
        self.plan = Plan()
        self.__dict__.update(offers)
        self.forward_params = lambda params, *_: params
        if draw := offers.get("forward_params"):

            def draw_weights(params: Any, *arguments: Any) -> Any:
                return axes.restore(draw(axes.unify(params), *arguments), params)

            self.forward_params = lambda params, *rest: call_with_auto_axes(draw_weights, params, *rest, like=params)
        return self


def name_leaves(values: Any) -> dict[str, Any]:
    """Name a tree's leaves by path, such as `layer.weight`; bfloat16 and float16 in float32. `Rows` are leaves.

    Raises:
        UserError: if two leaves have the same path, or one is no array.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(values, is_leaf=lambda value: isinstance(value, Rows))
    for path, value in leaves:
        if not isinstance(value, Rows) and not hasattr(value, "dtype"):
            raise UserError(
                f"{_join_path(path)} is a {type(value).__name__} and no array; make it one with jnp.asarray, or leave "
                "it out, as equinox.filter(model, equinox.is_inexact_array) does"
            )
    by_path = {_join_path(path): value if isinstance(value, Rows) else widen_floats(value) for path, value in leaves}
    if len(by_path) < len(leaves):
        raise UserError("two parameters have the same path, as in {'a.b': …, 'a': {'b': …}}; rename one of them")
    return by_path


def _join_path(path: tuple[Any, ...]) -> str:
    """Return a leaf's path in words, without the `.value` of flax's variables, which gradients of nnx do not have."""
    last = len(path) > 1 and path[-1] == jax.tree_util.GetAttrKey("value")
    return jax.tree_util.keystr(path[:-1] if last else path, simple=True, separator=".")


def full_precision() -> contextlib.AbstractContextManager[Any]:
    """A context in which products are in float32, not in TF32 or bfloat16, unless a precision was chosen outside."""
    config: Any = jax.config  # whose types lack its flags
    chosen = config.jax_default_matmul_precision
    return contextlib.nullcontext() if chosen else jax.default_matmul_precision("highest")


def find_type(values: Mapping[str, Any]) -> Any:
    """Return the floating-point type of the hyper-parameters: that of the parameters, at least float32."""
    kinds = [value.dtype for value in values.values() if jnp.issubdtype(value.dtype, jnp.floating)]
    return jnp.result_type(*kinds) if kinds else jnp.result_type(float)


def widen_type(kind: Any) -> Any:
    """Return the type of the state and of the update of a parameter of type `kind`."""
    return jnp.float32 if kind in NARROW else kind


def widen_floats(value: Array) -> Array:
    """Return bfloat16 and float16 values, or their shapes, as float32, and all others unchanged."""
    cast: Any = value.update if isinstance(value, jax.ShapeDtypeStruct) else value.astype
    return cast(dtype=jnp.float32) if value.dtype in NARROW else value


def keep_types(new: Any, old: Any) -> Any:
    """Return a state whose arrays have the types that they had; those of the hyper-parameters are the widest."""
    kinds = {path: value.dtype for path, value in jax.tree_util.tree_leaves_with_path(old)}
    return jax.tree_util.tree_map_with_path(lambda path, value: value.astype(kinds.get(path, value.dtype)), new)


def build_for_shapes(build: Callable[[Mapping[str, Any]], Optimizer], shapes: Mapping[str, Any] | None) -> Optimizer:
    """Build an optimizer for parameters of given shapes.

    Args:
        build: shapes by parameter name to the optimizer.
        shapes: the shapes; None: the optimizer has only `init` and `update`, which take them from the parameters.
    """
    if shapes is not None:
        return build(shapes)

    def of(params: Any) -> Optimizer:
        return build({name: value.shape for name, value in params.items()})

    def update(grads: Any, state: Any, params: Any, **extra: Any) -> tuple[Any, Any]:
        return of(params).update(grads, state, params, **extra)

    return Optimizer(lambda params: of(params).init(params), update)


def validate_settings(declared: type[Values], optimizer: str, values: Mapping[str, Any], **arguments: Any) -> Values:
    """Check an optimizer's settings. Those that may change while training may be arrays or schedules, not checked here.

    Args:
        declared: the class that declares the optimizer's settings.
        optimizer: the optimizer's name, for messages.
        values: the given settings, by name.
        arguments: other arguments that the step is compiled for, such as `world`.

    Returns:
        All settings, with the defaults of those that are not given.

    Raises:
        UserError: if a setting is unknown or out of range, or is traced although the step is compiled for its value.
    """
    fixed = declared.names(scheduled=False)
    compiled_for = arguments | {name: value for name, value in values.items() if name in fixed}
    if static := [name for name, value in compiled_for.items() if is_traced(value)]:
        listed = "".join(f'"{name}", ' for name in static).strip()
        raise UserError(
            f"{optimizer}: {', '.join(static)}: cannot be traced, because the step is compiled for one value; with "
            f"optax.inject_hyperparams use inject_hyperparams({optimizer}, static_args=({listed}))"
        )
    arrays = {
        name: value
        for name, value in values.items()
        if name not in fixed and (isinstance(value, Array) or callable(value))
    }
    numbers = {
        name: value.item() if isinstance(value, Array | np.ndarray | np.generic) else value
        for name, value in values.items()
        if name not in arrays
    }
    return declared.given(numbers).model_copy(update=arrays)


def list_schedulable(settings: Declared) -> dict[str, Any]:
    """List the settings that may change while training, if the state has a velocity only with momentum.

    A momentum of 0 is left out, because it may not change (see `check_momentum`).
    """
    values = settings.scheduled()
    return {name: value for name, value in values.items() if name != "momentum" or may_be_nonzero(value)}


def is_traced(value: Any) -> bool:
    """Return whether a setting's value is traced, and so is unknown while a step is compiled."""
    return isinstance(value, Tracer)


def may_be_nonzero(value: Any) -> bool:
    """Return whether a setting is not 0, or is an array, whose value may change."""
    return isinstance(value, Array) or callable(value) or bool(value)


def make_statistics_error(optimizer: str) -> UserError:
    """Return the error for an update that lacks the layers' statistics."""
    return UserError(
        f"{optimizer} needs statistics of its layers beside the gradient; use 'from suite.engine.jax_alone import "
        "observing', then loss, grads, statistics = observing(loss_of, optimizer)(params, state, batch) and "
        "update(grads, state, params, statistics=statistics)"
    )


def one_rank(optimizer: str, world: int) -> None:
    """Check that an optimizer without an engine was made for one rank.

    Raises:
        UserError: if `world` is not 1.
    """
    if world != 1:
        raise UserError(
            f"{optimizer}(world={world}): only the suite's engine shares work among ranks; leave world out, and each "
            "device does all of it"
        )


def after_programs(
    programs: Callable[[int], tuple[str, ...]],
    cycle: tuple[int, int],
    state: Any,
    step: Array,
    program: Callable[[str, Any], Any],
) -> Any:
    """Run the programs of a step, in an update that is compiled once for all steps.

    Args:
        programs: a step's number to the names of its programs, in order.
        cycle: (begin, period): from step `begin` on, the programs repeat every `period` steps.
        state: the optimizer's state.
        step: the step's number, counted from 0; may be traced.
        program: a program's name and the state to the new state.

    Returns:
        The state after the programs.

    Raises:
        UserError: if begin + period exceeds `LONGEST`.
    """
    begin, period = cycle
    if begin + period > LONGEST:
        raise UserError(
            f"an interval or a start of {max(cycle):,} steps is too long for a compiled step, which has a table of all "
            f"steps until the programs repeat; set at most {LONGEST:,} in all"
        )
    steps = [programs(number) for number in range(begin + period)]
    kinds = list(dict.fromkeys(steps))

    def run(names: tuple[str, ...], state: Any) -> Any:
        for name in names:  # one after another: see `suite.engine.jax_step.Maths.refresh`
            state = lax.optimization_barrier(program(name, state))
        return state

    branches = [lambda state, names=names: run(names, state) for names in kinds]
    chosen = jnp.asarray([kinds.index(names) for names in steps])
    place = jnp.where(step < begin, step, begin + (step - begin) % period)
    return lax.switch(chosen[place], branches, state)


def make_hyperparameters(kind: Any = None, /, **values: float | Array) -> dict[str, Array]:
    """Hyper-parameters as state: scalars of a floating-point type, by default jax's default."""
    return {name: jnp.asarray(value, kind or jnp.result_type(float)) for name, value in values.items()}


def check_momentum(settings: dict[str, Array]) -> None:
    """Check that the momentum of an optimizer that started with momentum 0, and so without a velocity, has not changed.

    Args:
        settings: the hyper-parameters of a step.

    Raises:
        UserError: if the hyper-parameters contain a momentum.
    """
    if "momentum" in settings:
        raise UserError(
            "momentum: it started at 0, so that the state has no velocity; begin with a small one, momentum=1e-6"
        )


def densify_gradients(grads: dict[str, Any], params: dict[str, Array]) -> dict[str, Array]:
    """Return the gradients as arrays; `Rows`, the gradient of a table, is expanded with zeros."""
    return {
        name: jnp.zeros_like(params[name]).at[grad.ids].add(grad.values) if isinstance(grad, Rows) else grad
        for name, grad in grads.items()
    }


def merge_rows(rows: Rows) -> Rows:
    """Sum the rows of equal ids, so that rows can be squared; padded to (m,) and (m, d) with zeros at id 0."""
    ids, place = jnp.unique(rows.ids, size=len(rows.ids), fill_value=0, return_inverse=True)
    return Rows(ids, jnp.zeros_like(rows.values).at[place.reshape(-1)].add(rows.values))


def add_weight_decay(
    grads: dict[str, Array], params: dict[str, Array], weight_decay: Array | float
) -> dict[str, Array]:
    """Gradients with L2 decay added to matrices and filters; vectors (biases, normalisation) have none.

    Goyal et al. 2017, §5.3: no decay on batch normalisation's coefficients.
    """
    return {name: grad + weight_decay * params[name] if grad.ndim > 1 else grad for name, grad in grads.items()}


def reset_blocks(state: dict[str, Any], moved: dict[str, Array], *names: str, start: float = 0.0) -> dict[str, Any]:
    """Set state to its start for blocks of parameters that have moved.

    Args:
        state: the optimizer's state.
        moved: (n,) booleans by parameter, for a parameter of shape (n, …).
        names: the entries of the state to change, each a dictionary by parameter.
        start: what they start at.

    Returns:
        The new state.
    """

    def cleared(value: Array, mask: Array) -> Array:
        return jnp.where(mask.reshape(-1, *[1] * (value.ndim - 1)), start, value)

    return state | {
        name: state[name] | {parameter: cleared(state[name][parameter], mask) for parameter, mask in moved.items()}
        for name in names
    }
