"""Settings of K-BFGS."""

from suite.declared import Declared, setting


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
