"""Stochastic gradient descent with momentum.

v ← μ v + g + λ w;  w ← w - η v, or w ← w - η (g + λ w + μ v) with Nesterov's look-ahead.
"""

from typing import Any

from suite.contract import Rows
from suite.declared import Declared, setting
from suite.optimizers._rules import Ops, Rule, State, StateOfTable, Value

SUMMARY = "stochastic gradient descent with heavy-ball or Nesterov momentum"
CITATION = (
    "Sutskever, Martens, Dahl, Hinton: On the importance of initialization and momentum in deep learning, ICML 2013"
)
NEEDS = ("rows", "reset")


class Settings(Declared):
    """No source is recorded for these values."""

    lr: float = setting(0.05, "learning rate η", at_least=0, scheduled=True, search=(0.01, 1.0, "log"))
    momentum: float = setting(0.9, "μ, decay of the velocity", at_least=0, at_most=1, scheduled=True)
    nesterov: bool = setting(False, "look ahead by one momentum step")
    weight_decay: float = setting(
        5e-4, "λ of the L2 term, added to the gradients of matrices and filters", at_least=0, scheduled=True
    )


def update(
    ops: Ops[Value], weights: list[Value], grads: list[Value], state: State, hyper: Settings, steps: Value
) -> tuple[list[Value], State]:
    """One step."""
    grads = ops.add_decay(grads, weights, hyper.weight_decay)
    velocity = ops.accumulate(state["velocity"], grads, hyper.momentum)
    direction = ops.add(grads, velocity, hyper.momentum) if hyper.nesterov else velocity
    return ops.move(weights, direction, hyper.lr), {"velocity": velocity}


def update_rows(
    ops: Ops[Value], table: Value, rows: Rows, state: StateOfTable, hyper: Settings
) -> tuple[Any, StateOfTable]:
    """One step of some rows of a table."""
    return ops.move_rows(table, rows, hyper.lr), {}


RULE = Rule("sgd", Settings, update, lambda _: {"velocity": 0.0}, update_rows, grouped=("nesterov",))
