"""Any gradient-only optimizer from elsewhere: a `torch.optim.Optimizer` class, an optax transformation.

`optimizer.torch` and `optimizer.jax` are dotted paths; `optimizer.arguments` are what the chosen backend's is called
with beside the parameters and the learning rate, which the run's schedule sets at every step (torch: `lr`; optax:
`learning_rate`). `optimizer.path` is a folder to import it from. What asks for more than the gradient is not served: a
closure (LBFGS, SAM), the loss's value (Polyak steps), a loss of its own (kfac-jax). Methods that switch between
training and evaluation (schedule-free ones) are not served either, but nothing tells them apart: they run, and are
evaluated at the wrong weights. The rival's own state is saved with a run where it consists of arrays, numbers and
strings.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from suite.contract import UserError

SUMMARY = "a torch.optim class or optax transformation named by its dotted path (optimizer.torch, optimizer.jax)"
CITATION = ""
NEEDS = ()
DEFAULTS = {"torch": "torch.optim.SGD", "jax": "optax.sgd"}
RIVALS = ("pytorch_optimizer",)  # packages of the extra


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
    if path is not None and not Path(path).is_dir():
        raise UserError(f"optimizer.path={path}: no such folder")
    if path is not None and path not in sys.path:
        sys.path.insert(0, path)
    module, _, name = dotted.rpartition(".")
    if not module:
        raise UserError(f"optimizer.{key}={dotted}: write module and name, as in torch.optim.RMSprop or optax.rmsprop")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None:
            raise
        root = error.name.partition(".")[0]
        package = "-e '.[rivals]'" if root in RIVALS else root
        raise UserError(
            f"optimizer.{key}={dotted}: no module {error.name} here; type pip install {package}, or optimizer.path=DIR "
            "where it lies"
        ) from error
    except AttributeError as error:
        raise UserError(f"optimizer.{key}={dotted}: {module} has no {name}") from error


def refused(key: str, dotted: str, error: Exception) -> UserError:
    """What to say of a rival that cannot be made with the arguments given."""
    return UserError(f"optimizer.{key}={dotted}: {error}; see optimizer.arguments and the rival's documentation")
