"""Settings of AdamW."""

from suite.declared import Declared, setting


class Settings(Declared):
    """lr: best of a few at 300 steps of resnet50's laptop stand-in on data=shapes, seed 0. The rest: torch.optim."""

    lr: float = setting(0.01, "learning rate η", at_least=0, scheduled=True, search=(1e-4, 0.03, "log"))
    beta1: float = setting(0.9, "decay of the gradient's average", at_least=0, below=1, scheduled=True)
    beta2: float = setting(0.999, "decay of the squared gradient's average", at_least=0, below=1, scheduled=True)
    epsilon: float = setting(1e-8, "added to the root of the second moment", at_least=0, scheduled=True)
    weight_decay: float = setting(
        0.01,
        "λ; each step takes η λ w from matrices and filters",
        at_least=0,
        scheduled=True,
        search=(0.001, 0.3, "log"),
    )
    bias_correction: bool = setting(True, "divide both averages by the weight they hold; false: as BERT was trained")
