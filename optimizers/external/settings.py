"""Settings of an optimizer from outside."""

from suite.declared import Declared, setting


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
