"""K-BFGS: Kronecker factors whose inverses BFGS updates, from two evaluations of the same batch.

For a linear layer with weights and bias side by side, W̃ = [W b], homogeneous inputs a = [h 1] and outputs s = W̃ a:

    m ← μ m + (1 - μ) ∇W̃                                  the averaged gradient
    W̃ ← W̃ - η Hg m Ha                                     Ha ≈ (A + √λ I)⁻¹, Hg ≈ inverse Hessian of the outputs
    A ← β A + (1 - β) mean(a aᵀ)

A second forward and backward pass over the same batch, at the new weights ('), gives the change of the mean outputs ŝ
and of the mean output gradient ĝ:

    s ← β s + (1 - β) (ŝ - ŝ'),  y ← β y + (1 - β) (ĝ - ĝ')
    Hg ← BFGS(Hg; s, y)            after double damping: Powell's by Hg, then Levenberg and Marquardt's by √λ
    Ha ← BFGS(Ha; Ha â, (A + √λ I) Ha â)                   â = mean(a): the Hessian acts, no second pass is needed

Ha begins as the inverse of A + √λ I, Hg as the identity. With `warm_start`, A begins as its mean over so many batches,
and the first step leaves it as it is (as the authors' code does). A pair that is not usable (sᵀy ≤ 10⁻⁴ sᵀs ‖ĝ‖, or the
result is not finite) leaves its matrix as it was, and is counted (`kept`).

Linear layers are covered; where a layer sees several positions of a sample (words), A sums over them, as in K-FAC,
and the means â, ĝ and ŝ are over them too. The calls of a shared layer add up their positions. All other parameters
(convolutions, normalisation, embeddings) follow W ← W - η m. The method is published for fully connected networks.
Each rank holds all matrices: a BFGS update costs two matrix-vector products, less than sending its result.
"""

from suite.declared import Declared, setting

SUMMARY = "Kronecker-factored BFGS (Goldfarb, Ren, Bahamou 2020)"
CITATION = (
    "Goldfarb, Ren, Bahamou: Practical Quasi-Newton Methods for Training Deep Neural Networks, NeurIPS 2020, "
    "arXiv:2006.08877"
)
NEEDS = ("layers", "shapes", "observe", "absorb", "prepare", "program", "evaluate", "reduce", "facts")


class Settings(Declared):
    """lr, damping and decays: the authors' MNIST autoencoder (renyiryry/kbfgs_neurips2020_public, Demo.ipynb)."""

    lr: float = setting(0.3, "learning rate η", at_least=0, scheduled=True, search=(0.03, 0.2, "log"))
    momentum: float = setting(
        0.9, "decay μ of the gradient's average, which is preconditioned", at_least=0, at_most=1, scheduled=True
    )
    damping: float = setting(
        0.3,
        "λ; its root is added to A and bounds the curvature of the pairs (s, y)",
        at_least=0,
        scheduled=True,
        search=(0.003, 0.1, "log"),
    )
    factor_decay: float = setting(0.9, "decay β of A's average", at_least=0, at_most=1, scheduled=True)
    pair_decay: float = setting(0.9, "decay β of the averages of s and y", at_least=0, at_most=1, scheduled=True)
    weight_decay: float = setting(
        0.0, "L2 term, added to the gradients of matrices and filters", at_least=0, scheduled=True
    )
    warm_start: int = setting(
        0, "batches whose A is averaged before the first step; the published runs read the data once", at_least=0
    )
