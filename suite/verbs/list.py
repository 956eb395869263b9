"""`suite list`: one line for each member and preset, and which frameworks are installed."""

import argparse
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import load
from suite.contract import UserError, suggest_names
from suite.entries import committed
from suite.nodes import load_settings

Entry = dict[str, Any]  # backends, summary, citation, results

FILES = {"comm": "comm", "scales": "scale", "recipes": "recipe", "experiments": "experiment"}  # groups of YAML files
FILES |= {"baselines": "baseline"}
MEMBERS = ("codecs", "algorithms", "topologies", "schedules")
GROUPS = ("tasks", "optimizers", "baselines", "comm", *MEMBERS, "scales", "recipes", "experiments")
HELP = """List the suite's members and presets: name, backends and summary. No framework is imported; the last line says
which ones are installed here. The column `results` counts the committed results below results/ that used the member or
preset; - means none."""


def main(arguments: Sequence[str]) -> int:
    """Print the list."""
    parser = argparse.ArgumentParser(prog="suite list", description=HELP)
    parser.add_argument("group", nargs="?", metavar="GROUP", help=f"one of {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--cite", action="store_true", help="print citations too")
    parser.add_argument("--settings", action="store_true", help="print each optimizer's settings and defaults too")
    parser.add_argument("--json", action="store_true", help="print JSON: {group: {name: {…}}, here: {…}}")
    chosen = parser.parse_intermixed_args(arguments)
    if f"{chosen.group}s" in GROUPS:
        chosen.group += "s"  # `suite list optimizer` means optimizers
    if chosen.group and chosen.group not in GROUPS:
        raise UserError(f"{chosen.group}: no such group; {suggest_names(chosen.group, GROUPS)}")
    groups = {group: list_entries(group) for group in ([chosen.group] if chosen.group else GROUPS)}
    counted = committed.count_results()
    for group, members in groups.items():
        for name, entry in members.items():
            entry["results"] = counted[group][name] if counted and group in counted else None
    if chosen.json:
        from suite.record import record  # which reads runs; the text does not need it

        print(record.format_json({**groups, "here": list_frameworks()}, indent=1))
        return 0
    width = max((len(name) for members in groups.values() for name in members), default=0)
    for group, members in groups.items():
        shown = counted is not None and group in counted
        print(f"{group:{width + 13}}  results" if shown else group)
        for name, entry in members.items():
            results = f"{entry['results'] or '-':>7}  " if shown else ""
            print(f"  {name:{width}}  {','.join(entry['backends']):9}  {results}{entry['summary']}")
            if chosen.cite and entry["citation"]:
                print(f"  {'':{width}}  {'':9}  {'':{len(results)}}{entry['citation']}")
            if chosen.settings and group == "optimizers":
                _print_settings(f"{load.GROUPS[group]}.{name}")
    print("here: " + ", ".join(f"{name} {version or 'not installed'}" for name, version in list_frameworks().items()))
    return 0


def _print_settings(module: str) -> None:
    """Print a member's settings, one in a line."""
    from suite.settings import presets

    settings = load_settings(module) if importlib.util.find_spec(module) else None
    for key, value, meaning in presets.list_rows(settings) if settings else ():
        print(f"      {f'{key}: {value}':34}  {meaning}")


def list_entries(group: str) -> dict[str, Entry]:
    """Everything in a group, by name."""
    if group in FILES:
        package = importlib.import_module("suite.conf")
        files = [path for root in package.__path__ for path in Path(root, FILES[group]).glob("*.yaml")]
        described = {"comm": _comm, "baselines": _baseline}.get(group, _preset)
        return {path.stem: described(path) for path in sorted(files)}
    folders = {
        name: _member(f"{load.GROUPS[group]}.{name}", load.find_backends(folder))
        for name, folder in load.find_members(group).items()
    }
    adapters = {path.stem: path for path in load.find_files(group.removesuffix("s")) if path.stem not in folders}
    return dict(sorted((folders | {name: _adapter(path) for name, path in adapters.items()}).items()))


def _member(module: str, backends: list[str]) -> Entry:
    constants = load.read_constants(module)
    return {"backends": backends, "summary": constants["SUMMARY"], "citation": constants["CITATION"]}


def _adapter(path: Path) -> Entry:
    """A member whose YAML file names a module inside another member's folder, such as an adapter."""
    module = load.from_yaml(path.read_text())["module"]
    return _member(module, load.find_backends(load.read_source(module).parent))


def _preset(path: Path) -> Entry:
    """A YAML file of settings. It works with every backend; its first comment is the summary."""
    lines = [line.lstrip("# ") for line in path.read_text().splitlines() if line.startswith("#")]
    summary = next((line for line in lines if not line.startswith("@package")), "")
    return {"backends": list(load.BACKENDS), "summary": summary, "citation": ""}


def _comm(path: Path) -> Entry:
    """A communication preset: the backends that all its parts support, and the citations of its parts."""
    parts = list(_modules(_inherited(path)))
    supported = [names for module in parts if (names := load.find_backends(load.read_source(module).parent))]
    backends = [name for name in load.BACKENDS if all(name in names for names in supported)]
    citations = dict.fromkeys(load.read_constants(module)["CITATION"] for module in parts)
    return _preset(path) | {"backends": backends, "citation": "; ".join(filter(None, citations))}


def _inherited(path: Path) -> dict[str, Any]:
    """A preset's values, merged with those of the presets in its defaults list, as Hydra does.

    The listed presets are searched beside the file, then in conf/comm. `name@some.key` puts a preset's values below
    that key.
    """
    preset = load.from_yaml(path.read_text())
    values: dict[str, Any] = {}
    for entry in preset.pop("defaults", []):
        name, _, place = entry.partition("@")
        if name != "_self_":
            nearby = [path.with_stem(name), *(file for file in load.find_files("comm") if file.stem == name)]
            inherited = _inherited(next(file for file in nearby if file.exists()))
            for key in reversed(place.split(".") if place else ()):
                inherited = {key: inherited}
            values |= inherited
    return values | preset


def _modules(values: Mapping[str, Any]) -> Iterator[str]:
    """Every module that a configuration names."""
    for name, value in values.items():
        if name == "module":
            yield value
        elif isinstance(value, dict):
            yield from _modules(value)


def _baseline(path: Path) -> Entry:
    """A baseline, which uses no backend."""
    return _member(load.from_yaml(path.read_text())["module"], [])


def list_frameworks() -> dict[str, str | None]:
    """Versions of the installed frameworks; None for a framework that is not installed."""
    versions: dict[str, str | None] = {}
    for backend in load.BACKENDS:
        try:
            load.check_framework(backend)
            versions[backend] = importlib.metadata.version(backend)
        except UserError:
            versions[backend] = None
    return versions
