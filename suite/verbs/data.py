"""`suite data`: where a task's samples come from, what of it is here, and whether its files can be read."""

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import configure, load
from suite.contract import Data, UserError

FEW = 20  # classes up to which each is named with its count
HELP = """Say what data a task can run on and what of it is here: data that comes with a package, generated data, or
real files in a directory that is named by --from (or data_dir= in conf/local/default.yaml). Files stay where they are;
--check reads every one of them. A task whose raw files must be prepared first writes what it makes of them to --to.
Exit codes: 0 all is well, 1 some file cannot be read (each is named), 2 bad usage or no such directory."""


def main(arguments: Sequence[str]) -> int:
    """0 all is well, 1 some file cannot be read."""
    usage = "suite data TASK [--from DIR] [--to DIR] [--check] [--config-dir DIR] [task.key=value ...]"
    parser = argparse.ArgumentParser(prog="suite data", usage=usage, description=HELP)
    parser.add_argument("task", metavar="TASK", nargs="?", help="a task's name, as in task=")
    parser.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="where its real data lies")
    parser.add_argument("--to", dest="target", type=Path, metavar="DIR", help="prepare what lies in --from, into this")
    parser.add_argument("--check", action="store_true", help="read every file, to find the damaged ones")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="your own configuration groups")
    parser.add_argument("overrides", nargs="*", metavar="task.key=value", help="how to prepare, as for a run")
    chosen = parser.parse_intermixed_args(arguments)
    if chosen.task is None:  # argparse would also ask for overrides, which nobody needs to give
        parser.error(f"which TASK? there are {', '.join(load.options('task', chosen.config_dir))}")
    if chosen.target:
        _prepare(chosen.task, chosen.folder, chosen.target, chosen.overrides, chosen.config_dir)
        chosen.folder = chosen.target
    sources = _sources(chosen.task, chosen.folder, chosen.overrides, chosen.config_dir)
    if not (chosen.folder or chosen.check):
        for source, config in sources.items():
            print(f"{source:8}  {_state(config)}")
        choices = f" task.data={'|'.join(sources)}" if len(sources) > 1 else ""
        print(f"to choose: suite +task={chosen.task}{choices}")
        return 0
    files = {source: config for source, config in sources.items() if _reads_directory(config)}
    if not files:
        raise UserError(f"{chosen.task}: none of its data is read from a directory; leave --from and --check out")
    also = [override for override in chosen.overrides if not override.startswith("task.sources.")]
    return max(_adopt(chosen.task, source, config, also, check=chosen.check) for source, config in files.items())


def _prepare(task: str, folder: Path | None, target: Path, overrides: Sequence[str], directory: Path | None) -> None:
    """Let the task make its records of the raw data, with the options under `prepare` of the source that has them."""
    node = configure.whole([f"task={task}", *overrides], directory)["task"]
    options = next((source["prepare"] for source in node.get("sources", {}).values() if "prepare" in source), None)
    if options is None:
        raise UserError(f"{task}: its data is read as it is; leave --to out")
    if folder is None:
        raise UserError(f"{task}: where does the raw data lie? type --from DIR")
    if not folder.exists():
        raise UserError(f"{folder}: no such directory")
    load.common(node["module"]).prepare(folder, target, **options)


def _sources(
    task: str, folder: Path | None, overrides: Sequence[str], directory: Path | None
) -> dict[str, dict[str, Any]]:
    """A configuration for each source of the task's data, by its name; by the task's where it has only one."""
    place = [f"data_dir={json.dumps(str(folder.resolve()))}"] if folder else []
    base = [f"task={task}", *place, *overrides]
    names = configure.whole(base, directory)["task"].get("sources", {})
    if not names:
        return {task: configure.compose(base, directory)}
    return {name: configure.compose([*base, f"task.data={name}"], directory) for name in names}


def _reads_directory(config: Mapping[str, Any]) -> bool:
    return "data_dir" in config["task"].get("source", {})


def _open(config: Mapping[str, Any]) -> Data:
    node = config["task"]
    return load.common(node["module"]).make(**load.arguments(node)).data


def _state(config: Mapping[str, Any]) -> str:
    """One line on one source: its kind, its size, and whether it is here."""
    if _reads_directory(config) and config["data_dir"] is None:
        return "real, in a directory   not here: name it with --from DIR"
    try:
        data = _open(config)
    except UserError as error:
        return f"not here: {error}"
    place = f"in {config['data_dir']}" if _reads_directory(config) else "embedded" if data.kind == "real" else "by seed"
    return f"{data.kind}, {place}   {data.name}: {_sizes(data.samples)}; {data}"


def _sizes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _adopt(task: str, source: str, config: Mapping[str, Any], overrides: Sequence[str], *, check: bool) -> int:
    """Describe the real data in a directory, read all of it where asked, and say what to type next."""
    folder = config["data_dir"]
    if folder is None:
        raise UserError(f"{task}: where does its {source} data lie? type --from DIR")
    module, data = load.common(config["task"]["module"]), _open(config)
    print(f"{source}: {data.kind}, {data.name}, {_sizes(data.samples)}")
    print(f"identity  {data.identity}  ({data.note})")
    for split, counts in module.census(folder).items():
        fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        parts = getattr(module, "PARTS", "classes")
        print(f"{split}  {len(counts):,} {parts}, {counts[fewest]:,} ({fewest}) to {counts[most]:,} ({most}) each")
        if len(counts) <= FEW:
            print(f"  {_sizes(counts)}")
    faults = module.check(folder) if check else []
    for fault in faults:
        print(f"cannot read {fault}")
    if check:
        print(f"read {sum(data.samples.values()):,} {data.unit}; {len(faults):,} damaged files")
    rest = [*overrides, *(["task.on_error=skip"] if faults else [])]
    print(" ".join([f"next: suite +task={task} task.data={source} data_dir={shlex.quote(str(folder))}", *rest]))
    return 1 if faults else 0
