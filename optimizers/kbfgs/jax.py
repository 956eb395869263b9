"""K-BFGS in jax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import Layer
from suite.optimizers._base.jax import Optimizer, decayed, hyper
from suite.optimizers._linalg.jax import finite
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
    count = {key: len(names) for key, names in plan.stacks.items()}

    def identities(number: int, size: int, kind: Any) -> Array:
        return jnp.tile(jnp.eye(size, dtype=kind), (number, 1, 1))

    def init(params: Tree) -> State:
        kind = next(iter(params.values())).dtype
        values = {"lr": lr, "momentum": momentum, "damping": damping, "factor_decay": factor_decay}
        return {
            "hyper": hyper(**values, pair_decay=pair_decay, weight_decay=weight_decay),
            "average": jax.tree.map(jnp.zeros_like, params),
            "a": {key: jnp.zeros((count[key], size, size), kind) for key, size in plan.inputs.items()},
            "ha": {key: identities(count[key], size, kind) for key, size in plan.inputs.items()},
            "hg": {key: identities(count[key], size, kind) for key, size in plan.outputs.items()},
            "middle": {key: jnp.zeros((count[key], size), kind) for key, size in plan.inputs.items()},
            "slope": {key: jnp.zeros((count[key], size), kind) for key, size in plan.outputs.items()},
            "s": {key: jnp.zeros((count[key], size), kind) for key, size in plan.outputs.items()},
            "y": {key: jnp.zeros((count[key], size), kind) for key, size in plan.outputs.items()},
            "mass": jnp.zeros((), kind),
            "prepared": jnp.zeros((), bool),
            "kept": jnp.zeros((), jnp.int32),
        }

    def observe(taps: Taps, weight: Array) -> Tree:
        sums = means(taps, weight)
        for name, (x, _) in positions(taps).items():
            sums[f"{name}/factor"] = _factor(x, weight, plan.inputs[plan.place[name]])
        return sums

    def means(taps: Taps, weight: Array) -> Tree:
        sums: Tree = {}
        for name, (x, dy) in positions(taps).items():
            found = _means(x, dy, weight, plan.inputs[plan.place[name]])
            sums |= {name + end: value for end, value in found.items()}
        return sums

    def positions(taps: Taps) -> dict[str, tuple[Array, Array]]:
        """Of each covered layer x (N, T, in) and dy (N, T, out), the positions of its calls one after another."""
        calls: dict[str, list[tuple[Array, Array]]] = {}
        for (name, _), pair in taps.items():
            if name in plan.place:
                x, dy = (value.reshape(len(value), -1, value.shape[-1]) for value in pair)
                calls.setdefault(name, []).append((x, dy))
        joined = {name: zip(*pairs, strict=True) for name, pairs in calls.items()}
        return {name: (_side_by_side(x), _side_by_side(dy)) for name, (x, dy) in joined.items()}

    def stacked(statistics: Tree, kind: str) -> Tree:
        """One kind of statistics, a stack of layers by key."""
        return {key: jnp.stack([statistics[f"{name}/{kind}"] for name in names]) for key, names in plan.stacks.items()}

    def prepare(statistics: Tree, state: State, *, reduce: Any) -> State:
        mixed = reduce.exact(stacked(statistics, "factor"))
        return state | {"a": mixed, "mass": jnp.ones_like(state["mass"]), "prepared": jnp.ones_like(state["prepared"])}

    def absorb(statistics: Tree, state: State, *, reduce: Any) -> State:
        decay = state["hyper"]["factor_decay"]
        mix = lambda old, new: decay * old + (1.0 - decay) * new  # noqa: E731
        mixed = reduce.mean("factors", stacked(statistics, "factor"))
        found = reduce.exact({name: value for name, value in statistics.items() if not name.endswith("/factor")})
        return state | {
            "a": {key: jnp.where(state["prepared"], old, mix(old, mixed[key])) for key, old in state["a"].items()},
            "prepared": jnp.zeros_like(state["prepared"]),
            "middle": stacked(found, "middle"),
            "slope": stacked(found, "slope"),
            "mass": mix(state["mass"], 1.0),
        }

    def damped(key: str, state: State) -> Array:
        """A + √λ I of a stack."""
        identity = jnp.eye(plan.inputs[key], dtype=state["mass"].dtype)
        return state["a"][key] / state["mass"] + jnp.sqrt(state["hyper"]["damping"]) * identity

    def program(name: str, state: State, *, reduce: Any) -> State:
        keys, identity = plan.equal[name], jnp.eye(int(name), dtype=state["mass"].dtype)
        factor = jnp.concatenate([damped(key, state) for key in keys])
        # one by one: with several CPU devices in a process, jaxlib 0.10.2 now and then hangs in batched factorisations
        inverse = jax.lax.map(lambda m: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(m), True), identity), factor)
        usable = finite(inverse)
        inverse = jnp.where(usable, inverse, jnp.concatenate([state["ha"][key] for key in keys]))
        ha, begin = dict(state["ha"]), 0
        for key in keys:
            ha[key], begin = inverse[begin : begin + count[key]], begin + count[key]
        return state | {"ha": ha, "kept": state["kept"] + (~usable).sum(dtype=state["kept"].dtype)}

    def whole(key: str, values: Tree) -> Array:
        """Weights and biases of a stack side by side, or what belongs to them: (count, out, in)."""
        kinds = zip(*(layers[name].parameters for name in plan.stacks[key]), strict=True)
        stacks = [jnp.stack([values[name] for name in names]) for names in kinds]
        return jnp.concatenate([stack.reshape(*stack.shape[:2], -1) for stack in stacks], 2)

    def update(grads: Tree, state: State, params: Tree, *, evaluate: Any, reduce: Any) -> tuple[Tree, State]:
        at = state["hyper"]
        mix = lambda decay, old, new: decay * old + (1.0 - decay) * new  # noqa: E731
        average = jax.tree.map(
            lambda old, g: mix(at["momentum"], old, g), state["average"], decayed(grads, params, at["weight_decay"])
        )
        directions = dict(average)
        for key, names in plan.stacks.items():
            found = state["hg"][key] @ whole(key, average) @ state["ha"][key]
            for row, name in enumerate(names):
                weight, *bias = layers[name].parameters
                directions[weight] = found[row, :, : params[weight][0].size].reshape(params[weight].shape)
                directions |= {b: found[row, :, -1] for b in bias}
        updates = jax.tree.map(lambda d: -at["lr"] * d, directions)
        state = state | {"average": average}
        if not plan.stacks:
            return updates, state
        new = {name: value + updates[name] for name, value in params.items()}
        after = reduce.exact(evaluate(new, observe=means)[2])
        middle, slopes = stacked(after, "middle"), stacked(after, "slope")
        follows: dict[str, Tree] = {"s": {}, "y": {}, "hg": {}, "ha": {}}
        kept = state["kept"]
        for key in plan.stacks:
            a, slope, ha, hg = (state[part][key] for part in ("middle", "slope", "ha", "hg"))
            moved = _outputs(whole(key, params), a) - _outputs(whole(key, new), middle[key])
            s = follows["s"][key] = mix(at["pair_decay"], state["s"][key], moved)
            y = follows["y"][key] = mix(at["pair_decay"], state["y"][key], slope - slopes[key])
            acted = _outputs(ha, a)
            pair = _double_damping(hg, s, y, jnp.sqrt(at["damping"]))
            follows["hg"][key], first = _bfgs(hg, *pair, slope)
            follows["ha"][key], second = _bfgs(ha, acted, _outputs(damped(key, state), acted), a)
            kept = kept + (~first).sum(dtype=kept.dtype) + (~second).sum(dtype=kept.dtype)
        return updates, state | follows | {"kept": kept}

    offers = {"observe": observe, "prepare": prepare, "absorb": absorb, "program": program}
    return Optimizer(init, update, plan=plan, facts=lambda state: {"kept": int(state["kept"])}, **offers)


def _side_by_side(calls: tuple[Array, ...]) -> Array:
    """The positions (N, T, …) of one call as they are, which compiles to nothing, or those of several."""
    return calls[0] if len(calls) == 1 else jnp.concatenate(calls, 1)


def _means(x: Array, dy: Array, weight: Array, size: int) -> Tree:
    """Σ â (size,) and Σ ĝ (out,) of a layer; dy holds the samples' weights already."""
    middle = (weight[:, None] * x.mean(1)).sum(0)
    if size > x.shape[-1]:
        middle = jnp.concatenate([middle, weight.sum()[None]])
    return {"/middle": middle, "/slope": dy.mean(1).sum(0)}


def _factor(x: Array, weight: Array, size: int) -> Array:
    """Σ a aᵀ (size, size) of a layer."""
    root = jnp.sqrt(weight)[:, None, None]
    flat = x * root
    if size > x.shape[-1]:
        flat = jnp.concatenate([flat, jnp.broadcast_to(root, (*flat.shape[:2], 1))], 2)
    rows = flat.reshape(-1, size)
    return rows.T @ rows


def _outputs(matrix: Array, vector: Array) -> Array:
    """Matrix-vector products of a stack: (count, m, n) and (count, n) to (count, m).

    As sums: XLA compiles every product with a vector on a CPU by itself, for three times as long.
    """
    return (matrix * vector[:, None, :]).sum(-1)


def _dot(one: Array, other: Array) -> Array:
    """Inner products of a stack, (count, 1)."""
    return (one * other).sum(1, keepdims=True)


def _double_damping(h: Array, s: Array, y: Array, ridge: Array) -> tuple[Array, Array]:
    """The pairs (count, n), s and y moved towards Hy and s so far that sᵀy ≥ μ₁ yᵀHy and sᵀy ≥ √λ sᵀs."""
    hy = _outputs(h, y)
    sy, yhy = _dot(s, y), _dot(y, hy)
    theta = jnp.where(sy < POWELL * yhy, (1.0 - POWELL) * yhy / (yhy - sy), 1.0)
    s = theta * s + (1.0 - theta) * hy
    sy, ss = _dot(s, y), _dot(s, s)
    theta = jnp.where(sy < ridge * ss, (1.0 - ridge) * ss / (ss - sy), 1.0)
    return s, theta * y + (1.0 - theta) * s


def _bfgs(h: Array, s: Array, y: Array, slope: Array) -> tuple[Array, Array]:
    """BFGS of inverses (count, n, n), and which pairs were used (count, 1, 1)."""
    curvature = _dot(s, y)
    usable = curvature > CURVATURE * _dot(s, s) * jnp.linalg.norm(slope, axis=1, keepdims=True)
    rho = 1.0 / jnp.where(usable, curvature, 1.0)
    hy = _outputs(h, y)
    scaled = (rho**2 * _dot(y, hy) + rho) * s - rho * hy
    new = h + s[:, :, None] * scaled[:, None] - (rho * hy)[:, :, None] * s[:, None]
    used = usable[:, :, None] & finite(new)
    return jnp.where(used, new, h), used


make = kbfgs
