"""VOGN: natural-gradient variational inference; trains a Gaussian over the weights with Adam-like updates.

Each weight is drawn from its N(μ, σ²). The run's parameters are μ, and evaluation uses them.
With per-sample gradients gᵢ at the drawn weights, N = ρ · training samples, δ̃ = τδ / N and M samples in the batch

    w = μ + σ ε,  σ = (N (s + δ̃ + γ))^(-1/2),  ε ~ N(0, 1)      (algorithm 1, lines 8-9)
    ĝ = Σ gᵢ / M,  ĥ = Σ gᵢ² / M                                 (10-14)
    m ← β₁ m + ĝ + δ̃ μ;  s ← (1 - τβ₂) s + β₂ ĥ;  μ ← μ - α m / (s + δ̃ + γ)      (17-19)

τ rises from `tempering_start` to `tempering` in `tempering_warmup` steps. β₂ is the weight of the *new* ĥ, 0.999 in the
authors' CIFAR-10 runs. With `draws` K > 1, ĝ and ĥ are means over K draws, each one more pass over the batch; the run's
`clip_norm` then clips the first draw's gradient. The draws come from `suite.stream`, the same on all ranks (the authors
draw anew on each), so that a run does not depend on the number of devices. The first step uses μ itself and initialises
s with its ĥ, as the authors' code does (the paper takes one more pass for it). That code tempers in another way: it
leaves τ out of s and multiplies σ² by it.

ĥ is exact for every layer that the task describes: a sample's gradient is summed over positions, and over calls of a
shared layer, before it is squared; before a batch normalisation, which couples samples, it is what the whole batch's
loss sends back through the sample. (The authors' code sums squares over positions for biases, and for batch
normalisation multiplies sums of squares.) A sample is one row of the batch; where the loss is a mean over words or time
steps, ĝ is a mean over words and ĥ one over sequences, so that steps are shorter. An element of ĥ that is not finite
leaves its s as it was, and is counted (`kept`); a gradient that is not finite spoils its parameter, as in every
optimizer here.

Batch normalisation's scale and shift have a mean only: neither noise nor prior (section 3; `non_reg_for_bn` in the
code), but their own curvature. A parameter that no layer describes (LayerNorm, tied tables, recurrent matrices,
grouped convolutions) has no per-sample gradient here: it takes Adam's step at `fallback_ratio` times the learning rate,
without noise or prior.
"""

from suite.declared import Declared, setting

SUMMARY = "VOGN: natural-gradient variational inference for a Gaussian over the weights (Osawa et al. 2019)"
CITATION = (
    "Osawa, Swaroop, Jain, Eschenhagen, Turner, Yokota, Khan: Practical Deep Learning with Bayesian Principles, "
    "NeurIPS 2019, arXiv:1906.02506"
)
NEEDS = ("layers", "shapes", "samples", "observe", "absorb", "forward_params", "evaluate", "reduce", "key", "facts")


class Settings(Declared):
    """lr, damping: best of a few at 240 steps of resnet50's laptop stand-in on digits, seed 0, torch.

    beta2, augmentation: the authors' ResNet-18 on CIFAR-10 (team-approx-bayes/dl-with-bayes), where lr is 1e-4, damping
    1e-3, prior_precision 50.
    """

    lr: float = setting(0.03, "learning rate α", at_least=0, scheduled=True, search=(0.003, 0.3, "log"))
    momentum: float = setting(0.9, "momentum β₁", at_least=0, at_most=1, scheduled=True)
    beta2: float = setting(
        0.999,
        "β₂, weight of the new squared gradients in s, not of the old ones",
        at_least=0,
        at_most=1,
        scheduled=True,
    )
    prior_precision: float = setting(1.0, "δ, precision of each weight's zero-mean prior", at_least=0, scheduled=True)
    damping: float = setting(
        0.1,
        "γ, added to s in steps and in the noise; bounds the noise when samples are few",
        at_least=0,
        scheduled=True,
        search=(0.01, 1.0, "log"),
    )
    tempering: float = setting(1.0, "τ, weight of the prior's divergence in the bound", at_least=0, scheduled=True)
    tempering_start: float = setting(0.1, "τ at the first step", at_least=0, scheduled=True)
    tempering_warmup: int = setting(
        20, "steps in which τ rises to tempering; 0: full tempering from the first step", at_least=0, scheduled=True
    )
    augmentation: float = setting(
        10.0, "ρ, factor by which the training split counts as larger", at_least=0, scheduled=True
    )
    draws: int = setting(1, "K, passes over a batch, each with newly drawn weights", at_least=1)
    fallback_ratio: float = setting(
        1.0, "Adam's learning rate divided by lr, for parameters that no layer describes", at_least=0, scheduled=True
    )
    fallback_beta1: float = setting(0.9, "decay of Adam's average of the gradient", at_least=0, below=1, scheduled=True)
    fallback_beta2: float = setting(
        0.999, "decay of Adam's average of the squared gradient", at_least=0, below=1, scheduled=True
    )
    fallback_epsilon: float = setting(1e-8, "added to the root of Adam's second moment", at_least=0, scheduled=True)
