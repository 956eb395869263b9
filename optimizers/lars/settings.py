"""Settings of LARS."""

from suite.declared import Declared, setting


class Settings(Declared):
    """trust 1e-3: You et al. 2017, section 5."""

    lr: float = setting(10.0, "global learning rate η", at_least=0, scheduled=True, search=(1.0, 100.0, "log"))
    momentum: float = setting(0.9, "μ, decay of the velocity", at_least=0, at_most=1, scheduled=True)
    weight_decay: float = setting(5e-4, "λ of the L2 term, for matrices and filters", at_least=0, scheduled=True)
    trust: float = setting(
        1e-3, "trust coefficient, a factor of the learning rate of each matrix and filter", at_least=0, scheduled=True
    )
