"""Finds optimizers of other packages by their dotted paths."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from suite.contract import MissingError, UserError, suggest_names
from suite.optimizers.external import Settings

# what to run for a missing package, where its name is not what pip wants
INSTALL = {
    "pytorch_optimizer": "pip install -e '.[rivals]', or optimizer.path=DIR where it lies",
    "kfac_jax": "git clone https://github.com/google-deepmind/kfac-jax DIR, then optimizer.path=DIR",
}


def dotted_path(backend: str, settings: Settings) -> str:
    """Return the dotted path for a backend.

    Args:
        backend: `torch` or `jax`.
        settings: with the paths for both.

    Raises:
        UserError: where only the other one's was given.
    """
    paths = {"torch": settings.torch, "jax": settings.jax}
    [other] = paths.keys() - {backend}
    defaults = {name: Settings.model_fields[name].default for name in paths}
    if paths[backend] == defaults[backend] and paths[other] != defaults[other]:
        raise UserError(
            f"optimizer.{other}={paths[other]}: not read with backend={backend}; set optimizer.{backend}=DOTTED.PATH, "
            f"or backend={other}"
        )
    return paths[backend]


def imported_object(key: str, dotted: str, path: str | None) -> Any:
    """Return the class or function that a dotted path names.

    Args:
        key: the setting it was typed in, for messages.
        dotted: module and name, `torch.optim.RMSprop`.
        path: folder to import from first, None for none.

    Raises:
        MissingError: where there is no such folder or module. UserError: where the module has no such name.
    """
    module, _, name = dotted.rpartition(".")
    if not module:
        raise UserError(f"optimizer.{key}={dotted}: write module and name, as in torch.optim.RMSprop or optax.rmsprop")
    library = import_library(f"optimizer.{key}={dotted}", module, path)
    try:
        return getattr(library, name)
    except AttributeError as error:
        hint = suggest_names(name, [known for known, value in vars(library).items() if callable(value)])
        raise UserError(f"optimizer.{key}={dotted}: {module} has no {name}; {hint}") from error


def import_library(typed: str, module: str, path: str | None) -> ModuleType:
    """A module of another package.

    Args:
        typed: what asked for it, for messages.
        module: its dotted path.
        path: folder to import from first, None for none.

    Raises:
        MissingError: where there is no such folder or module.
    """
    if path is not None and not Path(path).is_dir():
        raise MissingError(f"optimizer.path={path}: no such folder")
    if path is not None and path not in sys.path:
        sys.path.insert(0, path)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None:
            raise
        root = error.name.partition(".")[0]
        how = INSTALL.get(root, f"pip install {root}, or optimizer.path=DIR where it lies")
        raise MissingError(f"{typed}: no module {error.name} here; use {how}") from error


def make_arguments_error(key: str, dotted: str, error: Exception) -> UserError:
    """Return the error for an optimizer that cannot be made with the arguments given."""
    return UserError(f"optimizer.{key}={dotted}: {error}; see optimizer.arguments and the package's documentation")
