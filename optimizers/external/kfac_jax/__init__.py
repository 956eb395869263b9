"""Adapter for kfac-jax: its curvature, inverses and preconditioned gradient in the suite's own step.

What a direction is made of is kfac-jax's; learning rate, momentum, weight decay and all that travels are the suite's:

    C ← β C + mean of the batch,  d = (C + λ I)⁻¹ ∇ block by block,  v ← μ v + d,  W ← W - η v

The library is not installed with the suite: `optimizer.path` names a checkout of
https://github.com/google-deepmind/kfac-jax, since its last release (0.0.8) does not run on jax 0.10. The checkout wants
`pip install distrax immutabledict`.

- The loss is registered as one number, whatever kind it is, so that the curvature is `fisher: empirical`, of the labels
  given, or `sampled`, of labels that the task draws from its model. kfac-jax divides the first by the batch size once
  more (`fisher_empirical`); here both are means over samples, as in the suite's K-FAC, so that λ means the same.
- Its graph matcher knows weights as (inputs, outputs) and HWIO, not torch's order. So the suite's layers are registered
  by name: linear ones as `dense` or, with further axes, `repeated_dense`, convolutions as `conv2d`, batch normalisation
  as `scale_and_shift` (diagonal, where the suite's K-FAC has 2x2 blocks). Everything else is left to the matcher: it
  finds layer normalisation, and makes `generic` what remains, embeddings, layers that are called more than once, and
  parameters of no layer. Their diagonal is the squared sum of the gradients of a rank's samples.
- So `dense` and `conv2d` have the factors and directions of the suite's K-FAC (the tests hold them to its reference).
  `repeated_dense` has them where no position is without a gradient: kfac-jax takes such a one for masked. A sample's
  weight other than 0 and 1 is squared in G.
- Statistics are taken in every step: kfac-jax knows no other interval. A step's micro-batches are seen as one batch.
- Ranks average the statistics; each makes all inverses, and kfac-jax's own distribution is switched off.

The result counts the blocks of each class.
"""

from typing import Literal

from suite.declared import Declared, setting

SUMMARY = "kfac-jax's curvature and preconditioning (optimizer.path: a checkout of google-deepmind/kfac-jax)"
CITATION = "Botev, Martens: KFAC-JAX, 2022, https://github.com/google-deepmind/kfac-jax"
NEEDS = ("layers", "shapes", "objective", "context", "reduce", "facts")


class Settings(Declared):
    """google-deepmind/kfac-jax, jax only: suite +task=resnet50 backend=jax optimizer=kfac_jax optimizer.path=CHECKOUT.

    kfac-jax updates its statistics in every step; no other interval is available.
    """

    jax: str = setting("kfac_jax", "the library's module")
    path: str | None = setting(None, "folder to import it from")
    lr: float = setting(0.03, "learning rate η", at_least=0, scheduled=True, search=(0.003, 0.3, "log"))
    momentum: float = setting(0.9, "momentum μ", at_least=0, at_most=1, scheduled=True)
    damping: float = setting(
        0.1,
        "λ, split between a block's two factors by their mean eigenvalues",
        at_least=0,
        scheduled=True,
        search=(0.01, 1.0, "log"),
    )
    factor_decay: float = setting(0.95, "decay β, kfac-jax's curvature_ema", at_least=0, at_most=1, scheduled=True)
    inverse_interval: int = setting(10, "steps between inversions, kfac-jax's inverse_update_period", at_least=1)
    weight_decay: float = setting(
        0.0005, "L2 term, added to the gradients of matrices and filters", at_least=0, scheduled=True
    )
    fisher: Literal["empirical", "sampled"] = setting(
        "empirical", "labels of the Fisher matrix: given, or drawn from the model"
    )
