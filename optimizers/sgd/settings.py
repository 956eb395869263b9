"""Settings of SGD."""

from suite.declared import Declared, setting


class Settings(Declared):
    """No source is recorded for these values."""

    lr: float = setting(0.05, "learning rate η", at_least=0, scheduled=True, search=(0.01, 1.0, "log"))
    momentum: float = setting(0.9, "μ, decay of the velocity", at_least=0, at_most=1, scheduled=True)
    nesterov: bool = setting(False, "look ahead by one momentum step")
    weight_decay: float = setting(
        5e-4, "λ of the L2 term, added to the gradients of matrices and filters", at_least=0, scheduled=True
    )
