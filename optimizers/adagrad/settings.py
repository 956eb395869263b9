"""Settings of AdaGrad."""

from suite.declared import Declared, setting


class Settings(Declared):
    """lr: MLPerf's DLRM-DCNv2 at batch 65,536 (mlcommons/training, recommendation_v2). epsilon: torch.optim.

    search: of rates up to 0.3, the highest won on resnet50.
    """

    lr: float = setting(0.005, "learning rate η", at_least=0, scheduled=True, search=(0.001, 1.0, "log"))
    momentum: float = setting(
        0.0, "μ, of the scaled gradient; 0: no velocity is stored", at_least=0, at_most=1, scheduled=True
    )
    weight_decay: float = setting(
        0.0, "λ of the L2 term, added to the gradients of matrices and filters", at_least=0, scheduled=True
    )
    epsilon: float = setting(1e-10, "ε, added to the root", at_least=0, scheduled=True)
    initial_accumulator: float = setting(
        0.0, "δ, added to the sums below the root; 0.1 in optax and TensorFlow", at_least=0, scheduled=True
    )
