"""Adam with decoupled weight decay.

m ← β₁ m + (1 - β₁) g;  v ← β₂ v + (1 - β₂) g²;  w ← w - η (m̂ / (√v̂ + ε) + λ w)

with m̂ = m / (1 - β₁ᵗ) and v̂ = v / (1 - β₂ᵗ), or m and v themselves without bias correction, as BERT was trained. The
decay is multiplied by the learning rate, as in torch and optax, and spares vectors.
"""

from suite.declared import Declared, setting
from suite.optimizers._rules import Ops, Rule, State, Value

SUMMARY = "Adam with decoupled weight decay (Loshchilov and Hutter 2019)"
CITATION = (
    "Kingma, Ba: Adam: A Method for Stochastic Optimization, ICLR 2015, arXiv:1412.6980; "
    "Loshchilov, Hutter: Decoupled Weight Decay Regularization, ICLR 2019, arXiv:1711.05101"
)
NEEDS = ("rows", "reset")


class Settings(Declared):
    """lr: best of a few at 300 steps of resnet50's laptop stand-in on data=shapes, seed 0. The rest: torch.optim."""

    lr: float = setting(0.01, "learning rate η", at_least=0, scheduled=True, search=(1e-4, 0.03, "log"))
    beta1: float = setting(0.9, "decay of the gradient's average", at_least=0, below=1, scheduled=True)
    beta2: float = setting(0.999, "decay of the squared gradient's average", at_least=0, below=1, scheduled=True)
    epsilon: float = setting(1e-8, "added to the root of the second moment", at_least=0, scheduled=True)
    weight_decay: float = setting(
        0.01,
        "λ; each step takes η λ w from matrices and filters",
        at_least=0,
        scheduled=True,
        search=(0.001, 0.3, "log"),
    )
    bias_correction: bool = setting(True, "divide both averages by the weight they hold; false: as BERT was trained")


def update(
    ops: Ops[Value], weights: list[Value], grads: list[Value], state: State, hyper: Settings, steps: Value
) -> tuple[list[Value], State]:
    """One step of parameters that have been updated equally often."""
    first = mean = ops.average(state["first"], grads, hyper.beta1)
    second = ops.average_squares(state["second"], grads, hyper.beta2)
    if hyper.bias_correction:
        mean = ops.divide(first, ops.weigh(hyper.beta1, steps))
        scale = ops.root(second, ops.weigh(hyper.beta2, steps), outside=hyper.epsilon)
    else:
        scale = ops.root(second, outside=hyper.epsilon)
    moved = ops.move_by_ratios(weights, mean, scale, hyper.lr, hyper.weight_decay)
    return moved, {"first": first, "second": second}


RULE = Rule(
    "adamw", Settings, update, lambda _: {"first": 0.0, "second": 0.0}, counted=True, grouped=("bias_correction",)
)
