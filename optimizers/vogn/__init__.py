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

SUMMARY = "VOGN: natural-gradient variational inference for a Gaussian over the weights (Osawa et al. 2019)"
CITATION = (
    "Osawa, Swaroop, Jain, Eschenhagen, Turner, Yokota, Khan: Practical Deep Learning with Bayesian Principles, "
    "NeurIPS 2019, arXiv:1906.02506"
)
NEEDS = ("layers", "shapes", "samples", "observe", "absorb", "forward_params", "evaluate", "reduce", "key", "facts")
