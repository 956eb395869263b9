"""Settings of Shampoo."""

from typing import Literal

from suite.declared import Declared, setting

Reshape = Literal["matrix", "merge", "none"]
Graft = Literal["sgd", "adagrad", "rmsprop", "adam"]


class Settings(Declared):
    """lr and nesterov: best of a few at 300 steps of resnet50's laptop stand-in on data=shapes, seed 0.

    epsilon and merge_size: defaults of google-research/precondition. block_size: Anil's ResNet-50 (row C1-03, recipe
    anil-shampoo-32k).
    """

    lr: float = setting(0.3, "learning rate η", at_least=0, scheduled=True, search=(0.03, 3.0, "log"))
    momentum: float = setting(0.9, "μ, of the grafted step", at_least=0, at_most=1, scheduled=True)
    nesterov: bool = setting(True, "look ahead by one momentum step")
    weight_decay: float = setting(
        5e-4, "λ of the L2 term, added to the gradients of matrices and filters", at_least=0, scheduled=True
    )
    beta2: float = setting(
        0.99,
        "decay of the averages of the statistics and of the graft; 1: sums, as in Gupta et al. 2018",
        at_least=0,
        at_most=1,
        scheduled=True,
        search=(0.9, 0.999, "linear"),
    )
    epsilon: float = setting(1e-6, "ridge, relative to a statistic's largest eigenvalue", at_least=0, scheduled=True)
    block_size: int = setting(128, "longest side of a block", at_least=1)
    reshape: Reshape = setting(
        "matrix", "sides with factors; matrix: first and rest; merge: neighbours up to merge_size; none: every side"
    )
    merge_size: int = setting(4096, "longest merged side", at_least=1)
    exponent: int | None = setting(None, "p of the roots A^(-1/p); null: twice the number of factors", at_least=1)
    max_size: int | None = setting(
        None, "a longer side has no factor; null: every side has factors, block by block", at_least=1
    )
    large: Literal["one_sided", "skip"] = setting(
        "one_sided", "with a side longer than max_size, precondition the other sides, or skip the parameter"
    )
    embeddings: bool = setting(True, "precondition embeddings; false: they take the graft's step")
    inverse_interval: int = setting(10, "steps between refreshes of the roots", at_least=1)
    start_preconditioning: int = setting(
        5, "first step with roots, counted from 0; earlier steps are the graft's", at_least=0
    )
    lag: int = setting(
        0,
        "steps in which a host thread computes the roots, at most inverse_interval; 0: compute them at once",
        at_least=0,
    )
    stagger: bool = setting(False, "spread each refresh over the steps of an interval")
    graft: Graft = setting(
        "sgd", "method that sets the length of each parameter's step; with all but sgd, lr is about 1e-3"
    )
    graft_blocks: bool = setting(
        False, "take the length from the graft's step block by block, not from the whole parameter's", before=False
    )
    root: Literal["auto", "eigh", "eigh32", "newton"] = setting(
        "auto", "how roots are computed; eigh is in float64; auto: eigh on a CPU, newton elsewhere"
    )
