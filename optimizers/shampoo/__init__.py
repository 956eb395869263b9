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

SUMMARY = "blocked Shampoo with grafting, roots distributed over owners or lagging on the host (Anil et al. 2020)"
CITATION = (
    "Gupta, Koren, Singer: Shampoo: Preconditioned Stochastic Tensor Optimization, ICML 2018, arXiv:1802.09568; "
    "Anil, Gupta, Koren, Regan, Singer: Scalable Second Order Optimization for Deep Learning, arXiv:2002.09018"
)
NEEDS = ("tables", "shapes", "world", "collect", "program", "reduce", "host", "facts")
