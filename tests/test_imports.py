"""Who may import whom, read from the syntax trees; and start-up with one framework only."""

import ast
import sys
from pathlib import Path

import conftest
import pytest
from light import loaded

ROOT = conftest.TESTS.parent
FRAMEWORKS = {"torch": {"torch"}, "jax": {"jax", "jaxlib", "optax"}}
HEAVY = {
    "mlflow",
    "sklearn",
    "scipy",
    "matplotlib",
    "rich",
    "jinja2",
    "yaml",
    "jsonschema",
    "psutil",
    "PIL",
    "safetensors",
}
MEMBERS = {"tasks": "suite.tasks", "optimizers": "suite.optimizers", "comm": "suite.comm"}
OPEN_TO_MEMBERS = ("suite.contract", "suite.stream")  # what any member may import of the engine


def modules() -> list[Path]:
    return [path for group in ("suite", *MEMBERS) for path in sorted((ROOT / group).rglob("*.py"))]


def imports(path: Path, *, inside_functions: bool) -> set[str]:
    """Absolute names a file imports; `from a import b` counts as a.b."""
    tree = ast.parse(path.read_text())
    deferred = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            deferred |= {id(child) for child in ast.walk(node)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in deferred and not inside_functions:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_each_file_keeps_to_its_room(path: Path) -> None:
    every, eager = imports(path, inside_functions=True), imports(path, inside_functions=False)
    roots = {name.partition(".")[0] for name in every}
    own = next((backend for backend in FRAMEWORKS if path.stem.split("_")[0] == backend), None)
    forbidden = set().union(*(names for backend, names in FRAMEWORKS.items() if backend != own))
    if path != ROOT / "suite" / "run.py":  # which sets torch's threads before an engine is made
        assert not roots & forbidden, "a framework outside its own file"
    group = path.relative_to(ROOT).parts[0]
    if group == "suite":
        assert not {name.partition(".")[0] for name in eager} & (HEAVY - {"rich"}), "import it where it is used"
    if path == ROOT / "suite" / "contract.py":
        assert roots <= set(sys.stdlib_module_names)
    if group in MEMBERS:
        _member(path, group, every)


def _member(path: Path, group: str, names: set[str]) -> None:
    package = MEMBERS[group]
    for name in (name for name in names if name.startswith("suite")):
        if name.startswith(OPEN_TO_MEMBERS) or name in ("suite.stream", "suite.contract"):
            continue
        assert name.startswith(package), f"{name}: a member may not import the engine or another group"
        rest = name.removeprefix(package + ".").split(".")
        here = path.relative_to(ROOT / group).parts
        if group != "comm" and not rest[0].startswith("_"):
            assert rest[0] == here[0], f"{name}: a member may not import another member"


def test_frameworks_stay_unloaded_where_they_are_not_needed() -> None:
    for arguments in (["--help"], ["list"], ["+task=resnet50", "--cfg", "job"], ["+task=resnet5"], ["board", "--help"]):
        assert not loaded(*arguments)[1] & {"torch", "jax", "mlflow", "sklearn", "matplotlib"}, arguments
