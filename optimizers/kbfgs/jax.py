"""K-BFGS in jax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import Layer
from suite.optimizers._base.jax import Optimizer, decayed, hyper
from suite.optimizers.kbfgs.plan import CURVATURE, POWELL, KBFGSPlan

Tree = dict[str, Array]
State = dict[str, Any]
Taps = Mapping[tuple[str, int], tuple[Array, Array]]


def kbfgs(
    *,
    layers: Mapping[str, Layer],
    shapes: Mapping[str, tuple[int, ...]],
    lr: float = 0.3,
    momentum: float = 0.9,
    damping: float = 0.3,
    factor_decay: float = 0.9,
    pair_decay: float = 0.9,
    weight_decay: float = 0.0,
    warm_start: int = 0,
) -> Optimizer:
    """Kronecker-factored BFGS; arguments as in `suite.optimizers.kbfgs.torch.KBFGS`.

    `shapes` are the parameters' shapes by name. Beside optax's two functions it offers `plan`, `observe`, `prepare`,
    `absorb` and `program`; call them as the torch class says.
    """
    plan = KBFGSPlan(layers, shapes, warm_start=warm_start)

    def init(params: Tree) -> State:
        kind = next(iter(params.values())).dtype
        values = {"lr": lr, "momentum": momentum, "damping": damping, "factor_decay": factor_decay}
        return {
            "hyper": hyper(**values, pair_decay=pair_decay, weight_decay=weight_decay),
            "average": jax.tree.map(jnp.zeros_like, params),
            "a": {name: jnp.zeros((size, size), kind) for name, size in plan.inputs.items()},
            "ha": {name: jnp.eye(size, dtype=kind) for name, size in plan.inputs.items()},
            "hg": {name: jnp.eye(size, dtype=kind) for name, size in plan.outputs.items()},
            "middle": {name: jnp.zeros(size, kind) for name, size in plan.inputs.items()},
            "slope": {name: jnp.zeros(size, kind) for name, size in plan.outputs.items()},
            "s": {name: jnp.zeros(size, kind) for name, size in plan.outputs.items()},
            "y": {name: jnp.zeros(size, kind) for name, size in plan.outputs.items()},
            "mass": jnp.zeros((), kind),
            "kept": jnp.zeros((), jnp.int32),
        }

    def observe(taps: Taps, weight: Array) -> Tree:
        sums = means(taps, weight)
        for (name, _), (x, _) in taps.items():
            if name in plan.inputs:
                key, value = f"{name}/factor", _factor(x, weight, plan.inputs[name])
                sums[key] = sums[key] + value if key in sums else value
        return sums

    def means(taps: Taps, weight: Array) -> Tree:
        sums: Tree = {}
        for (name, _), (x, dy) in taps.items():
            if name in plan.inputs:
                for key, value in _means(x, dy, weight, plan.inputs[name]).items():
                    sums[name + key] = sums[name + key] + value if name + key in sums else value
        return sums

    def prepare(statistics: Tree, state: State, *, reduce: Any) -> State:
        mixed = reduce.mean("factors", {name: statistics[f"{name}/factor"] for name in plan.linear})
        return state | {"a": mixed, "mass": jnp.ones_like(state["mass"])}

    def absorb(statistics: Tree, state: State, *, reduce: Any) -> State:
        decay = state["hyper"]["factor_decay"]
        mix = lambda old, new: decay * old + (1.0 - decay) * new  # noqa: E731
        mixed = reduce.mean("factors", {name: statistics[f"{name}/factor"] for name in plan.linear})
        found = reduce.exact({key: value for key, value in statistics.items() if not key.endswith("/factor")})
        return state | {
            "a": {name: mix(state["a"][name], mixed[name]) for name in plan.linear},
            "middle": {name: found[f"{name}/middle"] for name in plan.linear},
            "slope": {name: found[f"{name}/slope"] for name in plan.linear},
            "mass": mix(state["mass"], 1.0),
        }

    def damped(name: str, state: State) -> Array:
        """A + √λ I."""
        identity = jnp.eye(plan.inputs[name], dtype=state["mass"].dtype)
        return state["a"][name] / state["mass"] + jnp.sqrt(state["hyper"]["damping"]) * identity

    def program(name: str, state: State, *, reduce: Any) -> State:
        factor = damped(name, state)
        identity = jnp.eye(len(factor), dtype=factor.dtype)
        inverse = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(factor), True), identity)
        usable = jnp.isfinite(inverse).all()
        kept = state["kept"] + (~usable).astype(state["kept"].dtype)
        return state | {"ha": state["ha"] | {name: jnp.where(usable, inverse, state["ha"][name])}, "kept": kept}

    def whole(name: str, values: Tree) -> Array:
        """Weight and bias of a layer side by side, or what belongs to them."""
        weight, *bias = layers[name].parameters
        matrix = values[weight].reshape(len(values[weight]), -1)
        return jnp.concatenate([matrix, *(values[b][:, None] for b in bias)], 1)

    def update(grads: Tree, state: State, params: Tree, *, evaluate: Any, reduce: Any) -> tuple[Tree, State]:
        at = state["hyper"]
        mix = lambda decay, old, new: decay * old + (1.0 - decay) * new  # noqa: E731
        average = jax.tree.map(
            lambda old, g: mix(at["momentum"], old, g), state["average"], decayed(grads, params, at["weight_decay"])
        )
        directions = dict(average)
        for name in plan.linear:
            found = state["hg"][name] @ whole(name, average) @ state["ha"][name]
            weight, *bias = layers[name].parameters
            directions[weight] = found[:, : params[weight][0].size].reshape(params[weight].shape)
            directions |= {b: found[:, -1] for b in bias}
        updates = jax.tree.map(lambda d: -at["lr"] * d, directions)
        state = state | {"average": average}
        if not plan.linear:
            return updates, state
        new = {name: value + updates[name] for name, value in params.items()}
        after = reduce.exact(evaluate(new, observe=means)[2])
        follows: dict[str, Tree] = {"s": {}, "y": {}, "hg": {}, "ha": {}}
        kept = state["kept"]
        for name in plan.linear:
            a, slope, ha, hg = (state[part][name] for part in ("middle", "slope", "ha", "hg"))
            moved = whole(name, params) @ a - whole(name, new) @ after[f"{name}/middle"]
            s = follows["s"][name] = mix(at["pair_decay"], state["s"][name], moved)
            y = follows["y"][name] = mix(at["pair_decay"], state["y"][name], slope - after[f"{name}/slope"])
            acted = ha @ a
            pair = _double_damping(hg, s, y, jnp.sqrt(at["damping"]))
            follows["hg"][name], first = _bfgs(hg, *pair, slope)
            follows["ha"][name], second = _bfgs(ha, acted, damped(name, state) @ acted, a)
            kept = kept + (~first).astype(kept.dtype) + (~second).astype(kept.dtype)
        return updates, state | follows | {"kept": kept}

    offers = {"observe": observe, "prepare": prepare, "absorb": absorb, "program": program}
    return Optimizer(init, update, plan=plan, facts=lambda state: {"kept": int(state["kept"])}, **offers)


def _means(x: Array, dy: Array, weight: Array, size: int) -> Tree:
    """Of one call of a layer, Σ â (size,) and Σ ĝ (out,); dy holds the samples' weights already."""
    middle = weight @ x.reshape(len(x), -1, x.shape[-1]).mean(1)
    if size > x.shape[-1]:
        middle = jnp.concatenate([middle, weight.sum()[None]])
    return {"/middle": middle, "/slope": dy.reshape(len(dy), -1, dy.shape[-1]).mean(1).sum(0)}


def _factor(x: Array, weight: Array, size: int) -> Array:
    """Of one call of a layer, Σ a aᵀ (size, size)."""
    root = jnp.sqrt(weight)[:, None, None]
    flat = x.reshape(len(x), -1, x.shape[-1]) * root
    if size > x.shape[-1]:
        flat = jnp.concatenate([flat, jnp.broadcast_to(root, (*flat.shape[:2], 1))], 2)
    rows = flat.reshape(-1, size)
    return rows.T @ rows


def _double_damping(h: Array, s: Array, y: Array, ridge: Array) -> tuple[Array, Array]:
    """The pair, s and y moved towards Hy and s so far that sᵀy ≥ μ₁ yᵀHy and sᵀy ≥ √λ sᵀs."""
    hy = h @ y
    sy, yhy = s @ y, y @ hy
    theta = jnp.where(sy < POWELL * yhy, (1.0 - POWELL) * yhy / (yhy - sy), 1.0)
    s = theta * s + (1.0 - theta) * hy
    sy, ss = s @ y, s @ s
    theta = jnp.where(sy < ridge * ss, (1.0 - ridge) * ss / (ss - sy), 1.0)
    return s, theta * y + (1.0 - theta) * s


def _bfgs(h: Array, s: Array, y: Array, slope: Array) -> tuple[Array, Array]:
    """BFGS of an inverse, and whether the pair was used."""
    curvature = s @ y
    usable = curvature > CURVATURE * (s @ s) * jnp.linalg.norm(slope)
    rho = 1.0 / jnp.where(usable, curvature, 1.0)
    hy = h @ y
    new = h + jnp.outer(s, (rho**2 * (y @ hy) + rho) * s - rho * hy) - jnp.outer(rho * hy, s)
    usable &= jnp.isfinite(new).all()
    return jnp.where(usable, new, h), usable


make = kbfgs
