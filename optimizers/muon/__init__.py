"""Muon: momentum whose singular values are brought close to one.

A weight of shape (O, I, k, k) is seen as the matrix (O, I·k·k). Its gradient G follows

    B ← μ B + (1 - μ) G,  U = μ B + (1 - μ) G with Nesterov's look-ahead, else B
    X₀ = U / ‖U‖,  Xᵢ₊₁ = a Xᵢ + b (Xᵢ Xᵢᵀ) Xᵢ + c (Xᵢ Xᵢᵀ)² Xᵢ      (a, b, c) = (3.4445, -4.7750, 2.0315)
    W ← W - η (s X₅ + λ W)

with s = √max(1, rows / columns), or 0.2 √max(rows, columns) under `scale: match_rms_adamw`. Five iterations do not
converge: they bring what is not tiny to between about 0.7 and 1.2.

Treated are the weights of the layers that the task describes as `linear` or `conv2d`, except those named in
`excluded`: by default the last linear layer described, which is the model's head; where the head is a table tied to
the embedding, no layer describes it, and `excluded: []` keeps the last hidden layer in. All other parameters (embedding
tables, vectors, recurrent matrices, which no layer describes) take AdamW's step, at `fallback_ratio` times the learning
rate, so that one schedule moves both. Decay spares vectors.

The iteration runs in the parameters' type; `bfloat16` rounds it as published. A zero gradient gives a zero step; one
that is not finite spoils its parameter, as in every optimizer here.
"""

from typing import Literal

from suite.declared import Declared, setting

SUMMARY = "Muon: momentum orthogonalised by Newton-Schulz, AdamW for other parameters (Jordan et al. 2024)"
CITATION = (
    "Jordan, Jin, Boza, You, Cesista, Newhouse, Bernstein: Muon: An optimizer for hidden layers in neural networks, "
    "2024, https://kellerjordan.github.io/posts/muon/; Liu et al.: Muon is Scalable for LLM Training, arXiv:2502.16982"
)
NEEDS = ("layers", "shapes")


class Settings(Declared):
    """lr: the better of 0.02 and 0.1 at 120 steps of resnet50's laptop stand-in on data=shapes, seed 0.

    momentum, iterations: github.com/KellerJordan/Muon, where lr is 0.02 and AdamW's 3e-4, a ratio of 0.015.
    search: of rates up to 0.3, the highest won on cifar10 and both kinds of resnet50's data.
    """

    lr: float = setting(
        0.1, "learning rate η of the orthogonalised matrices", at_least=0, scheduled=True, search=(0.003, 1.0, "log")
    )
    momentum: float = setting(0.95, "μ, decay of the gradient's average", at_least=0, at_most=1, scheduled=True)
    nesterov: bool = setting(True, "look ahead by one momentum step")
    weight_decay: float = setting(
        0.01,
        "λ; each step takes η λ w from matrices and filters, at AdamW's rate from those that it updates",
        at_least=0,
        scheduled=True,
    )
    iterations: int = setting(5, "Newton-Schulz iterations; 0 only normalises", at_least=0)
    scale: Literal["original", "match_rms_adamw"] = setting(
        "original",
        "√max(1, rows/columns) or, for AdamW's usual lr, 0.2 √max(rows, columns)",
    )
    excluded: list[str] | tuple[str, ...] | None = setting(
        None, "names of layers that AdamW updates; null: the last linear layer"
    )
    bfloat16: bool = setting(False, "iterate in bfloat16, as published; twice as fast on hardware with bfloat16")
    fallback_ratio: float = setting(
        0.1, "AdamW's learning rate divided by lr", at_least=0, scheduled=True, search=(0.01, 1.0, "log")
    )
    fallback_beta1: float = setting(
        0.9, "decay of AdamW's average of the gradient", at_least=0, below=1, scheduled=True
    )
    fallback_beta2: float = setting(
        0.95, "decay of AdamW's average of the squared gradient", at_least=0, below=1, scheduled=True
    )
    fallback_epsilon: float = setting(1e-8, "added to the root of AdamW's second moment", at_least=0, scheduled=True)
