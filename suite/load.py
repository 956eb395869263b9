"""Finds members by their folder and loads them by name. No file lists them.

A member is a folder of a group (`tasks`, `optimizers`, `comm/codecs` …) whose name does not begin with `_`. A member
outside the tree is named by its module in a configuration, as in `module: mylab.newopt`.
"""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeGuard

from suite.contract import UserError

Plain: TypeAlias = bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"] | None  # as JSON and YAML have
BACKENDS = ("torch", "jax")
DECLARES = re.compile(r"^class Settings\((\w+\.)*Declared\)", re.MULTILINE)
GROUPS = {
    "tasks": "suite.tasks",
    "optimizers": "suite.optimizers",
    "codecs": "suite.comm.codecs",
    "algorithms": "suite.comm.algorithms",
    "topologies": "suite.comm.topologies",
    "schedules": "suite.comm.schedules",
}


def search_working_directory() -> None:
    """Also find modules in the working directory, as `python -m` does, but after all installed ones."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def find_members(group: str) -> dict[str, Path]:
    """Return the folders of a group's members, by name."""
    package = importlib.import_module(GROUPS[group])
    roots = [Path(path) for path in package.__path__]
    folders = [folder for root in roots for folder in root.iterdir() if (folder / "__init__.py").exists()]
    return {folder.name: folder for folder in sorted(folders) if not folder.name.startswith("_")}


def find_halves(folder: Path) -> list[str]:
    """Return the backends for which a member has a file."""
    return [backend for backend in BACKENDS if (folder / f"{backend}.py").exists()]


def find_backends(folder: Path) -> list[str]:
    """Return the backends that a member supports: those of its files, or all if it has one text for all."""
    return find_halves(folder) or list(BACKENDS)


def find_files(group: str, directory: Path | None = None) -> list[Path]:
    """Return a configuration group's files, those in the user's own `directory` last."""
    package = importlib.import_module("suite.conf")
    roots = [*map(Path, package.__path__), *([directory] if directory else [])]
    return [path for root in roots for path in sorted((root / group).glob("*.yaml"))]


def list_options(group: str, directory: Path | None = None) -> list[str]:
    """Return the names of a configuration group's files: the values of `group=`."""
    return sorted({path.stem for path in find_files(group, directory)})


def read_preset(group: str, name: str | None, directory: Path | None = None) -> dict[str, Any]:
    """Return one choice's YAML file, unresolved; {} if there is none. A file in `directory` replaces the suite's."""
    paths = [path for path in find_files(group, directory) if path.stem == name]
    return from_yaml(paths[-1].read_text()) if paths else {}


def from_yaml(text: str, *, bounded: bool = False) -> Any:
    """Return the content of a YAML text, by the parser in C where PyYAML has one; it takes a tenth of the time.

    Args:
        text: of a file.
        bounded: use the parser in Python, which raises `RecursionError` where nesting is too deep.

    Raises:
        yaml.YAMLError: also for a key that a mapping has twice; PyYAML itself would take the last.
    """
    import yaml

    return yaml.load(text, Loader=_make_loader(bounded=bounded))


@cache
def _make_loader(*, bounded: bool) -> Any:
    import yaml

    base: Any = yaml.SafeLoader if bounded else getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):
        """Refuses repeated keys."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set[tuple[str, str]]()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if (key.tag, key.value) in seen:
                    cause = f"the key {key.value!r} occurs more than once"
                    raise yaml.constructor.ConstructorError(None, None, cause, key.start_mark)
                seen.add((key.tag, key.value))
            return super().construct_mapping(node, deep)

    return Loader


def is_node(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value of a YAML or JSON file is a group of named values."""
    return isinstance(value, dict)


def check_framework(backend: str) -> None:
    """Check that a backend's framework is installed.

    Raises:
        UserError: it is not.
    """
    for package in {"torch": ("torch",), "jax": ("jax", "optax")}[backend]:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"backend={backend}: {package} is not installed; run: pip install -e '.[{backend}]'")


def load_half(module: str, backend: str) -> ModuleType:
    """Import a member's file for one backend, for example `suite.optimizers.kfac.torch`.

    Args:
        module: the member's module.
        backend: `torch` or `jax`.

    Raises:
        UserError: the member or this file does not exist.
    """
    try:
        return importlib.import_module(f"{module}.{backend}")
    except ModuleNotFoundError as error:
        folders = getattr(load_member(module), "__path__", ()) if error.name == f"{module}.{backend}" else ()
        if others := [other for folder in folders for other in find_halves(Path(folder))]:
            raise UserError(f"{module}: is written for {others[0]} alone; set backend={others[0]}") from error
        if error.name and f"{module}.{backend}".startswith(error.name):
            raise UserError(f"{module}: no module {error.name}; check `module:` in its YAML file") from error
        raise


def check_backend(module: str, backend: str) -> None:
    """Check that a member supports a backend, without importing its file for it.

    Args:
        module: the member's module.
        backend: `torch` or `jax`.

    Raises:
        UserError: the member does not exist, or has a file for another backend only.
    """
    supported = [
        other for folder in getattr(load_member(module), "__path__", ()) for other in find_halves(Path(folder))
    ]
    if supported and backend not in supported:
        raise UserError(f"{module}: is written for {supported[0]} alone; set backend={supported[0]}")


def load_implementation(module: str, backend: str) -> ModuleType:
    """Import a member's file for one backend, or the member itself if it has one text for all backends.

    Args:
        module: the member's module.
        backend: `torch` or `jax`.

    Raises:
        UserError: the member does not exist, or has a file for another backend only.
    """
    member = load_member(module)
    split = any(find_halves(Path(folder)) for folder in getattr(member, "__path__", ()))
    return load_half(module, backend) if split else member


def load_member(module: str) -> ModuleType:
    """Import a member's `__init__.py`, which needs no framework.

    Raises:
        UserError: the member does not exist.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):
            raise UserError(f"{module}: no module {error.name}; check `module:` in its YAML file") from error
        raise


def check_names(member: object, *names: str) -> None:
    """Check that a member's file, or an object that it made, defines some names.

    Raises:
        UserError: it does not; the message names the file and what is missing.
    """
    missing = [name for name in names if name not in dir(member)]
    if not missing:
        return
    if isinstance(member, ModuleType):
        raise UserError(f"{member.__file__}: does not define {', '.join(missing)}; add it to this file")
    kind = type(member)
    raise UserError(f"{inspect.getfile(kind)}: {kind.__name__} does not define {', '.join(missing)}; add it there")


def read_constants(module: str) -> dict[str, Any]:
    """Return the literal constants at the top of a member's `__init__.py`, such as SUMMARY, without importing it.

    Raises:
        UserError: the member does not exist.
    """
    found: dict[str, Any] = {}
    for node in ast.parse(read_source(module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            with suppress(ValueError):  # an expression
                value = ast.literal_eval(node.value)
                for target in node.targets:
                    pairs = zip(target.elts, value, strict=True) if isinstance(target, ast.Tuple) else [(target, value)]
                    found |= {ast.unparse(name): one for name, one in pairs}
    return found


def read_source(module: str) -> Path:
    """Return the file of a module; only the first of its packages is imported.

    Raises:
        UserError: the module does not exist.
    """
    first, *rest = module.split(".")
    spec = importlib.util.find_spec(first)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, *rest)
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.exists():
                return file
    raise UserError(f"{module}: no such module; check `module:` in its YAML file")


def declares_settings(module: str) -> bool:
    """Return whether a module is here and declares its settings. Nothing is imported."""
    return is_here(module) and find_settings(package_folder(module)) is not None


def find_settings(folder: Path | None) -> Path | None:
    """Return the file of a member's folder that declares its settings."""
    if folder is None:
        return None
    own, member = folder / "settings.py", folder / "__init__.py"
    if own.exists():
        return own
    return member if member.exists() and DECLARES.search(member.read_text(encoding="utf-8")) else None


def is_here(module: str) -> bool:
    """Return whether there is a module of this name. Nothing is imported."""
    try:
        package_folder(module)
    except (UserError, ValueError):  # Python rejects names such as ""
        return False
    return True


def package_folder(module: str) -> Path | None:
    """Return the folder of a package, without importing it; None for a module that is a file.

    Raises:
        UserError: there is no such module.
    """
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise UserError(f"{module}: no module {top}; check `module:` in its YAML file")
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    for number, part in enumerate(rest, 2):
        found = [folder / part for folder in folders if (folder / part).is_dir()]
        if not found and any((folder / f"{part}.py").exists() for folder in folders):
            return None
        if not found:
            missing = ".".join(module.split(".")[:number])
            raise UserError(f"{module}: no module {missing}; check `module:` in its YAML file")
        folders = found
    return folders[0] if folders else None
