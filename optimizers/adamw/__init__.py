"""Adam with decoupled weight decay.

m ← β₁ m + (1 - β₁) g;  v ← β₂ v + (1 - β₂) g²;  w ← w - η (m̂ / (√v̂ + ε) + λ w)

with m̂ = m / (1 - β₁ᵗ) and v̂ = v / (1 - β₂ᵗ), or m and v themselves without bias correction, as BERT was trained. The
decay is multiplied by the learning rate, as in torch and optax, and spares vectors.
"""

SUMMARY = "Adam with decoupled weight decay (Loshchilov and Hutter 2019)"
CITATION = (
    "Kingma, Ba: Adam: A Method for Stochastic Optimization, ICLR 2015, arXiv:1412.6980; "
    "Loshchilov, Hutter: Decoupled Weight Decay Regularization, ICLR 2019, arXiv:1711.05101"
)
NEEDS = ("rows", "reset")
