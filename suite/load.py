"""Finds members by their folder and loads them by name. There is no list of members anywhere.

A member is a folder of a group (`tasks`, `optimizers`, `comm/codecs` …) whose name does not begin
with `_`; one outside the tree enters through `module: mylab.newopt` in the configuration.
"""

import difflib
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from suite.contract import UserError

BACKENDS = ("torch", "jax")
GROUPS = {
    "tasks": "suite.tasks",
    "optimizers": "suite.optimizers",
    "codecs": "suite.comm.codecs",
    "algorithms": "suite.comm.algorithms",
    "topologies": "suite.comm.topologies",
    "schedules": "suite.comm.schedules",
}


def members(group: str) -> dict[str, Path]:
    """Folders of a group's members, by name."""
    package = importlib.import_module(GROUPS[group])
    roots = [Path(path) for path in package.__path__]
    folders = [folder for root in roots for folder in root.iterdir() if (folder / "__init__.py").exists()]
    return {folder.name: folder for folder in sorted(folders) if not folder.name.startswith("_")}


def backends(folder: Path) -> list[str]:
    """The backends a member is written for."""
    return [backend for backend in BACKENDS if (folder / f"{backend}.py").exists()]


def files(group: str, directory: Path | None = None) -> list[Path]:
    """A configuration group's files, those in the user's own `directory` last."""
    package = importlib.import_module("suite.conf")
    roots = [*map(Path, package.__path__), *([directory] if directory else [])]
    return [path for root in roots for path in sorted((root / group).glob("*.yaml"))]


def options(group: str, directory: Path | None = None) -> list[str]:
    """Names of a configuration group's files: what may follow `group=`."""
    return sorted({path.stem for path in files(group, directory)})


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest ones, or all of them."""
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names) or 'none'}"


def framework(backend: str) -> None:
    """Refuse a backend whose framework is not installed.

    Raises:
        UserError: naming what to type.
    """
    for needed in {"torch": ("torch",), "jax": ("jax", "optax")}[backend]:
        if importlib.util.find_spec(needed) is None:
            raise UserError(f"backend={backend}: {needed} is not installed; type: pip install -e '.[{backend}]'")


def half(module: str, backend: str) -> ModuleType:
    """One backend's half of a member, for example `suite.optimizers.kfac.torch`.

    Raises:
        UserError: where the member, or that half of it, does not exist.
    """
    try:
        return importlib.import_module(f"{module}.{backend}")
    except ModuleNotFoundError as error:
        folders = getattr(common(module), "__path__", ()) if error.name == f"{module}.{backend}" else ()
        if written := [other for folder in folders for other in backends(Path(folder))]:
            raise UserError(f"{module}: is written for {written[0]} alone; type backend={written[0]}") from error
        if error.name and f"{module}.{backend}".startswith(error.name):
            raise UserError(f"{module}: no module {error.name}; check `module:` in its YAML file") from error
        raise


def common(module: str) -> ModuleType:
    """A member's framework-free half.

    Raises:
        UserError: where it does not exist.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):
            raise UserError(f"{module}: no module {error.name}; check `module:` in its YAML file") from error
        raise


def arguments(node: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration node without its address: what the member's `make` takes."""
    return {name: value for name, value in node.items() if name not in ("name", "module")}


def made(make: Callable[..., Any], node: Mapping[str, Any], what: str, *given: Any, **asked: Any) -> Any:
    """What a member's `make` makes of a configuration node.

    Args:
        make: the member's.
        node: its options, with its address.
        what: the node's place in the configuration, for errors.
        given: further arguments.
        asked: further arguments by name.

    Raises:
        UserError: for an option that the member does not have.
    """
    try:
        return make(*given, **asked, **arguments(node))
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        option, name = str(error).rpartition(" ")[2].strip("'"), node.get("name", node["module"].rpartition(".")[2])
        raise UserError(
            f"{what}.{option}: {name} has no such option; it was typed, or it stands in a preset that is another's"
        ) from error
