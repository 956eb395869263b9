"""K-BFGS in jax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import Layer, Reduce, UserError
from suite.declared import describe_settings
from suite.optimizers._base import ALONE
from suite.optimizers._base.jax import Optimizer, add_weight_decay, find_type, make_statistics_error, validate_settings
from suite.optimizers._linalg.jax import are_finite, map_matrices
from suite.optimizers.kbfgs import Settings
from suite.optimizers.kbfgs.jax_pairs import apply_bfgs, double_damping, multiply_vectors
from suite.optimizers.kbfgs.jax_statistics import Taps, sum_means, sum_statistics
from suite.optimizers.kbfgs.plan import KBFGSPlan

Tree = dict[str, Array]
State = dict[str, Any]


@describe_settings(Settings)
def kbfgs(*, layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]], **settings: Any) -> Optimizer:
    """Kronecker-factored BFGS; the package's docstring describes the rule.

    In your own training loop, `suite.engine.jax_alone.observing` makes the statistics that `update` asks for, and
    `evaluate` is the same function of other parameters. Beside optax's two functions the optimizer offers `plan`,
    `observe`, `prepare`, `absorb`, `program` and `facts`, which the suite's engine calls as it calls those of
    `suite.optimizers.kbfgs.torch.KBFGS`.

    Args:
        layers: of the model, by name; the linear ones are covered.
        shapes: of the parameters, by name.
        settings: by name, as listed below.

    Raises:
        UserError: for a setting that is unknown, out of range, or traced although the step is compiled for its value.
    """
    chosen = validate_settings(Settings, "kbfgs", settings)
    rule = KBFGS(KBFGSPlan(layers, shapes, chosen))
    return Optimizer(
        rule.init,
        rule.update,
        settings=chosen.scheduled(),
        shapes=shapes,
        plan=rule.plan,
        layers={name: layers[name] for name in rule.plan.place},
        facts=rule.facts,
        observe=rule.observe,
        prepare=rule.prepare,
        absorb=rule.absorb,
        program=rule.program,
    )


class KBFGS:
    """Functions of the optimizer, for the layers of a plan."""

    def __init__(self, plan: KBFGSPlan):
        self.plan = plan

    def init(self, params: Tree) -> State:
        """Averages of zero; Ha and Hg of one."""
        plan, kind = self.plan, find_type(params)

        def vectors(sizes: Mapping[str, int]) -> Tree:
            return {key: jnp.zeros((len(plan.stacks[key]), size), kind) for key, size in sizes.items()}

        def identities(sizes: Mapping[str, int]) -> Tree:
            eyes = {key: jnp.eye(size, dtype=kind) for key, size in sizes.items()}
            return {key: jnp.tile(eye, (len(plan.stacks[key]), 1, 1)) for key, eye in eyes.items()}

        return {
            "average": jax.tree.map(jnp.zeros_like, params),
            "a": {key: jnp.zeros((len(plan.stacks[key]), size, size), kind) for key, size in plan.inputs.items()},
            "ha": identities(plan.inputs),
            "hg": identities(plan.outputs),
            "middle": vectors(plan.inputs),
            "slope": vectors(plan.outputs),
            "s": vectors(plan.outputs),
            "y": vectors(plan.outputs),
            "mass": jnp.zeros((), kind),
            "prepared": jnp.zeros((), bool),
            "kept": jnp.zeros((), jnp.int32),
            "steps": jnp.zeros((), jnp.int32),
        }

    def facts(self, state: State) -> dict[str, float]:
        """Number of matrices that stayed as they were because their pair was not usable."""
        return {"kept": int(state["kept"])}

    # ------------------------------------------------------------------------------------------ statistics
    def observe(self, taps: Taps, weight: Array) -> Tree:
        """Sums over samples of a aᵀ, â and ĝ, from the taps of one backward pass; weight is (N,)."""
        return sum_statistics(self.plan, taps, weight)

    def means(self, taps: Taps, weight: Array) -> Tree:
        """Sums over samples of â and ĝ: all that the second pass is asked for."""
        return sum_means(self.plan, taps, weight)

    def prepare(self, statistics: Tree, state: State, *, reduce: Reduce[Array]) -> State:
        """Return the state that begins with the A of `plan.warm_start` batches."""
        factors = reduce.exact(self._stacked(statistics, "factor"))
        ones = {name: jnp.ones_like(state[name]) for name in ("mass", "prepared")}
        return state | {"a": factors} | ones

    def absorb(self, statistics: Tree, state: State, *, reduce: Reduce[Array]) -> State:
        """Return the state with the averaged statistics; A takes them in, but not in the step after `prepare`."""
        decay, prepared = state["hyper"]["factor_decay"], state["prepared"]
        factors = reduce.mean("factors", self._stacked(statistics, "factor"))
        small = reduce.exact({name: value for name, value in statistics.items() if not name.endswith("/factor")})
        mixed = {key: jnp.where(prepared, old, _mix(decay, old, factors[key])) for key, old in state["a"].items()}
        return state | {
            "a": mixed,
            "prepared": jnp.zeros_like(prepared),
            "middle": self._stacked(small, "middle"),
            "slope": self._stacked(small, "slope"),
            "mass": _mix(decay, state["mass"], 1.0),
        }

    def _stacked(self, statistics: Tree, kind: str) -> Tree:
        """One kind of statistics, a stack of layers by key."""
        stacks = self.plan.stacks
        return {key: jnp.stack([statistics[f"{name}/{kind}"] for name in names]) for key, names in stacks.items()}

    # -------------------------------------------------------------------------------------------- inverses
    def program(self, name: str, state: State, *, reduce: Reduce[Array]) -> State:
        """Return the state with Ha from A for all layers with so many inputs; every rank does the same."""
        keys, identity = self.plan.equal[name], jnp.eye(int(name), dtype=state["mass"].dtype)
        factors = jnp.concatenate([self._damped(key, state) for key in keys])

        def inverse(factor: Array) -> Array:
            return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(factor), True), identity)

        inverses = map_matrices(inverse, factors)
        usable = are_finite(inverses)
        inverses = jnp.where(usable, inverses, jnp.concatenate([state["ha"][key] for key in keys]))
        ha, begin = dict(state["ha"]), 0
        for key in keys:
            count = len(self.plan.stacks[key])
            ha[key], begin = inverses[begin : begin + count], begin + count
        return state | {"ha": ha, "kept": state["kept"] + (~usable).sum(dtype=state["kept"].dtype)}

    def _damped(self, key: str, state: State) -> Array:
        """A + √λ I of a stack, (count, in, in)."""
        identity = jnp.eye(self.plan.inputs[key], dtype=state["mass"].dtype)
        return state["a"][key] / state["mass"] + jnp.sqrt(state["hyper"]["damping"]) * identity

    # ---------------------------------------------------------------------------------------------- update
    def update(
        self,
        grads: Tree,
        state: State,
        params: Tree,
        *,
        evaluate: Any = None,
        reduce: Reduce[Array] | None = None,
        statistics: Tree | None = None,
    ) -> tuple[Tree, State]:
        """Return the changes of the parameters, and the next state, whose inverses follow a second look at the batch.

        Args:
            grads: by parameter.
            state: of the optimizer.
            params: by name.
            evaluate: parameters to (loss, gradients, statistics) on the same batch.
            reduce: given by the suite's engine, which has called `absorb` and `program` before.
            statistics: without an engine, what `observing` made.

        Raises:
            UserError: without an engine, for missing statistics or `evaluate`, or a setting that needs an engine.
        """
        if reduce is None:
            state, look, reduce = self._alone(statistics, evaluate, state), evaluate, ALONE
            evaluate = lambda params, observe: look(params)  # noqa: E731
        hyper, state = state["hyper"], state | {"steps": state["steps"] + 1}
        grads = add_weight_decay(grads, params, hyper["weight_decay"])
        average = jax.tree.map(lambda old, new: _mix(hyper["momentum"], old, new), state["average"], grads)
        directions = self._directions(average, state, params)
        changes = jax.tree.map(lambda direction: -hyper["lr"] * direction, directions)
        state = state | {"average": average}
        if not self.plan.stacks:
            return changes, state
        new = {name: value + changes[name] for name, value in params.items()}
        after = reduce.exact(evaluate(new, observe=self.means)[2])
        return changes, self._follow(params, new, after, state)

    def _directions(self, average: Tree, state: State, params: Tree) -> Tree:
        """Hg m Ha for covered layers, and m for all other parameters."""
        directions = dict(average)
        for key, names in self.plan.stacks.items():
            stack = state["hg"][key] @ self._whole(key, average) @ state["ha"][key]
            for row, name in enumerate(names):
                weight, *bias = self.plan.layers[name].parameters
                directions[weight] = stack[row, :, : params[weight][0].size].reshape(params[weight].shape)
                directions |= {b: stack[row, :, -1] for b in bias}
        return directions

    def _whole(self, key: str, values: Tree) -> Array:
        """Weights and biases of a stack side by side, or what belongs to them: (count, out, in)."""
        kinds = zip(*(self.plan.layers[name].parameters for name in self.plan.stacks[key]), strict=True)
        stacks = [jnp.stack([values[name] for name in names]) for names in kinds]
        return jnp.concatenate([stack.reshape(*stack.shape[:2], -1) for stack in stacks], 2)

    def _follow(self, before: Tree, after: Tree, statistics: Tree, state: State) -> State:
        """Update Hg and Ha in the state from the parameters before and after a step, and the means after it."""
        hyper, kept = state["hyper"], state["kept"]
        middles, slopes = self._stacked(statistics, "middle"), self._stacked(statistics, "slope")
        new: dict[str, Tree] = {"s": {}, "y": {}, "hg": {}, "ha": {}}
        for key in self.plan.stacks:
            a, slope, ha, hg = (state[part][key] for part in ("middle", "slope", "ha", "hg"))
            moved = multiply_vectors(self._whole(key, before), a) - multiply_vectors(
                self._whole(key, after), middles[key]
            )
            s = new["s"][key] = _mix(hyper["pair_decay"], state["s"][key], moved)
            y = new["y"][key] = _mix(hyper["pair_decay"], state["y"][key], slope - slopes[key])
            acted = multiply_vectors(ha, a)
            pair = double_damping(hg, s, y, jnp.sqrt(hyper["damping"]))
            new["hg"][key], used_hg = apply_bfgs(hg, *pair, slope)
            new["ha"][key], used_ha = apply_bfgs(ha, acted, multiply_vectors(self._damped(key, state), acted), a)
            kept = kept + (~used_hg).sum(dtype=kept.dtype) + (~used_ha).sum(dtype=kept.dtype)
        return state | new | {"kept": kept}

    def _alone(self, statistics: Tree | None, evaluate: Any, state: State) -> State:
        """Return the state after what an engine would have done before the update.

        Raises:
            UserError: for missing statistics or `evaluate`, or a warm start.
        """
        if self.plan.warm_start:
            raise UserError(f"kbfgs(warm_start={self.plan.warm_start}): needs the suite's engine; leave it out")
        if statistics is None or evaluate is None:
            raise make_statistics_error(
                "kbfgs, which looks at each batch twice, with evaluate=lambda params: observing(…)(…) as well,"
            )
        state = self.absorb(statistics, state, reduce=ALONE)
        return jax.lax.cond(state["steps"] == 0, self._first, lambda state: state, state)

    def _first(self, state: State) -> State:
        """Return the state after the programs of the first step."""
        for name in self.plan.programs(0):
            state = jax.lax.optimization_barrier(self.program(name, state, reduce=ALONE))
        return state


def _mix(decay: Array, old: Array, new: Array | float) -> Array:
    """An exponential average."""
    return decay * old + (1.0 - decay) * new


make = kbfgs
