"""Settings of Muon."""

from typing import Literal

from suite.declared import Declared, setting


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
