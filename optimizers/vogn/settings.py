"""Settings of VOGN."""

from suite.declared import Declared, setting


class Settings(Declared):
    """lr, damping: best of a few at 240 steps of resnet50's laptop stand-in on digits, seed 0, torch.

    beta2, augmentation: the authors' ResNet-18 on CIFAR-10 (team-approx-bayes/dl-with-bayes), where lr is 1e-4, damping
    1e-3, prior_precision 50.
    """

    lr: float = setting(0.03, "learning rate α", at_least=0, scheduled=True, search=(0.003, 0.3, "log"))
    momentum: float = setting(0.9, "momentum β₁", at_least=0, at_most=1, scheduled=True)
    beta2: float = setting(
        0.999,
        "β₂, weight of the new squared gradients in s, not of the old ones",
        at_least=0,
        at_most=1,
        scheduled=True,
    )
    prior_precision: float = setting(1.0, "δ, precision of each weight's zero-mean prior", at_least=0, scheduled=True)
    damping: float = setting(
        0.1,
        "γ, added to s in steps and in the noise; bounds the noise when samples are few",
        at_least=0,
        scheduled=True,
        search=(0.01, 1.0, "log"),
    )
    tempering: float = setting(1.0, "τ, weight of the prior's divergence in the bound", at_least=0, scheduled=True)
    tempering_start: float = setting(0.1, "τ at the first step", at_least=0, scheduled=True)
    tempering_warmup: int = setting(
        20, "steps in which τ rises to tempering; 0: full tempering from the first step", at_least=0, scheduled=True
    )
    augmentation: float = setting(
        10.0, "ρ, factor by which the training split counts as larger", at_least=0, scheduled=True
    )
    draws: int = setting(1, "K, passes over a batch, each with newly drawn weights", at_least=1)
    fallback_ratio: float = setting(
        1.0, "Adam's learning rate divided by lr, for parameters that no layer describes", at_least=0, scheduled=True
    )
    fallback_beta1: float = setting(0.9, "decay of Adam's average of the gradient", at_least=0, below=1, scheduled=True)
    fallback_beta2: float = setting(
        0.999, "decay of Adam's average of the squared gradient", at_least=0, below=1, scheduled=True
    )
    fallback_epsilon: float = setting(1e-8, "added to the root of Adam's second moment", at_least=0, scheduled=True)
