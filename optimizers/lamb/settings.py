"""Settings of LAMB."""

from suite.declared import Declared, setting


class Settings(Declared):
    """betas, epsilon, weight_decay: NVIDIA's BERT (DeepLearningExamples). lr is relative to the weights' norm."""

    lr: float = setting(0.01, "learning rate η", at_least=0, scheduled=True, search=(0.001, 0.1, "log"))
    beta1: float = setting(0.9, "decay of the gradient's average", at_least=0, below=1, scheduled=True)
    beta2: float = setting(0.999, "decay of the squared gradient's average", at_least=0, below=1, scheduled=True)
    epsilon: float = setting(1e-6, "added to the root of the second moment", at_least=0, scheduled=True)
    weight_decay: float = setting(
        0.01,
        "λ, part of the direction in matrices and filters",
        at_least=0,
        scheduled=True,
        search=(0.001, 0.3, "log"),
    )
    bias_correction: bool = setting(True, "divide both averages by the weight they hold")
    adapt_vectors: bool = setting(False, "apply the ratio to biases and normalisation too (NVLAMB)")
    least_ratio: float = setting(0.0, "least value of the ratio ‖w‖ / ‖u‖", at_least=0, scheduled=True)
    largest_ratio: float = setting(0.0, "largest value of the ratio ‖w‖ / ‖u‖; 0: no bound", at_least=0, scheduled=True)
