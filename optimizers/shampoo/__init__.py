"""Shampoo: a preconditioner for each side of each matrix, from the gradient alone.

A parameter of shape (O, I, k, k) is seen as the matrix (O, I·k·k) and cut into blocks of at most `block_size` a side.
Each block G of the reduced gradient, weight decay included, follows

    L ← β₂ L + (1 - β₂) G Gᵀ,  R ← β₂ R + (1 - β₂) Gᵀ G      with β₂ = 1: sums, L ← L + G Gᵀ
    P = (L + ε λmax(L) I)^(-1/4) G (R + ε λmax(R) I)^(-1/4)
    d = ‖s‖ P / ‖P‖,  v ← μ v + d,  w ← w - η v              ‖·‖ over the whole parameter

where s is the step of the grafted method: SGD, AdaGrad, RMSProp or Adam without its first moment, as momentum comes
after. L and R start at zero and are not corrected for it: the ridge is relative, and grafting cancels a common factor.
Vectors take the step s itself, and so does everything before the first refresh of the roots.

Roots are refreshed every `inverse_interval` steps from `start_preconditioning` on, between gradient and update, each by
its owner. A refresh sees no gradient but those of earlier steps: the roots of step t are of L and R after step t - 1.
"""

SUMMARY = "blocked Shampoo with grafting, roots distributed over owners (Anil et al. 2020)"
CITATION = (
    "Gupta, Koren, Singer: Shampoo: Preconditioned Stochastic Tensor Optimization, ICML 2018, arXiv:1802.09568; "
    "Anil, Gupta, Koren, Regan, Singer: Scalable Second Order Optimization for Deep Learning, arXiv:2002.09018"
)
NEEDS = ("shapes", "world", "program", "facts")
