"""K-FAC in jax."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from suite.contract import Layer, Reduce, UserError
from suite.declared import describe_settings
from suite.optimizers._base import ALONE
from suite.optimizers._base.jax import (
    Optimizer,
    add_weight_decay,
    after_programs,
    find_type,
    make_statistics_error,
    one_rank,
    validate_settings,
)
from suite.optimizers._base.jax_shapes import Shapes
from suite.optimizers._linalg.jax import map_matrices
from suite.optimizers._rules.jax import step_by_adamw
from suite.optimizers.kfac import Settings, jax_stale
from suite.optimizers.kfac.jax_averages import mix_statistics
from suite.optimizers.kfac.jax_factors import compute_ridges, damped_inverse, is_usable
from suite.optimizers.kfac.jax_precondition import clip_direction, precondition_gradients
from suite.optimizers.kfac.jax_quadratic import adapt_damping, fit_step, sum_products
from suite.optimizers.kfac.jax_statistics import sum_factors
from suite.optimizers.kfac.plan import KFACPlan

Tree = dict[str, Array]
State = dict[str, Any]
Taps = Mapping[tuple[str, int], tuple[Array, Array]]


@describe_settings(Settings)
def kfac(
    *,
    layers: Mapping[str, Layer],
    shapes: Mapping[str, tuple[int, ...]],
    world: int = 1,
    **settings: Any,
) -> Optimizer:
    """Natural gradient with Kronecker factors; the package's docstring describes the rule.

    In your own training loop, `suite.engine.jax_alone.observing` makes the statistics that `update` asks for.
    Beside optax's two functions the optimizer offers `plan`, `host`, `observe`, `absorb`, `prepare`, `program` and
    `facts`, which the suite's engine calls as it calls those of `suite.optimizers.kfac.torch.KFAC`.

    Args:
        layers: what is preconditioned, by name.
        shapes: of the parameters, by name.
        world: ranks that share the factors; more than one requires the suite's engine.
        settings: by name, as listed below.

    Raises:
        UserError: for a setting that is unknown, out of range, traced, or does not go with another.
    """
    chosen = validate_settings(Settings, "kfac", settings, world=world)
    rule = KFAC(KFACPlan(layers, shapes, chosen, world=int(world)))
    return Optimizer(
        rule.init,
        rule.update,
        settings=chosen.scheduled(),
        shapes=shapes,
        plan=rule.plan,
        layers=rule.plan.layers,
        host=rule.host,
        drain=rule.drain,
        facts=rule.facts,
        observe=rule.observe,
        absorb=rule.absorb,
        prepare=rule.prepare,
        program=rule.program,
    )


class KFAC:
    """Functions of the optimizer, for the layers and settings of a plan."""

    def __init__(self, plan: KFACPlan):
        self.plan, self.settings, self.shapes = plan, plan.settings, Shapes(plan.layers)

    def init(self, params: Tree) -> State:
        """Factors of zero, inverses of one. What is below `owned` is split by rank, a slice each."""
        plan, kind = self.plan, find_type(params)
        buckets, count = plan.buckets, len(plan.factors)
        eye = {key: jnp.eye(int(key), dtype=kind) for key in buckets.members}
        factor = {key: jnp.zeros((n * plan.world, int(key), int(key)), kind) for key, n in buckets.share.items()}
        state = {
            "owned": {"factor": factor},
            "inverse": {key: jnp.tile(eye[key], (len(rows), 1, 1)) for key, rows in buckets.members.items()},
            "replicated": {name: jnp.zeros(shape, kind) for name, shape in plan.replicated.items()},
            "trace": jnp.zeros(count, kind),
            "mass": jnp.zeros(count, kind),
            "kept": jnp.zeros((), jnp.int32),
            "refreshed": jnp.zeros((), jnp.int32),
            "steps": jnp.zeros((), jnp.int32),
            "velocity": {name: jnp.zeros_like(value) for name, value in params.items() if name not in plan.rest},
        }
        for moment in ("first", "second") if plan.rest else ():
            state[moment] = {name: jnp.zeros_like(value) for name, value in params.items() if name in plan.rest}
        if self.settings.quadratic_model:
            state["damping"] = jnp.asarray(self.settings.damping, kind)
        return jax_stale.add_intervals(state) if self.settings.stale else state

    # ------------------------------------------------------------------------------------------ statistics
    def host(self, state: State, step: int) -> State:
        """Read from the device which factors are due in this step, where the plan asks for it."""
        if self.plan.asks(step):
            self.plan.read(step, np.asarray(state["wait"]).tolist())
        return state

    def drain(self) -> None:
        """Do nothing: no work is pending on the host."""

    def facts(self, state: State) -> dict[str, float]:
        """Number of refreshed factors, and of unusable statistics and inverses, where the old ones stayed; and λ."""
        counts = {name: int(state[name]) for name in ("refreshed", "kept")}
        return counts | ({"damping": float(f"{float(state['damping']):.6g}")} if "damping" in state else {})

    def observe(self, taps: Taps, weight: Array) -> Tree:
        """Sums over samples of every factor, by name, from the taps of one backward pass; weight is (N,)."""
        plan = self.plan
        calls: dict[str, list[tuple[Array, Array]]] = {}
        for (name, _), pair in taps.items():
            if name in plan.layers:
                calls.setdefault(name, []).append(pair)
        sums: Tree = {}
        for name, pairs in calls.items():
            layer = plan.layers[name]
            rows, full = plan.shapes[layer.parameters[0]][0], name in plan.whole
            sums |= {name + end: value for end, value in sum_factors(layer, pairs, weight, rows, full=full).items()}
        return sums

    def prepare(self, statistics: Tree, state: State, *, reduce: Reduce[Array]) -> State:
        """Return the state whose factors are these statistics, averaged over ranks."""
        every = jnp.ones(len(self.plan.factors), bool)
        return mix_statistics(self.plan, statistics, state, every, jnp.zeros(()), reduce=reduce)[0]

    def absorb(self, statistics: Tree, state: State, *, reduce: Reduce[Array]) -> State:
        """Return the state whose factors have taken in these statistics, averaged over ranks."""
        stale = self.settings.stale
        due = state["wait"] <= 0 if stale else jnp.ones(len(self.plan.factors), bool)
        state, similar = mix_statistics(
            self.plan, statistics, state, due, state["hyper"]["factor_decay"], reduce=reduce
        )
        return jax_stale.update_intervals(state, due, similar) if stale else state

    # -------------------------------------------------------------------------------------------- inverses
    def program(self, name: str, state: State, *, reduce: Reduce[Array]) -> State:
        """Return the state with new inverses of one bucket: each rank inverts what it owns, and gathers the others'."""
        plan, previous = self.plan, state["inverse"][name]
        owners = plan.buckets.owners(name)
        numbers = reduce.mine(jnp.array(plan.rows(name)), owners)
        due = reduce.mine(jnp.ones(len(previous), bool), owners)
        if self.settings.stale:  # a factor refreshed in this step has waited for nothing yet
            due &= (state["wait"] == state["interval"][0])[numbers]
        scale = 1.0 / jnp.maximum(state["mass"], jnp.finfo(previous.dtype).tiny)
        items = (scale[numbers], compute_ridges(plan, state)[numbers], reduce.mine(previous, owners))
        # all at once, matrices that are not due would be inverted, too
        invert = jax.lax.map if self.settings.stale else map_matrices
        inverses = invert(self._inverse, (due, state["owned"]["factor"][name], *items))
        inverses = reduce.gather(f"inverse/{name}", inverses, owners, symmetric=True)
        good = is_usable(inverses)
        inverse = jnp.where(good[:, None, None], inverses, previous)
        kept = state["kept"] + (~good).sum(dtype=jnp.int32)
        return state | {"inverse": state["inverse"] | {name: inverse}, "kept": kept}

    def _inverse(self, item: tuple[Array, Array, Array, Array, Array]) -> Array:
        """Return the damped inverse (n, n) of one factor; the old one where the factor is not due."""
        due, factor, scale, ridge, previous = item

        def inverse() -> Array:
            return damped_inverse(factor * scale, ridge)

        return jax.lax.cond(due, inverse, lambda: previous) if self.settings.stale else inverse()

    # ---------------------------------------------------------------------------------------------- update
    def update(
        self,
        grads: Tree,
        state: State,
        params: Tree,
        *,
        reduce: Reduce[Array] | None = None,
        statistics: Tree | None = None,
        evaluate: Callable[..., Any] | None = None,
        phase: tuple[str, ...] = (),
    ) -> tuple[Tree, State]:
        """Return the changes of the parameters, and the next state.

        Args:
            grads: by parameter.
            state: of the optimizer.
            params: by name.
            reduce: given by the suite's engine, which has called `absorb` and `program` before.
            statistics: without an engine, what `observing` made.
            evaluate: given by the suite's engine alone; read with `quadratic_model`.
            phase: given by the suite's engine alone.

        Raises:
            UserError: without an engine, for missing statistics or a setting that needs an engine.
        """
        if reduce is None:
            state = self._alone(statistics, state)
        hyper, velocity, on_gradient = state["hyper"], state["velocity"], self.settings.momentum_on == "gradient"
        momentum = hyper["momentum"]
        rest = {name: grads[name] for name in grads if name in self.plan.rest}
        grads = {name: grad for name, grad in grads.items() if name not in rest}
        grads = add_weight_decay(grads, params, hyper["weight_decay"])
        if on_gradient:
            grads = velocity = jax.tree.map(lambda m, g: momentum * m + (1.0 - momentum) * g, velocity, grads)
        direction = precondition_gradients(self.plan, state, grads, compute_ridges(self.plan, state))
        if self.plan.covered:
            direction |= clip_direction(self.plan, grads, direction, lr=hyper["lr"], bound=hyper["kl_clip"])
        preconditioned = direction
        if not on_gradient:
            direction = velocity = jax.tree.map(lambda v, d: momentum * v + d, velocity, direction)
        changes = jax.tree.map(lambda v: -hyper["lr"] * v, direction)
        if self.settings.quadratic_model and evaluate and reduce:
            steps, state = self._fit(grads, preconditioned, state, params, evaluate, reduce, adapts="damping" in phase)
            velocity, changes = velocity | steps, changes | {name: -step for name, step in steps.items()}
        if self.settings.rescale:
            changes |= self._rescaled(params, changes)
        state = state | {"velocity": velocity, "steps": state["steps"] + 1}
        if rest:
            moved, moments = step_by_adamw(rest, state, params, self.settings.model_copy(update=hyper))
            changes, state = changes | moved, state | moments
        return changes, state | ({"wait": state["wait"] - 1} if self.settings.stale else {})

    def _fit(
        self,
        grads: Tree,
        direction: Tree,
        state: State,
        params: Tree,
        evaluate: Callable[..., Any],
        reduce: Reduce[Array],
        *,
        adapts: bool,
    ) -> tuple[Tree, State]:
        """Return what the covered parameters lose by the exact quadratic model, and the state, where λ `adapts`."""
        given, decay = [name for name in grads if name in self.plan.covered], state["hyper"]["weight_decay"]
        pair = direction, state["velocity"]
        scale = jnp.stack([decay * (grads[name].ndim > 1) for name in given])

        def multiply_trees(one: Tree, other: Tree) -> Array:
            """⟨v, u⟩ of each parameter."""
            return jnp.stack([jnp.vdot(one[name], other[name]) for name in given])

        def measure_loss(at: Tree) -> tuple[Array, Array]:
            """The loss and ⟨∇h, v⟩ (2,) at some weights, of the gradient before clipping."""
            loss, slopes, _ = evaluate(at, observe=lambda taps, weight: {})
            turned = self.shapes.unify(slopes)
            own = reduce.exact({"loss": loss, "slopes": jnp.stack([multiply_trees(turned, v).sum() for v in pair])})
            decayed = jnp.stack([(multiply_trees(at, v) * scale).sum() for v in pair])
            return own["loss"] + 0.5 * (multiply_trees(at, at) * scale).sum(), own["slopes"] + decayed

        observe = functools.partial(sum_products, self.plan, pair)
        means = reduce.exact(evaluate(params, labels="sampled", observe=observe, per_term=True)[2])
        curvature = scale + state["damping"] * means["share"]
        lengths = jnp.stack([jnp.stack([(multiply_trees(v, u) * curvature).sum() for v in pair]) for u in pair])
        model = means["gram"] + lengths
        fitted = fit_step(model, jnp.stack([multiply_trees(grads, v).sum() for v in pair]))
        steps = {name: fitted[0] * direction[name] + fitted[1] * state["velocity"][name] for name in given}
        if adapts:
            before, slopes = measure_loss(params)
            after, _ = measure_loss(params | {name: params[name] - step for name, step in steps.items()})
            promised = fitted @ slopes - 0.5 * fitted @ model @ fitted
            state = state | {"damping": adapt_damping(state["damping"], before - after, promised)}
        return steps, state

    def _rescaled(self, params: Tree, changes: Tree) -> Tree:
        """Return the changes after which each weight of a linear layer or convolution has the norm √(2 outputs)."""
        rescaled = {}
        for name in self.plan.kronecker:
            weight = self.plan.layers[name].parameters[0]
            new = params[weight] + changes[weight]
            rescaled[weight] = new * ((2.0 * len(new)) ** 0.5 / (jnp.linalg.norm(new) + 1e-9)) - params[weight]
        return rescaled

    def _alone(self, statistics: Tree | None, state: State) -> State:
        """Return the state after what an engine would have done before the update.

        Raises:
            UserError: for missing statistics, several ranks, or a setting that needs an engine.
        """
        one_rank("kfac", self.plan.world)
        settings = self.settings
        needs_engine = {
            "stale": settings.stale,
            "fisher='sampled'": settings.fisher == "sampled",
            f"warm_start={settings.warm_start}": settings.warm_start > 0,
            "quadratic_model=True": settings.quadratic_model,
        }
        if typed := [option for option, is_set in needs_engine.items() if is_set]:
            raise UserError(f"kfac({typed[0]}): needs the suite's engine in jax; leave it out")
        if statistics is None:
            raise make_statistics_error("kfac")
        given = statistics

        def due(step: int) -> tuple[str, ...]:
            return (*self.plan.phase(step), *self.plan.programs(step))

        def run(name: str, state: State) -> State:
            if name == self.plan.word:
                return self.absorb(given, state, reduce=ALONE)
            return self.program(name, state, reduce=ALONE)

        return after_programs(due, self.plan.cycle, state, state["steps"], run)


make = kfac
