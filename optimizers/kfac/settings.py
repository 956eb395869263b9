"""Settings of K-FAC."""

from typing import ClassVar, Literal

from suite.declared import Declared, setting


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
