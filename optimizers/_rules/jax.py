"""A first-order rule in jax: an optax transformation."""

from collections.abc import Callable, Iterable
from typing import Any, Generic

import jax
import jax.numpy as jnp
from jax import Array

from suite.contract import Rows
from suite.declared import describe_settings
from suite.optimizers._base.jax import (
    Optimizer,
    check_momentum,
    densify_gradients,
    list_schedulable,
    may_be_nonzero,
    reset_blocks,
    validate_settings,
)
from suite.optimizers._base.reference import Fallback
from suite.optimizers._rules import Chosen, Rule
from suite.optimizers._rules.fallback import step_adamw
from suite.optimizers._rules.jax_ops import OPS

Tree = dict[str, Array]
State = dict[str, Any]
STILL = """A momentum that is 0 here stays 0, because the state then holds no velocity: `state["hyper"]` has no
momentum, and one that is put there is rejected.

"""


def define(rule: Rule[Chosen], description: str) -> Callable[..., Optimizer]:
    """Return a function of the rule's settings that makes an optimizer.

    Args:
        rule: the rule.
        description: of the optimizer; the function's docstring begins with it.
    """

    def make(**settings: Any) -> Optimizer:
        chosen = validate_settings(rule.settings, rule.name, settings)
        functions = FirstOrder(rule, chosen)
        hyper = list_schedulable(chosen) if rule.velocity else chosen.scheduled()
        offers: dict[str, Any] = {} if rule.shapes else {"reset": functions.reset}
        return Optimizer(functions.init, functions.update, settings=hyper, **offers)

    make.__name__ = make.__qualname__ = rule.name
    still = STILL if rule.velocity else ""
    make.__doc__ = f"{description}\n\n{still}Args:\n    settings: by name, as listed below."
    return describe_settings(rule.settings)(make)


class FirstOrder(Generic[Chosen]):
    """Functions of an optimizer that follows a rule with these settings."""

    def __init__(self, rule: Rule[Chosen], settings: Chosen):
        self.rule, self.settings, self.starts = rule, settings, dict(rule.start(settings))
        changing = {name for name, value in settings.scheduled().items() if may_be_nonzero(value)}
        self.moving = "momentum" in changing
        self.reaching = bool(changing & {"momentum", "weight_decay"})  # every row of a table
        self.kinds = (*self.starts, "velocity") if rule.velocity else tuple(self.starts)

    def init(self, params: Tree) -> State:
        """Every state at its start."""
        state: State = {"steps": jnp.zeros((), jnp.int32)} if self.rule.counted else {}
        for kind, start in self.starts.items():
            state[kind] = {} if start is None else {name: self._fill(w, start) for name, w in params.items()}
        if self.rule.velocity:
            state["velocity"] = jax.tree.map(jnp.zeros_like, params) if self.moving else {}
        return state

    def _fill(self, w: Array, start: float) -> Array | list[Array]:
        """Return the first state of a parameter."""
        if self.rule.shapes is None:
            return jnp.full_like(w, start)
        return [jnp.full(shape, start, w.dtype) for shape in self.rule.shapes(w.shape)]

    def update(self, grads: dict[str, Any], state: State, params: Tree) -> tuple[dict[str, Any], State]:
        """Compute the parameters' changes and the next state. A gradient given by rows may change only its rows."""
        rule, hyper = self.rule, self.settings.model_copy(update=state["hyper"])
        if rule.velocity and not self.moving:
            check_momentum(state["hyper"])
        if rule.counted:
            state = state | {"steps": state["steps"] + 1}
        update_rows = None if self.reaching else rule.update_rows
        rows = {name: grad for name, grad in grads.items() if update_rows and isinstance(grad, Rows)}
        grads = densify_gradients({name: grad for name, grad in grads.items() if name not in rows}, params)
        weights, held = [params[name] for name in grads], self._select(state, grads)
        moved, new = rule.update(OPS, weights, list(grads.values()), held, hyper, state.get("steps", jnp.nan))
        changes: dict[str, Any] = dict(zip(grads, moved, strict=True))
        state = state | {kind: state[kind] | dict(zip(grads, held, strict=False)) for kind, held in new.items()}
        if update_rows:
            for name, grad in rows.items():
                own = {kind: held[0] for kind, held in self._select(state, [name]).items() if held}
                changes[name], new = update_rows(OPS, params[name], grad, own, hyper)
                state = state | {kind: state[kind] | {name: value} for kind, value in new.items()}
        return changes, state

    def _select(self, state: State, names: Iterable[str]) -> dict[str, list[Any]]:
        """Return each kind of state of these parameters; [] for a kind that is left out."""
        return {kind: [state[kind][name] for name in names if state[kind]] for kind in self.kinds}

    def reset(self, state: State, moved: Tree) -> State:
        """Return the state at its start for blocks that have moved: {parameter (n, …): (n,) booleans}."""
        for kind in self.kinds:
            state = reset_blocks(state, moved, kind, start=self.starts.get(kind) or 0.0) if state[kind] else state
        return state


def step_by_adamw(grads: Tree, state: State, params: Tree, hyper: Fallback) -> tuple[Tree, State]:
    """Return AdamW's changes of the parameters that have a gradient here, and their next moments.

    Args:
        grads: by parameter.
        state: has the moments `first` and `second` by parameter, and `steps`, this one included.
        params: by name; there may be others.
        hyper: the settings that hold now.
    """
    moments = {kind: [state[kind][name] for name in grads] for kind in ("first", "second")}
    weights = [params[name] for name in grads]
    moved, moments = step_adamw(OPS, weights, list(grads.values()), moments, hyper, state["steps"])
    trees = {kind: dict(zip(grads, values, strict=True)) for kind, values in moments.items()}
    return dict(zip(grads, moved, strict=True)), trees
