"""Hashes the code and the data of a run that neither the suite's source nor a package version covers.

Both are part of the fingerprint: a finished run is reused, and an interrupted run resumed, only if they are unchanged.
"""

import ast
import hashlib
import importlib.util
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from suite.contract import Data

CODE = (".py", ".so", ".pyd", ".json", ".yaml")  # suffixes of files that can change what a package computes
VERSIONED = {"site-packages", "dist-packages"}  # folders of installed packages, whose versions are hashed already
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def hash_outside_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Hash the code outside the suite that a configuration names.

    This covers the packages of every `module:` and of every other dotted path (`optimizer.torch=mylab.opt.Adam`), the
    code that these packages import from outside the suite and the installed packages, and the folder in `path`. Nothing
    is imported.

    Returns:
        The sha256 (16 digits) of each package or folder, by name.
    """
    folders = {name: path for name, path in _folders(config) if path.is_dir()}
    hashes = {name: _digest(_files(path), path) for name, path in folders.items()}
    waiting = {name.partition(".")[0] for name in _named(config)}
    while waiting:
        package = waiting.pop()
        root, files = _package(package)
        if package in hashes or not files:
            continue
        hashes[package] = _digest(files, root)
        waiting |= {name for path in files if path.suffix == ".py" for name in _imports(path)}
    return dict(sorted(hashes.items()))


def find_outside_code(config: Mapping[str, Any]) -> Iterator[tuple[str, Path | None]]:
    """Yield each package outside the suite that a configuration names, with its folder; None: it is installed."""
    folders = {name: path for name, path in _folders(config) if path.is_dir()}
    yield from folders.items()
    for name in sorted({name.partition(".")[0] for name in _named(config)} - {"suite"}):
        spec = _spec(name)
        if spec is not None:
            root, files = _package(name)
            yield name, root if files else None


def hash_data(data: Data) -> str:
    """A hash of a task's data on this machine: its identity, and the stamp of its files."""
    return hashlib.sha256(f"{data.identity}\n{data.stamp}".encode()).hexdigest()[:16]


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string of a configuration, with its key."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _leaves(value, name)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _leaves(value, key)
    elif isinstance(node, str):
        yield key, node


def _named(config: Mapping[str, Any]) -> Iterator[str]:
    """Every module and dotted path in a configuration."""
    for key, value in _leaves(config):
        if DOTTED.fullmatch(value) and (key == "module" or "." in value):
            yield value


def _folders(config: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Every folder in a configuration's `path`, with its name."""
    for key, value in _leaves(config):
        if key == "path":
            yield value, Path(value)


def _package(name: str) -> tuple[Path, list[Path]]:
    """Find a top-level package's folder and files; no files for the suite and installed packages."""
    spec = None if name == "suite" else _spec(name)
    if spec is None:
        return Path(), []
    if spec.submodule_search_locations is not None:
        roots = [Path(location) for location in spec.submodule_search_locations]
        files = [path for root in roots for path in _files(root)]
    else:
        roots = files = [Path(spec.origin)] if spec.origin and spec.has_location else []
    if not roots or any(_installed(root) for root in roots):
        return Path(), []
    return roots[0].parent, files


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name) or PathFinder.find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module without a spec, such as __main__
        return None


def _installed(path: Path) -> bool:
    """Return whether a file belongs to an installed package or to Python, whose versions are hashed already."""
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    return bool(VERSIONED & set(path.parts)) or path.resolve().is_relative_to(standard)


def _files(root: Path) -> list[Path]:
    """Return the files of code below a folder, without hidden folders and installed packages."""
    files = [path for path in root.rglob("*") if path.suffix in CODE and path.is_file()]
    return sorted(path for path in files if not _skipped(path.relative_to(root).parts))


def _skipped(parts: Iterable[str]) -> bool:
    return any(part.startswith(".") or part in VERSIONED for part in parts)


def _imports(path: Path) -> Iterator[str]:
    """Yield the top-level packages that a file imports anywhere; none if it is not valid Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def _digest(files: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in files:
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
