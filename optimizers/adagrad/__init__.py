"""AdaGrad: divides each element's step by the root of its summed squared gradients.

s ← s + g²;  w ← w - η d with d = g / (√(δ + s) + ε), or with momentum v ← μ v + d;  w ← w - η v

g holds the L2 decay λ w of matrices and filters. δ is what others write into s before the first step
(`initial_accumulator_value`), and also an ε inside the root. Neither momentum nor decay: a gradient given by rows
touches those rows only. An element without gradient stays where it is, as long as ε or δ is positive; a gradient that
is not finite is not hidden, and its element is lost for good.
"""

from typing import Any

from suite.contract import Rows
from suite.declared import Declared, setting
from suite.optimizers._rules import Ops, Rule, State, StateOfTable, Value

SUMMARY = "diagonal AdaGrad (Duchi et al. 2011); updates only the rows that a table's gradient names"
CITATION = (
    "Duchi, Hazan, Singer: Adaptive Subgradient Methods for Online Learning and Stochastic Optimization, JMLR 12, 2011"
)
NEEDS = ("rows", "reset")


class Settings(Declared):
    """lr: MLPerf's DLRM-DCNv2 at batch 65,536 (mlcommons/training, recommendation_v2). epsilon: torch.optim.

    search: of rates up to 0.3, the highest won on resnet50.
    """

    lr: float = setting(0.005, "learning rate η", at_least=0, scheduled=True, search=(0.001, 1.0, "log"))
    momentum: float = setting(
        0.0, "μ, of the scaled gradient; 0: no velocity is stored", at_least=0, at_most=1, scheduled=True
    )
    weight_decay: float = setting(
        0.0, "λ of the L2 term, added to the gradients of matrices and filters", at_least=0, scheduled=True
    )
    epsilon: float = setting(1e-10, "ε, added to the root", at_least=0, scheduled=True)
    initial_accumulator: float = setting(
        0.0, "δ, added to the sums below the root; 0.1 in optax and TensorFlow", at_least=0, scheduled=True
    )


def update(
    ops: Ops[Value], weights: list[Value], grads: list[Value], state: State, hyper: Settings, steps: Value
) -> tuple[list[Value], State]:
    """One step."""
    grads = ops.add_decay(grads, weights, hyper.weight_decay)
    total = ops.accumulate_squares(state["sum"], grads)
    scale = ops.root(total, inside=hyper.initial_accumulator, outside=hyper.epsilon)
    if not state["velocity"]:
        return ops.move_by_ratios(weights, grads, scale, hyper.lr), {"sum": total}
    velocity = ops.accumulate_ratios(state["velocity"], grads, scale, hyper.momentum)
    return ops.move(weights, velocity, hyper.lr), {"sum": total, "velocity": velocity}


def update_rows(
    ops: Ops[Value], table: Value, rows: Rows, state: StateOfTable, hyper: Settings
) -> tuple[Any, StateOfTable]:
    """One step of some rows of a table."""
    rows = ops.merge_rows(rows)
    sums, total = ops.accumulate_squared_rows(state["sum"], rows)
    (scale,) = ops.root([total], inside=hyper.initial_accumulator, outside=hyper.epsilon)
    return ops.move_rows(table, Rows(rows.ids, rows.values / scale), hyper.lr), {"sum": sums}


RULE = Rule("adagrad", Settings, update, lambda _: {"sum": 0.0}, update_rows, velocity=True)
