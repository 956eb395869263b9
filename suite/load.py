"""Finds members by their folder and loads them by name. No file lists them.

A member is a folder of a group (`tasks`, `optimizers`, `comm/codecs` …) whose name does not begin with `_`. A member
outside the tree is named by its module in a configuration, as in `module: mylab.newopt`.
"""

import ast
import difflib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from suite.contract import UserError

if TYPE_CHECKING:
    from suite.declared import Declared
    from suite.nodes import Part

Plain: TypeAlias = bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"] | None  # as JSON and YAML have
BACKENDS = ("torch", "jax")
MOST_NAMES = 30  # in a message about an unknown name
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


def from_yaml(text: str) -> Any:
    """Return the content of a YAML text, by the parser in C where PyYAML has one; it takes a tenth of the time."""
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def is_node(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value of a YAML or JSON file is a group of named values."""
    return isinstance(value, dict)


def suggest_names(name: str, names: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest names, or all of them, up to MOST_NAMES."""
    names = sorted(set(names))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"there are {', '.join(names[:MOST_NAMES]) or 'none'}{', …' if len(names) > MOST_NAMES else ''}"


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


def load_settings(module: str) -> "type[Declared] | None":
    """Return the settings that a member declares in its `settings.py`; None for a member without this file.

    The member's package is not imported, because a configuration is checked before any data or framework is needed.

    Raises:
        UserError: the member does not exist.
    """
    folder = package_folder(module)
    path = folder / "settings.py" if folder else None
    if path is None or not path.exists():
        return None
    name = f"{module}.settings"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        sys.modules[name] = loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    return sys.modules[name].Settings


def declares_settings(module: str) -> bool:
    """Return whether a module is here and has a `settings.py`. Nothing is imported."""
    folder = package_folder(module) if is_here(module) else None
    return folder is not None and (folder / "settings.py").exists()


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


def make_member(make: Callable[..., Any], part: "Part", place: str, *positional: Any, **named: Any) -> Any:
    """Call a member's `make` with its options.

    Args:
        make: the member's `make`.
        part: the member's settings.
        place: their dotted key, for errors.
        positional: further arguments.
        named: further arguments by name.

    Returns:
        What `make` returns.

    Raises:
        UserError: the member does not have one of the options, or does not define a method that it must have.
    """
    try:
        return make(*positional, **named, **part.options())
    except TypeError as error:
        if missing := re.search(r"abstract methods? (.+)", str(error)):
            raise UserError(f"{part.module}: does not define {missing[1]}") from error
        if "unexpected keyword argument" not in str(error):
            raise
        option, name = str(error).rpartition(" ")[2].strip("'"), part.module.rpartition(".")[2]
        raise UserError(
            f"{place}.{option}: {name} has no such option; you typed it, or a preset of another member sets it"
        ) from error
