"""`suite list`: every member and preset in one line each, and what runs here."""

import argparse
import importlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import load
from suite.contract import UserError

Entry = dict[str, Any]  # backends, summary, citation

FILES = {"comm": "comm", "scales": "scale", "recipes": "recipe", "experiments": "experiment"}  # groups of YAML files
FILES |= {"baselines": "baseline"}
MEMBERS = ("codecs", "algorithms", "topologies", "schedules")
GROUPS = ("tasks", "optimizers", "baselines", "comm", *MEMBERS, "scales", "recipes", "experiments")
HELP = """List what this suite holds: a name, the backends it is written for, and a summary. Nothing is loaded but each
member's description, no framework in particular; the last line says which frameworks are installed here."""


def main(arguments: Sequence[str]) -> int:
    """Always 0; 2 for an unknown group."""
    parser = argparse.ArgumentParser(prog="suite list", description=HELP)
    parser.add_argument("group", nargs="?", metavar="GROUP", help=f"one of {', '.join(GROUPS)}; all if not given")
    parser.add_argument("--cite", action="store_true", help="print citations too")
    parser.add_argument("--json", action="store_true", help="the same for scripts: {group: {name: {…}}, here: {…}}")
    chosen = parser.parse_intermixed_args(arguments)
    if f"{chosen.group}s" in GROUPS:
        chosen.group += "s"  # as it is typed in a run: optimizer=
    if chosen.group and chosen.group not in GROUPS:
        raise UserError(f"{chosen.group}: no such group; {load.nearest(chosen.group, GROUPS)}")
    found = {group: entries(group) for group in ([chosen.group] if chosen.group else GROUPS)}
    if chosen.json:
        print(json.dumps({**found, "here": here()}, indent=1))
        return 0
    width = max((len(name) for named in found.values() for name in named), default=0)
    for group, named in found.items():
        print(f"{group}")
        for name, entry in named.items():
            print(f"  {name:{width}}  {','.join(entry['backends']):9}  {entry['summary']}")
            if chosen.cite and entry["citation"]:
                print(f"  {'':{width}}  {'':9}  {entry['citation']}")
    print("here: " + ", ".join(f"{name} {version or 'not installed'}" for name, version in here().items()))
    return 0


def entries(group: str) -> dict[str, Entry]:
    """Everything in a group, by name."""
    if group in FILES:
        package = importlib.import_module("suite.conf")
        files = [path for root in package.__path__ for path in Path(root, FILES[group]).glob("*.yaml")]
        described = {"comm": _comm, "baselines": _baseline}.get(group, _preset)
        return {path.stem: described(path) for path in sorted(files)}
    found = {
        name: _member(f"{load.GROUPS[group]}.{name}", load.backends(folder))
        for name, folder in load.members(group).items()
    }
    further = {path.stem: path for path in load.files(group.removesuffix("s")) if path.stem not in found}
    return dict(sorted((found | {name: _adapter(path) for name, path in further.items()}).items()))


def _member(module: str, backends: list[str]) -> Entry:
    member = load.common(module)
    return {"backends": backends, "summary": member.SUMMARY, "citation": member.CITATION}


def _adapter(path: Path) -> Entry:
    """What may be typed as a member, and stands inside of one."""
    import yaml

    module = yaml.safe_load(path.read_text())["module"]
    return _member(module, load.backends(Path(next(iter(load.common(module).__path__)))))


def _preset(path: Path) -> Entry:
    """A file that sets values: for every backend, summarised by its first comment, which names its source."""
    lines = [line.lstrip("# ") for line in path.read_text().splitlines() if line.startswith("#")]
    summary = next((line for line in lines if not line.startswith("@package")), "")
    return {"backends": list(load.BACKENDS), "summary": summary, "citation": ""}


def _comm(path: Path) -> Entry:
    """A communication preset: for the backends that all its parts are written for, with their citations."""
    parts = list(_modules(_inherited(path)))
    folders = [Path(next(iter(load.common(module).__path__))) for module in parts]
    halves = [found for folder in folders if (found := load.backends(folder))]  # a policy needs none
    backends = [name for name in load.BACKENDS if all(name in found for found in halves)]
    citations = dict.fromkeys(load.common(module).CITATION for module in parts)
    return _preset(path) | {"backends": backends, "citation": "; ".join(filter(None, citations))}


def _inherited(path: Path) -> dict[str, Any]:
    """A preset's values with those of the presets that its defaults list names, which stand beside it or are ours.

    `name@where.else` puts them there, as Hydra does.
    """
    import yaml

    own = yaml.safe_load(path.read_text())
    values: dict[str, Any] = {}
    for entry in own.pop("defaults", []):
        name, _, place = entry.partition("@")
        if name != "_self_":
            nearby = [path.with_stem(name), *(ours for ours in load.files("comm") if ours.stem == name)]
            found = _inherited(next(one for one in nearby if one.exists()))
            for key in reversed(place.split(".") if place else ()):
                found = {key: found}
            values |= found
    return values | own


def _modules(values: Mapping[str, Any]) -> Iterator[str]:
    """Every module that a configuration names."""
    for name, value in values.items():
        if name == "module":
            yield value
        elif isinstance(value, dict):
            yield from _modules(value)


def _baseline(path: Path) -> Entry:
    """A baseline: for neither backend, it needs none."""
    import yaml

    return _member(yaml.safe_load(path.read_text())["module"], [])


def here() -> dict[str, str | None]:
    """Versions of the frameworks that are installed; None for a backend that cannot run."""
    found: dict[str, str | None] = {}
    for backend in load.BACKENDS:
        try:
            load.framework(backend)
            found[backend] = importlib.metadata.version(backend)
        except UserError:
            found[backend] = None
    return found
