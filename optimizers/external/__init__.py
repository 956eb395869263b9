"""Any gradient-only optimizer from outside: a `torch.optim.Optimizer` class or an optax transformation.

`optimizer.torch` and `optimizer.jax` are dotted paths; `optimizer.arguments` are what the chosen backend's is called
with beside the parameters and the learning rate, which the run's schedule sets at every step (torch: `lr`; optax:
`learning_rate`). `optimizer.path` is a folder to import it from. Optimizers that need more than the gradient are not
supported: a closure (LBFGS, SAM), the loss's value (Polyak steps). kfac-jax, which traces the loss, has an adapter in
`kfac_jax/`. The engine tries an optimizer before the first step, and refuses one that would not train as its package
says (`outside` in NEEDS). Methods that train at one point and are evaluated at another (schedule-free ones) are
evaluated where they say: in torch by `train()` and `eval()`, in optax by `schedule_free_eval_params`.
"""

from suite.declared import Declared, setting

SUMMARY = "a torch.optim class or optax transformation named by its dotted path (optimizer.torch, optimizer.jax)"
CITATION = ""
NEEDS = ("key", "model", "outside")


class Settings(Declared):
    """Any gradient-only optimizer by its dotted path, which is also its name on the board.

    Run suite +task=resnet50 optimizer=external optimizer.torch=torch.optim.RMSprop optimizer.arguments={alpha: 0.9}.
    """

    torch: str = setting("torch.optim.SGD", "dotted path of a class, for backend=torch")
    jax: str = setting("optax.sgd", "dotted path of a function of learning_rate, for backend=jax")
    lr: float = setting(
        0.1, "learning rate; a run sets it at each step", at_least=0, scheduled=True, search=(1e-4, 1.0, "log")
    )
    arguments: dict | None = setting(None, "further arguments: optimizer.arguments={alpha: 0.9}")
    path: str | None = setting(None, "folder to import it from")
    matrices: str | None = setting(
        None, "torch: name of a group option that is true for matrices and filters; some Muons need use_muon"
    )
