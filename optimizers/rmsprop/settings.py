"""Settings of RMSProp."""

from suite.declared import Declared, setting


class Settings(Declared):
    """beta2: Tieleman and Hinton's slide. lr: Keras. epsilon: torch.optim."""

    lr: float = setting(0.001, "learning rate η", at_least=0, scheduled=True, search=(1e-4, 0.03, "log"))
    momentum: float = setting(
        0.0, "μ, of the scaled gradient; 0: no velocity is stored", at_least=0, at_most=1, scheduled=True
    )
    beta2: float = setting(0.9, "decay of the squared gradient's average", at_least=0, at_most=1, scheduled=True)
    epsilon: float = setting(
        1e-8, "ε, added to the root; with `tensorflow` added inside the root", at_least=0, scheduled=True
    )
    weight_decay: float = setting(
        0.0, "λ of the L2 term, added to the gradients of matrices and filters", at_least=0, scheduled=True
    )
    centered: bool = setting(False, "subtract the squared mean of the gradient, so that the root is of a variance")
    tensorflow: bool = setting(
        False, "as TensorFlow's first version: ε inside the root, averages start at 1, the velocity includes η"
    )
