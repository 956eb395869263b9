"""K-FAC: natural gradient with a layer-wise Kronecker-factored approximation of the Fisher matrix.

For a linear layer or convolution with weights and bias side by side, W̃ = [W b], inputs a = [h 1], gradients g by the
outputs, over samples and the T positions of a sample (windows, words), which are treated as independent (K-FAC-expand):

    A ← β A + (1 - β) mean(Σ a aᵀ),  G ← β G + (1 - β) mean(Σ g gᵀ / T)        divided by 1 - βᵏ: the zero start
    d = (G + √λ/π I)⁻¹ ∇W̃ (A + π√λ I)⁻¹,  π² = mean eigenvalue of A / that of G
    v ← μ v + d,  W̃ ← W̃ - η v

Means are over samples, so λ means the same for any batch size, number of micro-batches and number of ranks. Covered:

- linear layers, also those inside attention: each projection is a layer, the words are its positions
- convolutions: the windows are the positions
- embeddings: A is diagonal, how often each word occurs; its inverse is taken in every step
- batch normalisation: `unit`, 2x2 blocks of each channel's scale and shift; `full`, all of them in one block
- a layer called more than once: T counts the positions of all calls

A matrix that two layers share, as tied embeddings do, has no factors. Parameters without factors (recurrent matrices,
too) follow SGD with the same learning rate and momentum. With a `fallback_ratio`, they take AdamW's step instead, at
`fallback_ratio` times the learning rate, with decoupled decay as in Muon. `kl_clip` neither counts nor scales them: the
Fisher metric is known of the others only.

Each rank inverts the factors it owns and sends the inverses; how these travel is `comm.factors`. Options:

- `stale`: each factor X is refreshed after its own interval of Δ steps (SP-NGD, algorithms 1 and 2). Two factors are
  similar if they differ by less than α, relative and in the Frobenius norm. If X is not similar to the last one, Δ is
  halved. If it is similar to the last one but not to the one before, Δ stays. If it is similar to both, Δ becomes
  Δ + Δ₋₁. X is the averaged factor, without damping. A factor that is not due is not computed, sent or inverted; in
  jax, a step that refreshes any factor computes and sends the statistics of all.
- `rescale`: after each step, norm √(2 · outputs) for the weights of linear layers and convolutions (SP-NGD, eq. 24).
  The velocity stays that of the step, while SP-NGD's is the difference of the weights.
- `kl_clip`: d is scaled by min(1, √(κ / η² Σ⟨∇, d⟩)), with the vector ∇ that was preconditioned.
- `quadratic_model`: W̃ ← W̃ - (α d + μ v) with the last step v (Martens and Grosse 2015, sections 6.4 and 7). α and μ
  minimise the quadratic model of the loss with the matrix F + λ I of all covered parameters together. F is estimated
  from one draw of labels, with one more pass in each step. λ begins at `damping`. Every five steps, it is multiplied
  by .95⁵ if the loss fell by more than 3/4 of what the model predicts, and divided by it if the loss fell by less than
  1/4 (Levenberg and Marquardt; section 6.5); this takes two more passes. Unlike in the paper, the factors are damped
  by the same λ (there by γ, which has its own search), and λ does not include the L2 term. Other parameters follow
  `lr` and `momentum`, or AdamW.
- `momentum_on: gradient`: m ← μ m + (1 - μ) ∇ is preconditioned and its d is the step.
- `damping_split: equal`: √λ for either factor. `inverse_warmup`: inverses at every step up to this one.
- `warm_start`: the mean statistics of so many batches are the first A and G, and 1 - βᵏ is 1.

Statistics that are not finite are skipped. A factor that has no Cholesky factor, even with ten times the damping, keeps
its inverse (at first the identity). Both are counted (`kept`). In π, a mean eigenvalue is at least 1e-12, so that a
layer with a factor of zero has the direction ∇/λ. Networks whose branches begin at zero have such layers.
"""

from typing import ClassVar, Literal

from suite.declared import Declared, setting

SUMMARY = "Kronecker-factored approximate curvature, distributed over owners (Osawa et al. 2019)"
CITATION = (
    "Martens, Grosse: Optimizing Neural Networks with Kronecker-factored Approximate Curvature, ICML 2015, "
    "arXiv:1503.05671; Osawa et al.: Scalable and Practical Natural Gradient for Large-Scale Deep Learning, "
    "arXiv:2002.06015"
)
NEEDS = ("layers", "shapes", "world", "observe", "absorb", "prepare", "program", "reduce", "host", "facts")
NEEDS += ("evaluate", "phase")


class Settings(Declared):
    """lr, damping and intervals: those of resnet50's laptop stand-in; no publication has them.

    factor_decay: Martens and Grosse 2015, section 5. stale and rescale: SP-NGD (Osawa et al. 2020). search: the highest
    rates up to 0.3 won on frnn, bert and dlrm; kl_clip is 1e-3 in ACKTR's code (openai/baselines) and 0.1 by hand on
    the autoencoder, whose loss is a sum over pixels; fallback_ratio is 0.01 to 0.1 by hand on frnn and bert.
    """

    renamed: ClassVar = {"symmetric": None}  # now comm.factors.symmetric

    lr: float = setting(0.03, "learning rate η", at_least=0, scheduled=True, search=(0.003, 1.0, "log"))
    momentum: float = setting(0.9, "momentum μ", at_least=0, at_most=1, scheduled=True)
    momentum_on: Literal["direction", "gradient"] = setting(
        "direction", "momentum averages the natural gradient, or the gradient before it is preconditioned"
    )
    damping: float = setting(
        0.1, "λ, added to the Fisher matrix", at_least=0, scheduled=True, search=(0.001, 1.0, "log")
    )
    damping_split: Literal["pi", "equal"] = setting(
        "pi", "how a layer's two factors share the damping: by their mean eigenvalues, or equally"
    )
    factor_decay: float = setting(0.95, "decay β of the factors' averages", at_least=0, at_most=1, scheduled=True)
    factor_interval: int = setting(10, "steps between updates of the factors", at_least=1)
    inverse_interval: int = setting(10, "steps between inversions of the factors", at_least=1)
    inverse_warmup: int = setting(
        0, "last step, counted from 0, up to which the factors are inverted at every step", at_least=0
    )
    stale: bool = setting(
        False, "each factor adapts its own interval (SP-NGD); needs factor_interval=1 and inverse_interval=1"
    )
    stale_alpha: float = setting(
        0.1, "relative change below which a factor counts as unchanged; read with stale", at_least=0, scheduled=True
    )
    warm_start: int = setting(0, "batches whose mean statistics initialise the factors", at_least=0)
    weight_decay: float = setting(
        0.0005,
        "L2 term, added to the gradients of matrices and filters before preconditioning",
        at_least=0,
        scheduled=True,
    )
    fisher: Literal["empirical", "sampled"] = setting(
        "empirical", "labels of the Fisher matrix: given, or drawn from the model (one more pass)"
    )
    batchnorm: Literal["unit", "full"] = setting(
        "unit", "curvature of a batch normalisation: 2x2 blocks, or one block of all scales and shifts"
    )
    rescale: bool = setting(False, "keep the norm of each layer's weight at sqrt(2 outputs) (SP-NGD)")
    kl_clip: float = setting(
        0.0,
        "κ, largest squared length of a step in the Fisher metric; 0: no limit",
        at_least=0,
        scheduled=True,
        search=(1e-4, 1.0, "log"),
    )
    quadratic_model: bool = setting(
        False,
        "length and momentum of a step follow from the exact quadratic model, and λ adapts (Martens and Grosse 2015)",
        before=False,
    )
    fallback_ratio: float = setting(
        0.0,
        "AdamW's learning rate for parameters without factors, divided by lr; 0: they take SGD's step at lr",
        at_least=0,
        search=(0.001, 1.0, "log"),
        before=0.0,
    )
    fallback_beta1: float = setting(0.9, "decay of AdamW's average of the gradient", at_least=0, below=1, before=0.9)
    fallback_beta2: float = setting(
        0.95, "decay of AdamW's average of the squared gradient", at_least=0, below=1, before=0.95
    )
    fallback_epsilon: float = setting(1e-8, "added to the root of AdamW's second moment", at_least=0, before=1e-8)
