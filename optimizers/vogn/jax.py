"""VOGN in jax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite import stream
from suite.contract import Layer, Reduce, UserError
from suite.declared import describe_settings
from suite.optimizers._base import ALONE
from suite.optimizers._base.jax import Optimizer, is_traced, make_statistics_error, validate_settings, widen_floats
from suite.optimizers._plan import turn_shapes
from suite.optimizers.vogn import Settings
from suite.optimizers.vogn.jax_squares import sum_squared_gradients, unfold_tap
from suite.optimizers.vogn.plan import VOGNPlan, check, check_samples

Tree = dict[str, Array]
State = dict[str, Any]
Taps = Mapping[tuple[str, int], tuple[Array, Array]]


@describe_settings(Settings)
def vogn(
    *, layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]], samples: int, **settings: Any
) -> Optimizer:
    """A Gaussian over the weights; the package's docstring describes the rule.

    In your own training loop, `suite.engine.jax_alone.observing` draws the weights and makes the statistics that
    `update` asks for. Beside optax's two functions the optimizer offers `plan`, `observe`, `absorb`, `forward_params`
    and `facts`, which the suite's engine calls as it calls those of `suite.optimizers.vogn.torch.VOGN`.

    Args:
        layers: the layers whose per-sample gradients are taken, by name.
        shapes: of the parameters, by name.
        samples: of the training split.
        settings: by name, as listed below.

    Raises:
        UserError: for a setting that is unknown, out of range, traced although the step is compiled for its value, or
            does not go with another.
    """
    chosen = validate_settings(Settings, "vogn", settings)
    checked = chosen.beta2, chosen.prior_precision, chosen.damping, chosen.tempering, chosen.tempering_start
    if not any(is_traced(value) or callable(value) for value in checked):  # these have no value yet
        check(chosen)
    if not is_traced(samples):
        check_samples(samples)
    rule = VOGN(VOGNPlan(layers, shapes), turn_shapes(layers, shapes), samples, chosen.draws)
    return Optimizer(
        rule.init,
        rule.update,
        settings=chosen.scheduled(),
        shapes=shapes,
        plan=rule.plan,
        layers=rule.plan.layers,
        facts=rule.facts,
        observe=rule.observe,
        absorb=rule.absorb,
        forward_params=rule.forward_params,
    )


class VOGN:
    """Functions of the optimizer.

    Args:
        plan: which parameters have a variance.
        shapes: of the parameters, by name.
        samples: of the training split.
        draws: passes over a batch, each with newly drawn weights.
    """

    def __init__(self, plan: VOGNPlan, shapes: Mapping[str, tuple[int, ...]], samples: int, draws: int):
        self.plan, self.shapes, self.samples, self.draws = plan, shapes, samples, draws

    def init(self, params: Tree) -> State:
        """Momentum and s of zero for parameters that a layer describes, Adam's moments of zero for the others."""
        covered, rest = self.plan.covered, self.plan.rest
        names = dict.fromkeys(("momentum", "curvature"), covered) | dict.fromkeys(("first", "second"), rest)
        zeros = {kind: {name: jnp.zeros_like(params[name]) for name in chosen} for kind, chosen in names.items()}
        return {"kept": jnp.zeros((), jnp.int32), "steps": jnp.zeros((), jnp.int32)} | zeros

    def facts(self, state: State) -> dict[str, float]:
        """Number of elements of s that stayed as they were because their new square was not finite."""
        return {"kept": int(state["kept"])}

    def forward_params(self, params: Tree, state: State, key: Array, draw: int = 0) -> Tree:
        """Weights drawn for (seed, step).

        The first step keeps the mean, because the variance is not known before it.

        Args:
            params: the means, by name.
            state: of the optimizer.
            key: (seed, step).
            draw: number of the pass over the batch.
        """
        n, _, delta = self._constants(state["hyper"], key[1])
        drawn = dict(params)
        for name in self.plan.drawn:
            mean = params[name]
            noise = stream.normal(jnp, key, f"{name}/{draw}", jnp.arange(mean.size), kind=mean.dtype)
            precision = n * (state["curvature"][name] + delta + state["hyper"]["damping"])
            known = jnp.where(key[1] == 0, 1.0, precision)
            drawn[name] = jnp.where(key[1] == 0, mean, mean + noise.reshape(mean.shape) * jax.lax.rsqrt(known))
        return drawn

    def _constants(self, hyper: Tree, step: Array) -> tuple[Array, Array, Array]:
        """N, τ and δ̃."""
        n, start, warmup = hyper["augmentation"] * self.samples, hyper["tempering_start"], hyper["tempering_warmup"]
        risen = jnp.where(warmup > 0, jnp.minimum(1.0, step / jnp.maximum(warmup, 1.0)), 1.0)
        tau = start + (hyper["tempering"] - start) * risen
        return n, tau, tau * hyper["prior_precision"] / n

    def observe(self, taps: Taps, weight: Array) -> Tree:
        """Sums over samples of squared gradients, by parameter, from the taps of one backward pass; weight is (N,)."""
        inverse_root = jnp.where(weight > 0, jax.lax.rsqrt(jnp.where(weight > 0, weight, 1.0)), 0.0)
        calls: dict[str, list[tuple[Array, Array]]] = {}
        for name, call in sorted(taps):
            x, dy = taps[name, call]
            dy = dy.astype(weight.dtype) * inverse_root.reshape(-1, *[1] * (dy.ndim - 1))  # its square needs √w
            calls.setdefault(name, []).append(unfold_tap(self.plan.layers[name], widen_floats(x), dy))
        sums: Tree = {}
        for name, pairs in calls.items():
            layer = self.plan.layers[name]
            x, dy = pairs[0] if len(pairs) == 1 else (jnp.concatenate([pair[i] for pair in pairs], 1) for i in (0, 1))
            squared = sum_squared_gradients(layer, x, dy, self.shapes[layer.parameters[0]])
            sums.update(zip(layer.parameters, squared, strict=False))  # a layer may have no bias
        return sums

    def absorb(self, statistics: Tree, state: State, *, reduce: Reduce[Array]) -> State:
        """Return the state with the mean over ranks of the first draw's squares, which the update takes out again."""
        return state | {"squared": reduce.exact(statistics)}

    def update(
        self,
        grads: Tree,
        state: State,
        params: Tree,
        *,
        key: Array | None = None,
        evaluate: Any = None,
        reduce: Reduce[Array] | None = None,
        statistics: Tree | None = None,
    ) -> tuple[Tree, State]:
        """Return the changes of the means, and the next state.

        Args:
            grads: by parameter, at the first draw.
            state: of the optimizer.
            params: the means, by name.
            key: (seed, step), given by the suite's engine, which has called `absorb` before.
            evaluate: parameters to (loss, gradients, statistics) on the same batch; given by the engine.
            reduce: given by the engine.
            statistics: without an engine, what `observing` made.

        Raises:
            UserError: without an engine, for missing statistics or several draws.
        """
        if key is None:
            key, state = self._alone(statistics, state)
        squared = state["squared"]
        if self.draws > 1:
            assert reduce is not None  # without an engine, several draws are rejected
            grads, squared = self._all_draws(grads, state, params, key, evaluate, reduce)
        hyper = state["hyper"]
        step = key[1].astype(hyper["lr"].dtype)
        changes, covered = self._vogn(grads, squared, state, params, step)
        changes_of_rest, rest = self._adam(grads, state, step)
        kept = {name: value for name, value in state.items() if name != "squared"}
        return changes | changes_of_rest, kept | covered | rest | {"steps": state["steps"] + 1}

    def _all_draws(
        self, grads: Tree, state: State, params: Tree, key: Array, evaluate: Any, reduce: Reduce[Array]
    ) -> tuple[Tree, Tree]:
        """Gradients and squares, averaged over all draws."""
        total = grads, state["squared"]
        for draw in range(1, self.draws):
            _, more, statistics = evaluate(self.forward_params(params, state, key, draw))
            new = reduce.mean(f"gradients/{draw}", more, gradients=True), reduce.exact(statistics)
            total = jax.tree.map(jnp.add, total, new)
        return jax.tree.map(lambda value: value / self.draws, total)

    def _vogn(self, grads: Tree, squared: Tree, state: State, params: Tree, step: Array) -> tuple[Tree, State]:
        """Return the changes of parameters that a layer describes, and their next state."""
        hyper, kept = state["hyper"], state["kept"]
        _, tau, delta = self._constants(hyper, step)
        keep = jnp.where(step == 0, 0.0, 1 - tau * hyper["beta2"])  # the first step starts s with its squares
        gain = jnp.where(step == 0, 1.0, hyper["beta2"])
        momentum, curvature, changes = {}, {}, {}
        for name in self.plan.covered:
            grad = grads[name] + (delta * params[name] if name in self.plan.drawn else 0.0)
            momentum[name] = m = hyper["momentum"] * state["momentum"][name] + grad
            old, new = state["curvature"][name], squared[name]
            finite = jnp.isfinite(new)
            curvature[name] = s = jnp.where(finite, keep * old + gain * new, old)
            kept = kept + (~finite).sum(dtype=kept.dtype)
            changes[name] = -hyper["lr"] * m / (s + (delta + hyper["damping"]))
        return changes, {"momentum": momentum, "curvature": curvature, "kept": kept}

    def _adam(self, grads: Tree, state: State, step: Array) -> tuple[Tree, State]:
        """Return the changes of parameters that no layer describes, and their next state."""
        hyper = state["hyper"]
        beta1, beta2 = hyper["fallback_beta1"], hyper["fallback_beta2"]
        first, second, changes = {}, {}, {}
        for name in self.plan.rest:
            grad = grads[name]
            first[name] = m = beta1 * state["first"][name] + (1.0 - beta1) * grad
            second[name] = v = beta2 * state["second"][name] + (1.0 - beta2) * grad * grad
            scale = jnp.sqrt(v / (1.0 - beta2 ** (step + 1.0))) + hyper["fallback_epsilon"]
            changes[name] = -hyper["fallback_ratio"] * hyper["lr"] / (1.0 - beta1 ** (step + 1.0)) * m / scale
        return changes, {"first": first, "second": second}

    def _alone(self, statistics: Tree | None, state: State) -> tuple[Array, State]:
        """Return the key (0, step) and the state after what an engine would have done before the update.

        Raises:
            UserError: for missing statistics or several draws.
        """
        if self.draws > 1:
            raise UserError(f"vogn(draws={self.draws}): needs the suite's engine; leave it out")
        if statistics is None:
            raise make_statistics_error("vogn")
        key = jnp.stack([jnp.zeros_like(state["steps"]), state["steps"]]).astype(jnp.uint32)
        return key, self.absorb(statistics, state, reduce=ALONE)


make = vogn
