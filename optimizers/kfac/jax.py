"""K-FAC in jax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import Layer
from suite.optimizers._base.jax import Optimizer, decayed, hyper
from suite.optimizers.kfac.plan import KFACPlan

Tree = dict[str, Array]
State = dict[str, Any]


def kfac(
    *,
    layers: Mapping[str, Layer],
    shapes: Mapping[str, tuple[int, ...]],
    world: int = 1,
    lr: float = 0.1,
    momentum: float = 0.9,
    damping: float = 0.1,
    factor_decay: float = 0.95,
    factor_interval: int = 1,
    inverse_interval: int = 1,
    weight_decay: float = 0.0,
    fisher: str = "empirical",
    rescale: bool = False,
) -> Optimizer:
    """Natural gradient with Kronecker factors; arguments as in `suite.optimizers.kfac.torch.KFAC`.

    `shapes` are the parameters' shapes by name. Beside optax's two functions it offers `plan`, `observe`, `absorb` and
    `program`; call them as the torch class says.
    """
    plan = KFACPlan(
        layers,
        shapes,
        world=world,
        factor_interval=factor_interval,
        inverse_interval=inverse_interval,
        fisher=fisher,
    )
    buckets = plan.buckets

    def init(params: Tree) -> State:
        kind = next(iter(params.values())).dtype
        replicated = {name: (plan.shapes[layers[name].parameters[0]][0], 3) for name in plan.batchnorm}
        replicated |= {name: (plan.shapes[layers[name].parameters[0]][0],) for name in plan.embedding}
        return {
            "hyper": hyper(
                lr=lr, momentum=momentum, damping=damping, factor_decay=factor_decay, weight_decay=weight_decay
            ),
            "owned": {key: jnp.zeros((rows, int(key), int(key)), kind) for key, rows in buckets.padded.items()},
            "inverse": {
                key: jnp.tile(jnp.eye(int(key), dtype=kind), (rows, 1, 1)) for key, rows in buckets.padded.items()
            },
            "replicated": {name: jnp.zeros(shape, kind) for name, shape in replicated.items()},
            "trace": jnp.zeros(len(plan.sides), kind),
            "mass": jnp.zeros((), kind),
            "velocity": jax.tree.map(jnp.zeros_like, params),
        }

    def observe(taps: Mapping[tuple[str, int], tuple[Array, Array]], weight: Array) -> Tree:
        sums: Tree = {}
        root = jnp.sqrt(weight)
        inverse_root = jnp.where(weight > 0, 1.0 / jnp.where(weight > 0, root, 1.0), 0.0)
        for (name, _), (x, dy) in taps.items():
            layer = layers[name]
            dy = dy * inverse_root.reshape(-1, *[1] * (dy.ndim - 1))  # dy holds the weight once; its square needs √w
            for key, value in _factors(layer, x, dy, root, shapes[layer.parameters[0]][0]).items():
                sums[name + key] = sums[name + key] + value if name + key in sums else value
        return sums

    def absorb(statistics: Tree, state: State, *, reduce: Any) -> State:
        decay = state["hyper"]["factor_decay"]
        rest = {name: statistics[name + ("/in" if name in plan.embedding else "")] for name in state["replicated"]}
        sides = [statistics[side] for side in plan.sides]
        if sides:
            rest["trace"] = jnp.stack([jnp.trace(value) if value.ndim == 2 else value.sum() for value in sides])
        mixed = reduce.exact(rest)
        mix = lambda old, new: decay * old + (1.0 - decay) * new  # noqa: E731
        owned = {}
        for key, members in buckets.members.items():
            stack = jnp.stack([statistics[side] for side in members])
            stack = jnp.pad(stack, ((0, buckets.filler(key)), (0, 0), (0, 0)))
            owned[key] = mix(state["owned"][key], reduce.to_owners(f"factor/{key}", stack))
        return state | {
            "owned": owned,
            "replicated": {name: mix(old, mixed[name]) for name, old in state["replicated"].items()},
            "trace": mix(state["trace"], mixed["trace"]) if sides else state["trace"],
            "mass": mix(state["mass"], 1.0),
        }

    def ridges(state: State) -> Array:
        sizes = jnp.asarray([plan.sizes[side] for side in plan.sides], state["trace"].dtype)
        mean = jnp.maximum(state["trace"] / state["mass"] / sizes, 1e-12)
        return jnp.sqrt(state["hyper"]["damping"] * mean / mean[jnp.asarray(plan.partner)])

    def program(name: str, state: State, *, reduce: Any) -> State:
        ridge = ridges(state)[jnp.asarray(plan.rows(name))]
        ridge = reduce.mine(jnp.pad(ridge, (0, buckets.filler(name)), constant_values=1.0))
        identity = jnp.eye(int(name), dtype=ridge.dtype)
        damped = state["owned"][name] / state["mass"] + ridge[:, None, None] * identity
        # one by one: with several CPU devices in a process, jaxlib 0.10.2 now and then hangs in batched factorisations
        inverse = jax.lax.map(lambda m: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(m), True), identity), damped)
        usable = jnp.isfinite(inverse).all((1, 2), keepdims=True)
        inverse = jnp.where(usable, inverse, reduce.mine(state["inverse"][name]))
        return state | {"inverse": state["inverse"] | {name: reduce.gather(f"inverse/{name}", inverse)}}

    def precondition(grads: Tree, state: State) -> Tree:
        done, damping = dict(grads), state["hyper"]["damping"]

        def inverse(side: str) -> Array:
            key, row = buckets.place[side]
            return state["inverse"][key][row]

        for name in plan.kronecker:
            weight, *bias = layers[name].parameters
            matrix = grads[weight].reshape(len(grads[weight]), -1)
            full = jnp.concatenate([matrix, *(grads[b][:, None] for b in bias)], 1)
            full = inverse(f"{name}/out") @ full @ inverse(f"{name}/in")
            done[weight] = full[:, : matrix.shape[1]].reshape(grads[weight].shape)
            done |= {b: full[:, -1] for b in bias}
        for name in plan.embedding:
            weight = layers[name].parameters[0]
            diagonal = state["replicated"][name] / state["mass"] + ridges(state)[plan.sides.index(f"{name}/in")]
            done[weight] = grads[weight] / diagonal[:, None] @ inverse(f"{name}/out")
        for name in plan.batchnorm:
            weight, bias = layers[name].parameters
            a, b, c = (state["replicated"][name] / state["mass"]).T  # [[a, b], [b, c]] for each channel
            a, c = a + damping, c + damping
            determinant = a * c - b * b
            done[weight] = (c * grads[weight] - b * grads[bias]) / determinant
            done[bias] = (a * grads[bias] - b * grads[weight]) / determinant
        return done

    def update(grads: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        at = state["hyper"]
        direction = precondition(decayed(grads, params, at["weight_decay"]), state)
        velocity = jax.tree.map(lambda v, d: at["momentum"] * v + d, state["velocity"], direction)
        updates = jax.tree.map(lambda v: -at["lr"] * v, velocity)
        if rescale:
            for name in plan.kronecker:
                weight = layers[name].parameters[0]
                new = params[weight] + updates[weight]
                updates[weight] = new * ((2.0 * len(new)) ** 0.5 / (jnp.linalg.norm(new) + 1e-9)) - params[weight]
        return updates, state | {"velocity": velocity}

    return Optimizer(init, update, plan=plan, observe=observe, absorb=absorb, program=program)


def _patches(x: Array, layer: Layer) -> Array:
    """Windows of (N, H, W, C) as rows: (N · places, C · k · k), in the order of a torch weight's columns."""
    k, s, p = layer.kernel, layer.stride, layer.padding
    x = jnp.pad(x, ((0, 0), (p, p), (p, p), (0, 0)))
    height, width = (x.shape[1] - k) // s + 1, (x.shape[2] - k) // s + 1
    shifts = [(i, j) for i in range(k) for j in range(k)]
    windows = [x[:, i : i + s * height : s, j : j + s * width : s] for i, j in shifts]
    return jnp.stack(windows, -1).reshape(-1, x.shape[3] * k * k)


def _factors(layer: Layer, x: Array, dy: Array, root: Array, rows: int) -> Tree:
    """One layer's sums over samples; dy already divided by √weight, `root` is √weight (N,)."""
    if layer.kind == "batchnorm":
        middle = tuple(range(1, dy.ndim - 1))
        scale, shift = (dy * x).sum(middle), dy.sum(middle)  # (N, C) each
        return {"": jnp.stack([(scale * scale).sum(0), (scale * shift).sum(0), (shift * shift).sum(0)], 1)}
    places = dy[0, ..., 0].size
    g = dy.reshape(-1, dy.shape[-1])
    out = {"/out": g.T @ g / places}
    if layer.kind == "embedding":
        return out | {"/in": jnp.zeros(rows, dy.dtype).at[x.reshape(-1)].add(jnp.repeat(root * root, places))}
    x = x * root.reshape(-1, *[1] * (x.ndim - 1))
    a = _patches(x, layer) if layer.kind == "conv2d" else x.reshape(-1, x.shape[-1])
    if len(layer.parameters) > 1:
        a = jnp.concatenate([a, jnp.repeat(root, places)[:, None]], 1)
    return out | {"/in": a.T @ a}


make = kfac
