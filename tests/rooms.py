"""`make map`: the rooms of the source with their files, lines and imports, circles, and what a member consists of.

tests/test_imports.py holds the source to the rooms below.
"""

import ast
import functools
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
GROUPS = {"tasks": "suite.tasks", "optimizers": "suite.optimizers", "comm": "suite.comm"}
# files below all rooms
GROUND = ("contract", "stream", "load", "disk", "declared", "nodes", "svg", "messages", "differences", "orphan")
GROUND += ("output", "signals", "threads")
# rooms from the lowest to the highest: each may import those before it
ROOMS = ("comm", "optimizers", "tasks", "settings", "record", "statistics", "published", "entries")
ROOMS += ("claims", "board", "regress", "projection", "engine", "training", "track", "launch", "tuning")
ROOMS += ("counters", "verbs", "studies", "cli", "__main__")
LOADERS = ("load_member", "load_implementation")  # import a member by its module's name


def list_sources() -> list[Path]:
    """Return the files of the source."""
    return [path for group in ("suite", *GROUPS) for path in sorted((ROOT / group).rglob("*.py"))]


@functools.cache
def read_imports(path: Path, *, types: bool = True) -> tuple[set[str], set[str]]:
    """Return the absolute names that a file imports, and those of them that it imports outside functions.

    Args:
        path: the file.
        types: count what only type checkers import, too. `from a import b` counts as a.b.
    """
    every: set[str] = set()
    eager: set[str] = set()

    def visit(node: ast.AST, deferred: bool) -> None:
        if not types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        found: set[str] = set()
        if isinstance(node, ast.Import):
            found = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found = {f"{node.module}.{alias.name}" for alias in node.names}
        every.update(found)
        eager.update(set() if deferred else found)
        if not isinstance(node, ast.expr):  # which holds no import
            for child in ast.iter_child_nodes(node):
                visit(child, deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    visit(ast.parse(path.read_text()), deferred=False)
    return every, eager


def name_module(path: Path) -> str:
    """Return the dotted name under which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([part for part in ("suite", *parts[parts[0] == "suite" :]) if part != "__init__"])


def find_room(name: str) -> str | None:
    """Return the room of a dotted name; None for the ground, and for what is not the suite's."""
    part = name.removeprefix("suite.").partition(".")[0]
    return part if name.startswith("suite.") and part in ROOMS else None


def list_arrows() -> dict[str, set[str]]:
    """Return the files that each file imports, by dotted name; `a.b.c` is the file a.b.c, or c of the file a.b."""
    files = {name_module(path): path for path in list_sources()}

    def resolve(name: str) -> str:
        return name if name in files else name.rpartition(".")[0]

    return {
        name: {resolve(other) for other in read_imports(path)[0]} & files.keys() - {name}
        for name, path in files.items()
    }


def find_circle(arrows: Mapping[str, set[str]]) -> list[str] | None:
    """Return the names of a circle, in order; None if there is none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def find_loading() -> Iterator[str]:
    """Yield where a file other than suite/nodes.py, whose `Part` builds members, imports a member by name."""
    for path in list_sources():
        if path not in (ROOT / "suite" / "nodes.py", ROOT / "suite" / "load.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).rpartition(".")[2] in LOADERS:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}"


def count_lines(folder: Path) -> dict[str, int]:
    """Return the lines of each file of a member."""
    return {path.name: len(path.read_text().splitlines()) for path in sorted(folder.glob("*.py"))}


def print_map() -> None:
    """Print the map."""
    arrows, paths = list_arrows(), {name_module(path): path for path in list_sources()}
    rooms: dict[str, list[str]] = {}
    for name in paths:
        rooms.setdefault(find_room(name) or "ground", []).append(name)
    print(f"{'room':<12} {'files':>5} {'lines':>6}  imports")
    for room in ("ground", *ROOMS):
        lines = sum(len(paths[name].read_text().splitlines()) for name in rooms[room])
        below = {find_room(other) for name in rooms[room] for other in arrows[name]} - {None, room}
        print(f"{room:<12} {len(rooms[room]):>5} {lines:>6}  {' '.join(sorted(below, key=ROOMS.index))}")
    total = sum(len(path.read_text().splitlines()) for path in paths.values())
    print(f"{'all':<12} {len(paths):>5} {total:>6}  {total / len(paths):.0f} lines a file")
    print("circles of files:", " → ".join(find_circle(arrows) or ["none"]))
    print("members imported outside suite/nodes.py:", ", ".join(find_loading()) or "none")
    for member in ("optimizers/lamb", "optimizers/kfac", "comm/codecs/float16", "tasks/resnet50"):
        files = count_lines(ROOT / member)
        print(f"{member}:", ", ".join(f"{name} {lines}" for name, lines in files.items()), "=", sum(files.values()))


if __name__ == "__main__":
    print_map()
