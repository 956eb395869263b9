"""Shampoo: one preconditioner for each side of each matrix, computed from gradients alone.

A parameter of shape (O, I, k, k) is seen as the matrix (O, I·k·k) and cut into blocks of at most `block_size` a side.
Each block G of the reduced gradient, weight decay included, follows

    L ← β₂ L + (1 - β₂) G Gᵀ,  R ← β₂ R + (1 - β₂) Gᵀ G      with β₂ = 1: sums, L ← L + G Gᵀ
    P = (L + ε λmax(L) I)^(-1/4) G (R + ε λmax(R) I)^(-1/4)
    d = ‖s‖ P / ‖P‖,  v ← μ v + d,  w ← w - η v              ‖·‖ over the whole parameter

where s is the step of the grafted method: SGD, AdaGrad, RMSProp or Adam without its first moment, as momentum comes
after. With `graft_blocks` the norms are those of each block, as in Meta's implementation. L and R start at zero and are
not corrected for it: the ridge is relative, and grafting cancels a common factor.
Vectors take the step s itself, and so does everything before the first refresh of the roots. The roots are of L and R
with the gradient of the same step (Gupta et al., algorithm 1).

Shapes. `reshape` says which sides have a factor: both of the matrix, all sides of the tensor (`none`), or those of the
tensor whose neighbouring small sides are merged (`merge`). With k factors the exponent is -1 / (2 k) (Gupta et al.,
algorithm 2), unless `exponent` overrides it. A side longer than `max_size` has no factor and is not cut: the others are
preconditioned with the exponent of fewer factors, G R^(-1/2) for a table of many rows (`one_sided`), or the parameter
takes the step s (`skip`). So do all tables of embeddings where `embeddings` is false, also one that projects to words.

Roots are refreshed every `inverse_interval` steps from `start_preconditioning` on, each by its owner: after the
step's gradient has entered L and R, and before the update. With `lag` a thread of the host takes the roots while
training goes on, and they are installed at exactly t + lag, if need be after waiting: what is under way is part of the
state, so that a restored run lands the same bits. With `stagger` the
blocks are dealt out over the steps of an interval, after a first refresh of all. A lag takes memory for up to
three more copies of a rank's own statistics: those under way, stacked for the host, and their roots.

A root that cannot be taken (statistics zero, denormal or not finite, singular without a ridge, no convergence) stays
what it was, and that is counted: `kept` in the result. Zero gradients change nothing but by decay; one that is not
finite spoils its parameter.
"""

from typing import Literal

from suite.declared import Declared, setting

Reshape = Literal["matrix", "merge", "none"]
Graft = Literal["sgd", "adagrad", "rmsprop", "adam"]
SUMMARY = "blocked Shampoo with grafting, roots distributed over owners or lagging on the host (Anil et al. 2020)"
CITATION = (
    "Gupta, Koren, Singer: Shampoo: Preconditioned Stochastic Tensor Optimization, ICML 2018, arXiv:1802.09568; "
    "Anil, Gupta, Koren, Regan, Singer: Scalable Second Order Optimization for Deep Learning, arXiv:2002.09018"
)
NEEDS = ("tables", "shapes", "world", "collect", "program", "reduce", "host", "facts")


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
