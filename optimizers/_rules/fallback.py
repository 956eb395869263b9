"""AdamW's step in one text, for the parameters that another optimizer leaves to it."""

from suite.optimizers._base.reference import Fallback
from suite.optimizers._rules import Ops, State, Value


def step_adamw(
    ops: Ops[Value], weights: list[Value], grads: list[Value], state: State, hyper: Fallback, steps: Value
) -> tuple[list[Value], State]:
    """Return what the step made of the weights, as a move of `ops` does, and the next moments `first` and `second`."""
    first = ops.average(state["first"], grads, hyper.fallback_beta1)
    second = ops.average_squares(state["second"], grads, hyper.fallback_beta2)
    scale = ops.root(second, ops.weigh(hyper.fallback_beta2, steps), outside=hyper.fallback_epsilon)
    scale = ops.affine(scale, ops.weigh(hyper.fallback_beta1, steps))
    rate = hyper.fallback_ratio * hyper.lr
    moved = ops.move_by_ratios(weights, first, scale, rate, hyper.weight_decay)
    return moved, {"first": first, "second": second}
