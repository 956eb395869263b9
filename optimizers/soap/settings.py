"""Settings of SOAP."""

from suite.declared import Declared, setting


class Settings(Declared):
    """lr: the better of 0.003 and 0.01 at 120 steps of resnet50's laptop stand-in on data=shapes, seed 0.

    beta1, beta2, weight_decay, precondition_frequency: the official code (github.com/nikhilvyas/SOAP).
    search: of rates up to 0.03, the highest won on cifar10, dlrm and both kinds of resnet50's data.
    """

    lr: float = setting(0.01, "learning rate η", at_least=0, scheduled=True, search=(3e-4, 0.1, "log"))
    beta1: float = setting(0.95, "decay of the gradient's average", at_least=0, below=1, scheduled=True)
    beta2: float = setting(
        0.95,
        "decay of the averages of the squared gradient and of the statistics",
        at_least=0,
        below=1,
        scheduled=True,
    )
    epsilon: float = setting(1e-8, "added to the root of the second moment", at_least=0, scheduled=True)
    weight_decay: float = setting(
        0.01,
        "λ; each step takes η λ w from matrices and filters",
        at_least=0,
        scheduled=True,
        search=(0.001, 0.3, "log"),
    )
    precondition_frequency: int = setting(10, "steps between refreshes of the bases", at_least=1)
    start_preconditioning: int = setting(
        1, "first step with bases, counted from 0; earlier steps are AdamW's", at_least=1
    )
    max_size: int = setting(
        512, "longest side with a basis; 10000 in the official code, far slower on a CPU", at_least=1
    )
    one_sided: bool = setting(False, "true: the longer of two unequal sides has no basis")
