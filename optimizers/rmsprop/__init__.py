"""RMSProp: divides gradients by the root of a moving average of their squares.

v ← β₂ v + (1 - β₂) g²;  w ← w - η d with d = g / (√v + ε), or with momentum u ← μ u + d;  w ← w - η u

ε stands outside the root, as in torch. Centred, v - m² takes the place of v, with m ← β₂ m + (1 - β₂) g; rounding may
not make it negative. `tensorflow=true` is TensorFlow's first version in its three differences: √(v + ε), v begins at
1, and the velocity holds η: u ← μ u + η d;  w ← w - u. g holds the L2 decay λ w of matrices and filters.

An element without gradient stays where it is (with ε > 0); a gradient that is not finite is not hidden.
"""

from suite.declared import Declared, setting
from suite.optimizers._rules import Ops, Rule, State, Value

SUMMARY = "RMSProp (Tieleman and Hinton 2012), torch's or TensorFlow's version"
CITATION = (
    "Tieleman, Hinton: Lecture 6.5, rmsprop: Divide the gradient by a running average of its recent magnitude, "
    "COURSERA: Neural Networks for Machine Learning, 2012"
)
NEEDS = ("rows", "reset")


class Settings(Declared):
    """beta2: Tieleman and Hinton's slide. lr: Keras. epsilon: torch.optim."""

    lr: float = setting(0.001, "learning rate η", at_least=0, scheduled=True, search=(1e-4, 0.03, "log"))
    momentum: float = setting(
        0.0, "μ, of the scaled gradient; 0: no velocity is stored", at_least=0, at_most=1, scheduled=True
    )
    beta2: float = setting(0.9, "decay of the squared gradient's average", at_least=0, at_most=1, scheduled=True)
    epsilon: float = setting(
        1e-8, "ε, added to the root; with `tensorflow` added inside the root", at_least=0, scheduled=True
    )
    weight_decay: float = setting(
        0.0, "λ of the L2 term, added to the gradients of matrices and filters", at_least=0, scheduled=True
    )
    centered: bool = setting(False, "subtract the squared mean of the gradient, so that the root is of a variance")
    tensorflow: bool = setting(
        False, "as TensorFlow's first version: ε inside the root, averages start at 1, the velocity includes η"
    )


def update(
    ops: Ops[Value], weights: list[Value], grads: list[Value], state: State, hyper: Settings, steps: Value
) -> tuple[list[Value], State]:
    """One step."""
    grads = ops.add_decay(grads, weights, hyper.weight_decay)
    second = ops.average_squares(state["second"], grads, hyper.beta2)
    mean = ops.average(state["mean"], grads, hyper.beta2) if hyper.centered else []
    squares = ops.variance(second, mean) if hyper.centered else second
    # TensorFlow's ε is inside the root, and its velocity includes η
    scale = ops.root(squares, inside=hyper.epsilon) if hyper.tensorflow else ops.root(squares, outside=hyper.epsilon)
    averages = {"second": second, "mean": mean}
    if not state["velocity"]:
        return ops.move_by_ratios(weights, grads, scale, hyper.lr), averages
    inside, outside = (hyper.lr, 1.0) if hyper.tensorflow else (1.0, hyper.lr)
    velocity = ops.accumulate_ratios(state["velocity"], grads, scale, hyper.momentum, inside)
    return ops.move(weights, velocity, outside), averages | {"velocity": velocity}


def start_averages(settings: Settings) -> dict[str, float | None]:
    """TensorFlow's squares begin at 1; the mean is held where it is subtracted."""
    return {"second": float(settings.tensorflow), "mean": 0.0 if settings.centered else None}


RULE = Rule("rmsprop", Settings, update, start_averages, velocity=True)
