"""Counts the committed results of each preset and member; `suite list` shows which ones were never run."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path

from suite import load
from suite.entries.intake import parse_form
from suite.record.result import Result

SPEC = {
    "tasks": "task",
    "optimizers": "optimizer",
    "comm": "comm",
    "scales": "scale",
}  # groups, and their keys in a result's `spec`
GROUPS = (*SPEC, "baselines", "recipes", "experiments")
Counts = dict[str, Counter[str]]


def count_results() -> Counts | None:
    """Return the number of committed results by group and name; None if the suite is installed without results."""
    folder = Path(str(resources.files("suite.results")))
    if not (folder / "runs").is_dir():
        return None
    counted: Counts = {group: Counter() for group in GROUPS}
    sources = {name: _source(name) for name in load.list_options("recipe")}
    for result in _results(folder):
        for group, name in _names(result, sources):
            counted[group][name] += 1
    return counted


def _results(folder: Path) -> Iterator[Result]:
    """Every result below a folder; other JSON files are skipped."""
    for path in folder.rglob("*.json"):
        with suppress(ValueError):
            yield parse_form(path.read_text(encoding="utf-8"))


def _source(recipe: str) -> str:
    """Name a recipe in results: by its file if it was tuned here, else by the published row or code that it cites."""
    source = load.read_preset("recipe", recipe).get("tuning", {}).get("source", recipe)
    return recipe if source.startswith("$") else source


def _names(result: Result, sources: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(group, name) of each preset and member that a result used."""
    spec = result.spec
    for group, word in SPEC.items():
        if name := getattr(spec, word):
            yield group, name
    typed = {word.lstrip("+").partition("=")[::2] for word in result.command.split()}  # names need no quotes
    named = [name for key, name in typed if key == "recipe"]
    yield from (("experiments", name) for key, name in typed if key == "experiment")
    yield from (("recipes", name) for name, source in sources.items() if name in named or source == spec.recipe)
    if baseline := spec.config.get("baseline"):
        yield "baselines", baseline["name"]
