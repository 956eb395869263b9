"""K-BFGS: Kronecker factors whose inverses follow by BFGS, from two looks at the same batch.

For a linear layer with weights and bias side by side, W̃ = [W b], homogeneous inputs a = [h 1] and outputs s = W̃ a:

    m ← μ m + (1 - μ) ∇W̃                                  the averaged gradient
    W̃ ← W̃ - η Hg m Ha                                     Ha ≈ (A + √λ I)⁻¹, Hg ≈ inverse Hessian of the outputs
    A ← β A + (1 - β) mean(a aᵀ)

A second forward and backward pass over the same batch, at the new weights, tells how the mean outputs ŝ and the mean
gradient ĝ by them have moved:

    s ← β s + (1 - β) (ŝ - ŝ'),  y ← β y + (1 - β) (ĝ - ĝ')
    Hg ← BFGS(Hg; s, y)            after double damping: Powell's by Hg, then Levenberg and Marquardt's by √λ
    Ha ← BFGS(Ha; Ha â, (A + √λ I) Ha â)                   â = mean(a): the Hessian acts, no second pass is needed

Ha begins as the inverse of A + √λ I, Hg as the identity. `warm_start` batches are looked at before the first step,
for A, which the first step then leaves as it is (as the authors' code does); it is 0 where none are. A pair that is not
usable (sᵀy ≤ 10⁻⁴ sᵀs ‖ĝ‖, or nothing finite comes of it) leaves its matrix as it was, and is counted (`kept`).

Linear layers are covered; where a layer sees several positions of a sample (words), A sums over them, as in K-FAC,
and the means â, ĝ and ŝ go over them too. Each call of a shared layer is so many more positions. All other parameters
(convolutions, normalisation, embeddings) follow W ← W - η m. The method is published for fully connected networks.
Each rank holds all matrices: a BFGS update costs two matrix-vector products, less than sending its result.
"""

SUMMARY = "Kronecker-factored BFGS (Goldfarb, Ren, Bahamou 2020)"
CITATION = (
    "Goldfarb, Ren, Bahamou: Practical Quasi-Newton Methods for Training Deep Neural Networks, NeurIPS 2020, "
    "arXiv:2006.08877"
)
NEEDS = ("layers", "shapes", "observe", "absorb", "prepare", "program", "evaluate", "reduce", "facts")
