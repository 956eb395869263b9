"""Settings of SM3."""

from typing import Literal

from suite.declared import Declared, setting


class Settings(Declared):
    """momentum: the authors' tests (google-research/sm3)."""

    lr: float = setting(0.1, "learning rate η", at_least=0, scheduled=True, search=(0.01, 1.0, "log"))
    momentum: float = setting(
        0.9,
        "β, of the scaled gradients' average; 0: only μ is stored",
        at_least=0,
        at_most=1,
        scheduled=True,
    )
    weight_decay: float = setting(
        0.0, "λ of the L2 term, added to the gradients of matrices and filters", at_least=0, scheduled=True
    )
    variant: Literal["I", "II"] = setting("II", "SM3-I or SM3-II, which has the closer bound")
