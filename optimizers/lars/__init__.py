"""LARS: momentum with a learning rate for each layer, in proportion to ‖w‖ / ‖g‖.

Matrices and filters: v ← μ v + η r (g + λ w) with r = trust ‖w‖ / (‖g‖ + λ ‖w‖ + ε);  w ← w - v.
Vectors (biases, normalisation) follow plain momentum, v ← μ v + η g, as in MLPerf's ResNet-50.
"""

from suite.declared import Declared, setting
from suite.optimizers._rules import Ops, Rule, State, Value, find_matrices

SUMMARY = "layer-wise adaptive rate scaling (You et al. 2017), as in MLPerf's ResNet-50"
CITATION = "You, Gitman, Ginsburg: Large Batch Training of Convolutional Networks, arXiv:1708.03888"
NEEDS = ()
EPSILON = 1e-9  # keeps the ratio finite where both norms vanish


class Settings(Declared):
    """trust 1e-3: You et al. 2017, section 5."""

    lr: float = setting(10.0, "global learning rate η", at_least=0, scheduled=True, search=(1.0, 100.0, "log"))
    momentum: float = setting(0.9, "μ, decay of the velocity", at_least=0, at_most=1, scheduled=True)
    weight_decay: float = setting(5e-4, "λ of the L2 term, for matrices and filters", at_least=0, scheduled=True)
    trust: float = setting(
        1e-3, "trust coefficient, a factor of the learning rate of each matrix and filter", at_least=0, scheduled=True
    )


def update(
    ops: Ops[Value], weights: list[Value], grads: list[Value], state: State, hyper: Settings, steps: Value
) -> tuple[list[Value], State]:
    """One step."""
    matrices = find_matrices(weights)
    norm_w, norm_g = ops.norms([weights[i] for i in matrices]), ops.norms([grads[i] for i in matrices])
    ratios = hyper.trust * norm_w / (norm_g + hyper.weight_decay * norm_w + EPSILON)
    rates = hyper.lr * ops.xp.where(norm_w > 0, ratios, 1.0)  # 1 where the weights are zero
    grads = ops.add_decay(grads, weights, hyper.weight_decay)
    scaled = ops.scale_layers(grads, matrices, rates, rest=hyper.lr)
    velocity = ops.accumulate(state["velocity"], scaled, hyper.momentum)
    return ops.move(weights, velocity, 1.0), {"velocity": velocity}


RULE = Rule("lars", Settings, update, lambda _: {"velocity": 0.0})
