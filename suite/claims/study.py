"""Finds out whether a check's study exists and takes its arguments, without importing the study and its framework."""

import ast
from collections.abc import Collection
from importlib import resources
from pathlib import Path

from suite.contract import suggest_names

FOLDER = Path(str(resources.files("suite"))) / "studies"


def source_files(name: str) -> list[Path]:
    """Return the source files of a study; empty if there is no such study.

    Args:
        name: as in a claim, with hyphens for the underscores of its file.
    """
    module = name.replace("-", "_")
    package, file = FOLDER / module, FOLDER / f"{module}.py"
    return sorted(package.glob("*.py")) or [file] * file.exists()


def list_used_files(name: str) -> list[Path]:
    """List a study's source files, then those of other studies that they import, directly or through each other."""
    files = source_files(name)
    for file in files:  # grows
        files += [used for used in _list_imports(file) if used not in files]
    return files


def _list_imports(file: Path) -> list[Path]:
    """List the files below `FOLDER` that a file imports, wherever the import stands in it."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith("suite.studies."):
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = [FOLDER.joinpath(*module.split(".")[2:]) for module in sorted(modules)]
    return [found for path in paths for found in (path.with_suffix(".py"), path / "__init__.py") if found.exists()]


def find_fault(study: str, arguments: Collection[str]) -> tuple[str, str] | None:
    """Find the field of a check that is wrong, and what is wrong with it; None if nothing is.

    Args:
        study: the name of the check's study.
        arguments: that the check gives to the study.
    """
    measure = _measure(study)
    if measure is None:
        return "study", f"{study}: no such study; {suggest_names(study, _names())}"
    accepted = [argument.arg for argument in (*measure.args.args[1:], *measure.args.kwonlyargs)]
    unknown = next((name for name in arguments if name not in accepted), None)
    if unknown is not None:
        return "arguments", f"{study}: no argument {unknown}; {suggest_names(unknown, accepted)}"
    required = {
        argument.arg
        for argument, default in zip(measure.args.kwonlyargs, measure.args.kw_defaults, strict=True)
        if default is None
    }
    if absent := sorted(required.difference(arguments)):
        return "study", f"{study}: the argument {absent[0]} is missing; add it to arguments"
    return None


def _measure(name: str) -> ast.FunctionDef | None:
    """Return the definition of a study's function `measure`."""
    for file in source_files(name):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == "measure":
                return node
    return None


def _names() -> list[str]:
    """Return the names of all studies."""
    stems = {path.stem for path in FOLDER.glob("*.py")} | {path.parent.name for path in FOLDER.glob("*/__init__.py")}
    names = (stem.replace("_", "-") for stem in stems if not stem.startswith("_"))
    return sorted(name for name in names if _measure(name))
