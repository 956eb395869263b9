"""SOAP: Adam in the eigenbasis of Shampoo's statistics.

A parameter of shape (O, I, k, k) is seen as the matrix (O, I·k·k). Its reduced gradient G follows

    G' = Q_Lᵀ G Q_R
    M' ← β₁ M' + (1 - β₁) G',  V ← β₂ V + (1 - β₂) G'²
    W ← W - η (Q_L (M̂' / (√V̂ + ε)) Q_Rᵀ + λ W)                  hats: divided by 1 - βᵗ
    L ← β₂ L + (1 - β₂) G Gᵀ,  R ← β₂ R + (1 - β₂) Gᵀ G

where the columns of Q_L and Q_R are the eigenvectors of L and R. A side longer than `max_size` keeps Q = I, and with
`one_sided` so does the longer of two unequal sides. Vectors, and matrices with no side left, take AdamW's step.

Bases are refreshed every `precondition_frequency` steps from `start_preconditioning` on, before the update,
each by its owner: first by an eigenvalue decomposition, then by one power iteration and a QR factorisation of
(L + δ I) Q, columns taken in the order of the eigenvalues that they estimate. δ is at the level of rounding: columns in
the null space of L stay what they were but for orthogonality. M' turns with its basis; V stays, as columns keep their
places. A refresh sees no gradient but those of earlier steps. Before the first one Q = I, which is AdamW; the official
code takes no step there instead.

Where L is zero or not finite, Q stays what it was, and that is counted. Zero gradients change nothing but by decay; one
that is not finite spoils its parameter, as in every optimizer here.
"""

from suite.declared import Declared, setting

SUMMARY = "SOAP: Adam in Shampoo's eigenbasis, bases distributed over owners (Vyas et al. 2024)"
CITATION = (
    "Vyas, Morwani, Zhao, Kwun, Shapira, Brandfonbrener, Janson, Kakade: SOAP: Improving and Stabilizing Shampoo using "
    "Adam, arXiv:2409.11321"
)
NEEDS = ("shapes", "world", "program", "reduce", "facts")


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
