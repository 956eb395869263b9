"""VOGN in jax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite import stream
from suite.contract import Layer
from suite.optimizers._base.jax import Optimizer, hyper
from suite.optimizers.vogn.jax_squares import rows, squares
from suite.optimizers.vogn.plan import VOGNPlan

Tree = dict[str, Array]
State = dict[str, Any]


def vogn(
    *,
    layers: Mapping[str, Layer],
    shapes: Mapping[str, tuple[int, ...]],
    samples: int,
    lr: float = 1e-3,
    momentum: float = 0.9,
    beta2: float = 0.999,
    prior_precision: float = 1.0,
    damping: float = 0.0,
    tempering: float = 1.0,
    tempering_start: float = 1.0,
    tempering_warmup: int = 0,
    augmentation: float = 1.0,
    draws: int = 1,
    fallback_ratio: float = 1.0,
    fallback_beta1: float = 0.9,
    fallback_beta2: float = 0.999,
    fallback_epsilon: float = 1e-8,
) -> Optimizer:
    """A Gaussian over the weights; arguments as in `suite.optimizers.vogn.torch.VOGN`.

    `shapes` are the parameters' shapes by name. Beside optax's two functions it offers `plan`, `observe`, `absorb`,
    `forward_params` and `facts`; call them as the torch class says.
    """
    plan = VOGNPlan(
        layers,
        shapes,
        beta2=beta2,
        prior_precision=prior_precision,
        damping=damping,
        tempering=tempering,
        tempering_start=tempering_start,
    )

    def init(params: Tree) -> State:
        values = hyper(
            lr=lr,
            momentum=momentum,
            beta2=beta2,
            prior_precision=prior_precision,
            damping=damping,
            tempering=tempering,
            tempering_start=tempering_start,
            tempering_warmup=tempering_warmup,
            augmentation=augmentation,
            fallback_ratio=fallback_ratio,
            fallback_beta1=fallback_beta1,
            fallback_beta2=fallback_beta2,
            fallback_epsilon=fallback_epsilon,
        )
        kinds = dict.fromkeys(("momentum", "curvature"), plan.covered) | dict.fromkeys(("first", "second"), plan.rest)
        moments = {k: {n: jnp.zeros_like(params[n]) for n in names} for k, names in kinds.items()}
        return {"hyper": values, "kept": jnp.zeros((), jnp.int32)} | moments

    def constants(at: Tree, step: Array) -> tuple[Array, Array, Array]:
        """N, τ and δ̃."""
        n, start, warmup = at["augmentation"] * samples, at["tempering_start"], at["tempering_warmup"]
        risen = jnp.where(warmup > 0, jnp.minimum(1.0, step / jnp.maximum(warmup, 1.0)), 1.0)
        tau = start + (at["tempering"] - start) * risen
        return n, tau, tau * at["prior_precision"] / n

    def forward_params(params: Tree, state: State, key: Array, draw: int = 0) -> Tree:
        """Weights drawn for (seed, step); the first step keeps the mean, as nothing is known of its variance."""
        n, _, delta = constants(state["hyper"], key[1])
        made = dict(params)
        for name in plan.drawn:
            value = params[name]
            noise = stream.normal(jnp, key, f"{name}/{draw}", jnp.arange(value.size), kind=value.dtype)
            precision = n * (state["curvature"][name] + delta + state["hyper"]["damping"])
            known = jnp.where(key[1] == 0, 1.0, precision)
            made[name] = jnp.where(key[1] == 0, value, value + noise.reshape(value.shape) * jax.lax.rsqrt(known))
        return made

    def observe(taps: Mapping[tuple[str, int], tuple[Array, Array]], weight: Array) -> Tree:
        inverse_root = jnp.where(weight > 0, jax.lax.rsqrt(jnp.where(weight > 0, weight, 1.0)), 0.0)
        calls: dict[str, list[tuple[Array, Array]]] = {}
        for name, call in sorted(taps):
            x, dy = taps[name, call]
            dy = dy.astype(weight.dtype) * inverse_root.reshape(-1, *[1] * (dy.ndim - 1))  # its square needs √w
            calls.setdefault(name, []).append(rows(layers[name], x, dy))
        sums: Tree = {}
        for name, found in calls.items():
            layer = layers[name]
            x, dy = found[0] if len(found) == 1 else (jnp.concatenate([pair[i] for pair in found], 1) for i in (0, 1))
            sums.update(zip(layer.parameters, squares(layer, x, dy, shapes[layer.parameters[0]]), strict=False))
        return sums

    def absorb(statistics: Tree, state: State, *, reduce: Any) -> State:
        return state | {"squared": reduce.exact(statistics)}  # only until the update

    def further(grads: Tree, state: State, params: Tree, key: Array, evaluate: Any, reduce: Any) -> tuple[Tree, Tree]:
        """Gradients and squares, averaged over all draws."""
        found = grads, state["squared"]
        for draw in range(1, draws):
            _, more, statistics = evaluate(forward_params(params, state, key, draw))
            new = reduce.mean(f"gradients/{draw}", more), reduce.exact(statistics)
            found = jax.tree.map(jnp.add, found, new)
        return jax.tree.map(lambda value: value / draws, found)

    def update(
        grads: Tree, state: State, params: Tree, *, key: Array, evaluate: Any = None, reduce: Any = None
    ) -> tuple[Tree, State]:
        at, step, squared = state["hyper"], key[1].astype(state["hyper"]["lr"].dtype), state["squared"]
        if draws > 1:
            grads, squared = further(grads, state, params, key, evaluate, reduce)
        _, tau, delta = constants(at, step)
        keep, gain = (
            jnp.where(step == 0, first, then) for first, then in ((0.0, 1 - tau * at["beta2"]), (1.0, at["beta2"]))
        )
        momentum, curvature, updates, kept = {}, {}, {}, state["kept"]
        for name in plan.covered:
            grad = grads[name] + (delta * params[name] if name in plan.drawn else 0.0)
            momentum[name] = m = at["momentum"] * state["momentum"][name] + grad
            old, new = state["curvature"][name], squared[name]
            sound = jnp.isfinite(new)
            curvature[name] = s = jnp.where(sound, keep * old + gain * new, old)
            kept = kept + (~sound).sum(dtype=kept.dtype)
            updates[name] = -at["lr"] * m / (s + (delta + at["damping"]))
        first, second = {}, {}
        for name in plan.rest:  # Adam
            b1, b2, grad = at["fallback_beta1"], at["fallback_beta2"], grads[name]
            first[name] = m = b1 * state["first"][name] + (1.0 - b1) * grad
            second[name] = s = b2 * state["second"][name] + (1.0 - b2) * grad * grad
            scale = jnp.sqrt(s / (1.0 - b2 ** (step + 1.0))) + at["fallback_epsilon"]
            updates[name] = -at["fallback_ratio"] * at["lr"] / (1.0 - b1 ** (step + 1.0)) * m / scale
        moved = {"momentum": momentum, "curvature": curvature, "first": first, "second": second, "kept": kept}
        return updates, {name: value for name, value in state.items() if name != "squared"} | moved

    def facts(state: State) -> dict[str, float]:
        return {"kept": int(state["kept"])}

    offers = {"observe": observe, "absorb": absorb, "forward_params": forward_params}
    return Optimizer(init, update, plan=plan, facts=facts, **offers)


make = vogn
