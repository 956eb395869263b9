"""Who may import whom, read from the syntax trees; and start-up with one framework only."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import conftest
import pytest
from light import loaded
from rooms import (
    GROUND,
    GROUPS,
    ROOMS,
    ROOT,
    count_lines,
    find_circle,
    find_loading,
    find_room,
    list_arrows,
    list_sources,
    name_module,
    read_imports,
)

from suite import load

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
OPEN_TO_MEMBERS = (
    "suite.contract",
    "suite.declared",
    "suite.differences",
    "suite.load",
    "suite.messages",
    "suite.nodes",
    "suite.stream",
    "suite.svg",
)


@pytest.mark.quick
def test_each_file_keeps_to_its_room() -> None:
    faults = [f"{path.relative_to(ROOT)}: {'; '.join(found)}" for path in list_sources() if (found := _faults(path))]
    assert not faults, "\n".join(faults)


def _faults(path: Path) -> list[str]:
    """List what a file may not import, but does."""
    every, eager = read_imports(path)
    roots = {name.partition(".")[0] for name in every}
    own = _backend(path)
    forbidden = set().union(*(names for backend, names in FRAMEWORKS.items() if backend != own))
    group = path.relative_to(ROOT).parts[0]
    found = []
    if path != ROOT / "suite" / "launch" / "execution.py":  # which sets torch's threads before an engine is made
        found += [f"{name}: a framework outside its own file" for name in roots & forbidden]
    if group == "suite":
        early = {name.partition(".")[0] for name in eager} & (HEAVY - {"rich"})
        found += [f"{name}: import it where it is used" for name in early]
    if path.parent == ROOT / "suite" / "contract":
        at_run_time = {name.partition(".")[0] for name in read_imports(path, types=False)[0]}
        found += [
            f"{name}: no part of the standard library" for name in at_run_time - {*sys.stdlib_module_names, "suite"}
        ]
    return found + (_member(path, group, every) if group in GROUPS else [])


def _backend(path: Path) -> str | None:
    """Return the framework of a file `torch.py`, `torch_….py` or `torch/….py`."""
    return next((name for name in FRAMEWORKS if path.stem.split("_")[0] == name or path.parent.name == name), None)


def _member(path: Path, group: str, names: set[str]) -> list[str]:
    package, found = GROUPS[group], []
    for name in (name for name in names if name.startswith("suite") and not name.startswith(OPEN_TO_MEMBERS)):
        if not name.startswith(package):
            found.append(f"{name}: a member imports only its group and {', '.join(OPEN_TO_MEMBERS)}")
            continue
        rest = name.removeprefix(package + ".").split(".")
        here = path.relative_to(ROOT / group).parts
        if group != "comm" and not rest[0].startswith("_") and rest[0] != here[0]:
            found.append(f"{name}: a member may not import another member")
    return found


@pytest.mark.quick
def test_rooms_import_only_rooms_below_them() -> None:
    """So there is no circle between rooms, and a change is felt only above it."""
    upward = []
    parts = {name_module(path).split(".")[1] for path in list_sources() if path != ROOT / "suite" / "__init__.py"}
    assert parts == {*ROOMS, *GROUND}
    for path in list_sources():
        here = find_room(name_module(path))
        for name in read_imports(path)[0]:
            there = find_room(name)
            if there and there != here and (here is None or ROOMS.index(there) > ROOMS.index(here)):
                upward.append(f"{path.relative_to(ROOT)} in {here} imports {name}")
    assert not upward


def test_no_circles() -> None:
    """Neither files nor folders import each other in a circle, not even for type checkers."""
    arrows = list_arrows()
    assert find_circle(arrows) is None
    packages = {name_module(path) for path in list_sources() if path.name == "__init__.py"}

    def folder(name: str) -> str:
        return name if name in packages else name.rpartition(".")[0]

    folders: dict[str, set[str]] = {}
    for name, others in arrows.items():
        folders.setdefault(folder(name), set()).update(map(folder, others))
    # a folder and its parts are one room
    inside = {
        here: {there for there in others if not _nested(here, there) and not _nested(there, here)}
        for here, others in folders.items()
    }
    assert find_circle(inside) is None
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}), "a circle is found"


def _nested(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.")


def test_parts_build_their_members() -> None:
    assert not list(find_loading())


def test_the_house_does_not_grow() -> None:
    """A first-order optimizer is a rule, a line for each framework and a reference (`make map`)."""
    assert len(list_sources()) <= 656
    assert (
        sum(lines for name, lines in count_lines(ROOT / "optimizers" / "lamb").items() if name != "reference.py") < 100
    )


def test_no_package_defines_the_name_of_one_of_its_files() -> None:
    """Importing the file would replace the function of the package."""
    for path in (path for path in list_sources() if path.name == "__init__.py"):
        defined = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        files = {file.stem for file in path.parent.iterdir()}
        assert not defined & files, path


def test_frameworks_stay_unloaded_where_they_are_not_needed() -> None:
    for arguments in (["--help"], ["list"], ["+task=resnet50", "--cfg", "job"], ["+task=resnet5"], ["board", "--help"]):
        assert not loaded(*arguments)[1] & {"torch", "jax", "mlflow", "sklearn", "matplotlib"}, arguments


BLOCKED = """
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {blocked!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Block())
sys.path.insert(0, {outside!r})
"""


@pytest.mark.parametrize("backend", load.BACKENDS)
def test_every_member_loads_with_one_framework_only(backend: str) -> None:
    other = next(name for name in load.BACKENDS if name != backend)
    modules = [
        f"{load.GROUPS[group]}.{name}.{backend}" if load.find_halves(folder) else f"{load.GROUPS[group]}.{name}"
        for group in load.GROUPS
        for name, folder in load.find_members(group).items()
        if backend in load.find_backends(folder)
    ]
    head = BLOCKED.format(blocked=FRAMEWORKS[other], outside=str(conftest.OUTSIDE))
    code = (
        head
        + f"import importlib\nfor name in {[*modules, f'suite.engine.{backend}']!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_both_frameworks_define_what_is_looked_up_in_either() -> None:
    """No type checker sees a name that is looked up in `load_half(module, backend)`."""
    looked_up = re.compile(r'load_half\("(suite\.[\w.]+)", (?:\w+\.)?backend\)\.(\w+)')
    found = {use for path in (ROOT / "suite").rglob("*.py") for use in looked_up.findall(path.read_text())}
    assert len(found) >= 3
    for module, name in found:
        for backend in load.BACKENDS:
            tree = ast.parse((ROOT / module.replace(".", "/") / f"{backend}.py").read_text())
            defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            assert name in defined, f"{module}.{backend} has no {name}"


@pytest.mark.parametrize("backend", load.BACKENDS)
def test_a_run_with_one_framework_only(backend: str, tmp_path: Path) -> None:
    """With torch blocked a jax run works, and a torch run says what to type; and the other way round."""
    other = next(name for name in load.BACKENDS if name != backend)
    head = BLOCKED.format(blocked=FRAMEWORKS[other], outside=str(conftest.OUTSIDE))
    # find_spec answers for installed packages even where importing them is blocked
    head += (
        "import importlib.util\nfind = importlib.util.find_spec\n"
        f"blocked = {FRAMEWORKS[other]!r}\n"
        "importlib.util.find_spec = lambda name, *a: None if name.partition('.')[0] in blocked else find(name, *a)\n"
        "from suite.cli import main\ncode = main(sys.argv[1:])\n"
        "assert 'torch._dynamo' not in sys.modules, 'torch loaded its compiler: two seconds'\nsys.exit(code)"
    )
    conf = str(conftest.OUTSIDE / "conf")
    arguments = ["--config-dir", conf, "+task=tiny", "max_steps=4", "track=none", "threads=1"]

    def call(name: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", head, *arguments, f"backend={name}"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    done = call(backend)
    assert done.returncode == 0, done.stderr
    refused = call(other)
    assert refused.returncode == 2
    assert f"pip install -e '.[{other}]'" in refused.stderr
