"""The shape of a jax optimizer: an optax transformation that may offer more than `init` and `update`.

Its state is a dictionary. `state["hyper"]` holds the hyper-parameters that may change while it runs, as scalars: edit
them as you would torch's `param_groups`. Whatever lies below a key `owned` is split among the ranks by its leading
axis.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from suite.contract import Plan, Rows, UserError


class Optimizer(optax.GradientTransformationExtraArgs):
    """An optax transformation with the further parts of `suite.contract`: plan, observe, absorb, program, host, reset.

    Still the two-field tuple that `optax.chain` takes; a chain keeps the extra arguments but loses the further parts.
    """

    plan: Plan
    observe: Callable[..., Any]
    prepare: Callable[..., Any]
    absorb: Callable[..., Any]
    program: Callable[..., Any]
    host: Callable[..., Any]
    drain: Callable[[], None]
    forward_params: Callable[..., Any]
    reset: Callable[..., Any]
    facts: Callable[..., dict[str, float]]

    def __new__(cls, init: Callable[..., Any], update: Callable[..., Any], **offers: Any) -> "Optimizer":
        """Take the two optax functions, and by name whatever the optimizer lists in NEEDS."""
        self = super().__new__(cls, init, update)
        self.plan = Plan()
        self.__dict__.update(offers)
        return self


def hyper(**values: float) -> dict[str, Array]:
    """Hyper-parameters as state: scalars of the default floating-point type."""
    return {name: jnp.asarray(value, jnp.result_type(float)) for name, value in values.items()}


def still(at: dict[str, Array]) -> None:
    """Make sure that nobody gave a momentum to what began without one, and so holds no velocity.

    Raises:
        UserError: where `at`, the hyper-parameters of a step, holds one.
    """
    if "momentum" in at:
        raise UserError("momentum: no velocity is held, as it began at 0; begin with a small one, momentum=1e-6")


def local(value: Array) -> np.ndarray:
    """This process's slices of an array that is split by its leading axis, on the host, as a copy."""
    return np.concatenate([np.asarray(shard.data) for shard in _slices(value)])


def with_local(value: Array, slices: np.ndarray) -> Array:
    """The same array with other slices of this process, as `local` gives them."""
    own = _slices(value)
    parts = np.split(slices.astype(value.dtype), len(own))
    placed = [jax.device_put(part, shard.device) for part, shard in zip(parts, own, strict=True)]
    return jax.make_array_from_single_device_arrays(value.shape, value.sharding, placed)


def _slices(value: Array) -> list[Any]:
    return sorted(value.addressable_shards, key=lambda shard: shard.index[0].start or 0)


def dense(grads: dict[str, Any], params: dict[str, Array]) -> dict[str, Array]:
    """The gradients; that of a table, which is `Rows`, is filled up with zeros."""
    return {
        name: jnp.zeros_like(params[name]).at[grad.ids].add(grad.values) if isinstance(grad, Rows) else grad
        for name, grad in grads.items()
    }


def merged(rows: Rows) -> Rows:
    """The same gradient with each id once, as squares need it; still (m,) and (m, d), filled up with zeros at id 0."""
    ids, place = jnp.unique(rows.ids, size=len(rows.ids), fill_value=0, return_inverse=True)
    return Rows(ids, jnp.zeros_like(rows.values).at[place.reshape(-1)].add(rows.values))


def decayed(grads: dict[str, Array], params: dict[str, Array], weight_decay: Array | float) -> dict[str, Array]:
    """Gradients with L2 decay added to matrices and filters; vectors (biases, normalisation) are left alone.

    Goyal et al. 2017, §5.3: no decay on batch normalisation's coefficients.
    """
    return {name: grad + weight_decay * params[name] if grad.ndim > 1 else grad for name, grad in grads.items()}


def forget(state: dict[str, Any], moved: dict[str, Array], *names: str) -> dict[str, Any]:
    """The state with zeros for some blocks of parameters, {parameter (n, …): (n,) booleans}, in the trees `names`."""

    def cleared(value: Array, mask: Array) -> Array:
        return jnp.where(mask.reshape(-1, *[1] * (value.ndim - 1)), 0, value)

    return state | {
        name: state[name] | {at: cleared(state[name][at], mask) for at, mask in moved.items()} for name in names
    }
