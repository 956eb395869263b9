"""Any gradient-only optimizer from elsewhere: a `torch.optim.Optimizer` class, an optax transformation.

`optimizer.torch` and `optimizer.jax` are dotted paths; `optimizer.arguments` are what the chosen backend's is called
with beside the parameters and the learning rate, which the run's schedule sets at every step (torch: `lr`; optax:
`learning_rate`). `optimizer.path` is a folder to import it from. What asks for more than the gradient is not served: a
closure (LBFGS, SAM), the loss's value (Polyak steps). kfac-jax, which traces the loss, has an adapter of its own, in
`kfac_jax/`. Methods that switch between training and evaluation (schedule-free ones) are not served either, but nothing
tells them apart: they run, and are evaluated at the wrong weights. The rival's own state is saved with a run where it
consists of arrays, numbers and strings.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from suite.contract import UserError

SUMMARY = "a torch.optim class or optax transformation named by its dotted path (optimizer.torch, optimizer.jax)"
CITATION = ""
NEEDS = ()
DEFAULTS = {"torch": "torch.optim.SGD", "jax": "optax.sgd"}
# what to type for a package that is not there, where its name is not what pip wants
INSTALL = {
    "pytorch_optimizer": "pip install -e '.[rivals]', or optimizer.path=DIR where it lies",
    "kfac_jax": "git clone https://github.com/google-deepmind/kfac-jax DIR, then optimizer.path=DIR",
}


def chosen(key: str, **paths: str) -> str:
    """The dotted path for a backend.

    Args:
        key: the backend.
        paths: what stands in the configuration for either.

    Raises:
        UserError: where only the other one's was given.
    """
    [other] = paths.keys() - {key}
    if paths[key] == DEFAULTS[key] and paths[other] != DEFAULTS[other]:
        raise UserError(
            f"optimizer.{other}={paths[other]}: not read with backend={key}; type optimizer.{key}=DOTTED.PATH, "
            f"or backend={other}"
        )
    return paths[key]


def found(key: str, dotted: str, path: str | None) -> Any:
    """What a dotted path names.

    Args:
        key: where it was typed, for messages.
        dotted: module and name, `torch.optim.RMSprop`.
        path: folder to import from first, None for none.

    Raises:
        UserError: where there is no such folder, module or name.
    """
    module, _, name = dotted.rpartition(".")
    if not module:
        raise UserError(f"optimizer.{key}={dotted}: write module and name, as in torch.optim.RMSprop or optax.rmsprop")
    try:
        return getattr(imported(f"optimizer.{key}={dotted}", module, path), name)
    except AttributeError as error:
        raise UserError(f"optimizer.{key}={dotted}: {module} has no {name}") from error


def imported(typed: str, module: str, path: str | None) -> ModuleType:
    """A module from elsewhere.

    Args:
        typed: what asked for it, for messages.
        module: its dotted path.
        path: folder to import from first, None for none.

    Raises:
        UserError: where there is no such folder or module.
    """
    if path is not None and not Path(path).is_dir():
        raise UserError(f"optimizer.path={path}: no such folder")
    if path is not None and path not in sys.path:
        sys.path.insert(0, path)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None:
            raise
        root = error.name.partition(".")[0]
        how = INSTALL.get(root, f"pip install {root}, or optimizer.path=DIR where it lies")
        raise UserError(f"{typed}: no module {error.name} here; type {how}") from error


def refused(key: str, dotted: str, error: Exception) -> UserError:
    """What to say of a rival that cannot be made with the arguments given."""
    return UserError(f"optimizer.{key}={dotted}: {error}; see optimizer.arguments and the rival's documentation")
