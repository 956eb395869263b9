"""LAMB: Adam's direction, scaled in each layer to the norm of the layer's weights.

m ← β₁ m + (1 - β₁) g;  v ← β₂ v + (1 - β₂) g²;  u = m̂ / (√v̂ + ε) + λ w;  w ← w - η r u with r = ‖w‖ / ‖u‖

with m̂ = m / (1 - β₁ᵗ) and v̂ = v / (1 - β₂ᵗ), or m and v themselves without bias correction. r is 1 where either norm
is 0, and can be kept between two bounds. As in NVIDIA's BERT, vectors (biases, normalisation) have r = 1 and no decay;
`adapt_vectors=true` gives them their ratio as well, which NVIDIA calls NVLAMB. The clipping of the whole gradient that
goes before it is the run's `clip_norm`.

A gradient that is not finite is not hidden: its element is lost for good, and through the norm all of its layer.
"""

from suite.declared import Declared, setting
from suite.optimizers._rules import Ops, Rule, State, Value, find_matrices

SUMMARY = "layer-wise adaptive moments (You et al. 2020), as in MLPerf's and NVIDIA's BERT"
CITATION = (
    "You, Li, Reddi, Hseu, Kumar, Bhojanapalli, Song, Demmel, Keutzer, Hsieh: "
    "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, ICLR 2020, arXiv:1904.00962"
)
NEEDS = ()


class Settings(Declared):
    """betas, epsilon, weight_decay: NVIDIA's BERT (DeepLearningExamples). lr is relative to the weights' norm."""

    lr: float = setting(0.01, "learning rate η", at_least=0, scheduled=True, search=(0.001, 0.1, "log"))
    beta1: float = setting(0.9, "decay of the gradient's average", at_least=0, below=1, scheduled=True)
    beta2: float = setting(0.999, "decay of the squared gradient's average", at_least=0, below=1, scheduled=True)
    epsilon: float = setting(1e-6, "added to the root of the second moment", at_least=0, scheduled=True)
    weight_decay: float = setting(
        0.01,
        "λ, part of the direction in matrices and filters",
        at_least=0,
        scheduled=True,
        search=(0.001, 0.3, "log"),
    )
    bias_correction: bool = setting(True, "divide both averages by the weight they hold")
    adapt_vectors: bool = setting(False, "apply the ratio to biases and normalisation too (NVLAMB)")
    least_ratio: float = setting(0.0, "least value of the ratio ‖w‖ / ‖u‖", at_least=0, scheduled=True)
    largest_ratio: float = setting(0.0, "largest value of the ratio ‖w‖ / ‖u‖; 0: no bound", at_least=0, scheduled=True)


def update(
    ops: Ops[Value], weights: list[Value], grads: list[Value], state: State, hyper: Settings, steps: Value
) -> tuple[list[Value], State]:
    """One step of parameters that have been updated equally often."""
    first = ops.average(state["first"], grads, hyper.beta1)
    second = ops.average_squares(state["second"], grads, hyper.beta2)
    direction = ops.divide(first, _scale(ops, second, hyper, steps))
    direction = ops.add_decay(direction, weights, hyper.weight_decay, owned=True)
    adapted = list(range(len(weights))) if hyper.adapt_vectors else find_matrices(weights)
    ratios = _compute_ratios(ops, [weights[i] for i in adapted], [direction[i] for i in adapted], hyper)
    direction = ops.scale_layers(direction, adapted, ratios)
    return ops.move(weights, direction, hyper.lr), {"first": first, "second": second}


def _scale(ops: Ops[Value], second: list[Value], hyper: Settings, steps: Value) -> list[Value]:
    """Return what m is divided by: √v + ε, or c₁ (√v / √c₂ + ε) with both corrections in one product."""
    if not hyper.bias_correction:
        return ops.root(second, outside=hyper.epsilon)
    weight1, weight2 = ops.weigh(hyper.beta1, steps), ops.weigh(hyper.beta2, steps)
    return ops.affine(ops.root(second), weight1 / weight2**0.5, weight1 * hyper.epsilon)


def _compute_ratios(ops: Ops[Value], weights: list[Value], direction: list[Value], hyper: Settings) -> Value:
    """‖w‖ / ‖u‖ of each layer within its bounds, 1 where either is 0."""
    where, norm_w, norm_u = ops.xp.where, ops.norms(weights), ops.norms(direction)
    none = (norm_w == 0) | (norm_u == 0)
    ratios = where(none, 1.0, norm_w / where(none, 1.0, norm_u))
    return ops.clip(ratios, hyper.least_ratio, hyper.largest_ratio)


RULE = Rule(
    "lamb",
    Settings,
    update,
    lambda _: {"first": 0.0, "second": 0.0},
    counted=True,
    grouped=("bias_correction", "adapt_vectors"),
)
