"""Settings of kfac-jax's adapter."""

from typing import Literal

from suite.declared import Declared, setting


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
