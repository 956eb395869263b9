"""`suite data`: list a task's data sources, prepare raw data, and check the files in a directory."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite import disk, load
from suite.contract import CountsRecurring, Data, Task, UserError
from suite.launch import public
from suite.nodes import Part
from suite.record import record
from suite.settings import configure
from suite.settings.overrides import key_of, quote_text, render_command
from suite.settings.run import AnyRun

FEW = 20  # with at most so many parts, the count of each part is printed
HELP = """List the data that a task can use, and what of it is available here: data that comes with a package, generated
data, or real files in the directory given by --from (or by data_dir= in conf/local/default.yaml). The files stay where
they are. --check reads every file, and counts the validation samples that are training samples, too. If a task's raw
files must be prepared first, --to names the folder for the prepared files. Exit codes: 0 everything can be read, 1 some
files cannot be read (each one is named), 2 bad usage or no such directory."""


@dataclass(frozen=True)
class Source:
    """One source of a task's data.

    Attributes:
        data: describes the data; None if it is not available here.
        missing: why it is not available.
        parts: for each split, the number of samples in each part (class, shard or list); None without a directory.
        faults: one line for each damaged file; None if the files were not read. With faults, `data` may be None.
        next_command: the command that trains on the data.
        recurring: how many validation samples equal a training sample; None if the splits were not compared.
    """

    data: Data | None
    missing: str = ""
    parts: Mapping[str, Mapping[str, int]] | None = None
    faults: Sequence[str] | None = None
    next_command: str = ""
    recurring: int | None = None

    @property
    def usable(self) -> bool:
        """Return whether no file is damaged and every split has samples."""
        return not self.faults and (self.data is None or all(self.data.samples.values()))


def main(arguments: Sequence[str]) -> int:
    """List a task's data sources, or describe the files in a directory; an empty split ends with 1, too."""
    chosen = _parse(arguments)
    if chosen.fetch:
        options = {"target": chosen.target, "mirror": chosen.mirror, "directory": chosen.config_dir}
        for line in public.fetch_data(chosen.task, chosen.overrides, **options):
            print(line, flush=True)
        return 0
    if chosen.target:
        _prepare(chosen.task, chosen.folder, chosen.target, chosen.overrides, chosen.config_dir)
        chosen.folder = chosen.target
    runs = _configs(chosen.task, chosen.folder, chosen.overrides, chosen.config_dir)
    if not (chosen.folder or chosen.check):
        _print_sources(chosen.task, runs, chosen.config_dir, as_json=chosen.json)
        return 0
    runs = {source: run for source, run in runs.items() if _reads_directory(run)}
    if not runs:
        raise UserError(f"{chosen.task}: none of its data is read from a directory; remove --from and --check")
    runs = _with_files(runs)
    overrides = [word for word in chosen.overrides if not word.startswith("task.data=") and ".prepare." not in word]
    sources = {
        name: _inspect(chosen.task, name, run, overrides, chosen.config_dir, check=chosen.check)
        for name, run in runs.items()
    }
    if chosen.json:
        print(_json(sources))
    else:
        for name, source in sources.items():
            _describe(name, source, runs[name].task.member.PARTS)
    return 0 if all(source.usable for source in sources.values()) else 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; ends the process with exit code 2 if the task's name is missing."""
    usage = "suite data TASK [--from DIR] [--to DIR] [--check] [--json] [--config-dir DIR] [task.key=value ...]\n"
    usage += "       suite data TASK --fetch [--to DIR] [--mirror URL] [--config-dir DIR] [task.data=NAME]"
    parser = argparse.ArgumentParser(prog="suite data", usage=usage, description=HELP)
    parser.add_argument("task", metavar="TASK", nargs="?", help="a task's name, as in task=")
    parser.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="the directory of the real data")
    parser.add_argument(
        "--to",
        dest="target",
        type=Path,
        metavar="DIR",
        help="prepare the raw data of --from and write it here; or where --fetch puts files",
    )
    parser.add_argument("--fetch", action="store_true", help="download the task's public data")
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help="another server's folder with the files; set task.data=, too, if the task has several public sets",
    )
    parser.add_argument("--check", action="store_true", help="read every file, to find the damaged ones")
    parser.add_argument("--json", action="store_true", help="print JSON: {source: {data: {…}, left_out, …}}")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="your own configuration groups")
    parser.add_argument(
        "overrides", nargs="*", metavar="task.key=value", help="settings as for a run: of the task, or scale="
    )
    chosen = parser.parse_intermixed_args(arguments)
    if chosen.task is None:  # argparse's own message would also ask for overrides, which are optional
        parser.error(f"TASK is missing; choose one of {', '.join(load.list_options('task', chosen.config_dir))}")
    if chosen.fetch and (chosen.folder or chosen.check or chosen.json):
        parser.error("--fetch cannot be combined with --from, --check and --json; check the files afterwards")
    if chosen.mirror and not chosen.fetch:
        parser.error("--mirror is an option of --fetch")
    return chosen


def _print_sources(task: str, runs: Mapping[str, AnyRun], directory: Path | None, *, as_json: bool) -> None:
    """Print the sources of a task's data, and whether each is available here."""
    if as_json:
        print(_json({source: _source(run) for source, run in runs.items()}))
        return
    width = max(map(len, runs))
    for source, run in runs.items():
        print(f"{source:{width}}  {_state(run)}")
    choices = f" task.data={'|'.join(runs)}" if len(runs) > 1 else ""
    print(f"to choose: {render_command(f'suite +task={task}{choices}', directory)}")


def _json(sources: Mapping[str, Source]) -> str:
    """Return the sources as JSON: each source's data as a result holds it, and the other fields of `Source`."""
    described = {
        name: {
            "data": record.describe_data(source.data) if source.data else None,
            "left_out": source.data.losses() if source.data else None,
            "dropped_share": source.data.dropped_share if source.data else None,
            "missing": source.missing or None,
            "parts": source.parts,
            "damaged": source.faults,
            "next": source.next_command or None,
            "recurring": source.recurring,
        }
        for name, source in sources.items()
    }
    return record.format_json(described, indent=1)


def _with_files(runs: Mapping[str, AnyRun]) -> Mapping[str, AnyRun]:
    """Keep the sources whose files the directory contains; keep all if that cannot be told.

    Raises:
        UserError: if the directory contains the files of none of several sources, with the reason for each source.
    """
    readable, reasons = {}, []
    for source, run in runs.items():
        try:
            _open(run)
            readable[source] = run
        except UserError as error:
            reasons.append(f"{source}: {error}")
    if len(reasons) > 1 and not readable and next(iter(runs.values())).data_dir is not None:
        raise UserError("; ".join(reasons))
    return readable or runs


def _prepare(task: str, folder: Path | None, target: Path, overrides: Sequence[str], directory: Path | None) -> None:
    """Let the task prepare its raw data, with the options below `prepare` of one of its sources."""
    node = configure.compose_nodes([f"task={task}", *overrides], directory)["task"]
    options = next((source["prepare"] for source in node.get("sources", {}).values() if "prepare" in source), None)
    if options is None:
        raise UserError(f"{task}: its data needs no preparation; remove --to")
    if folder is None:
        raise UserError(f"{task}: the directory of the raw data is missing; use --from DIR")
    if not folder.exists():
        raise UserError(f"{folder}: no such directory")
    configure.resolve([f"task={task}", *overrides], directory)  # judges the settings before hours of preparation
    disk.make_folder(target)
    Part(module=node["module"]).member.prepare(folder, target, **options)


def _configs(task: str, folder: Path | None, overrides: Sequence[str], directory: Path | None) -> dict[str, AnyRun]:
    """A configuration for each source of the task's data, by the source's name; by the task's if it has only one."""
    data_dir = [f"data_dir={quote_text(str(folder.resolve()))}"] if folder else []
    base = [f"task={task}", *data_dir, *overrides]
    names = configure.compose_nodes(base, directory)["task"].get("sources", {})
    if not names:
        return {task: configure.resolve(base, directory)}
    typed = [override.partition("=")[2] for override in overrides if override.startswith("task.data=")]
    chosen = [name for name in names if name in typed] or names
    return {name: configure.resolve([*base, f"task.data={name}"], directory) for name in chosen}


def _reads_directory(run: AnyRun) -> bool:
    return "data_dir" in run.task.options().get("source", {})


def _open(run: AnyRun) -> Data:
    """Make the task, which opens its data; returns the description of the data."""
    task: Task = run.task.build()
    return task.data


def _source(run: AnyRun) -> Source:
    try:
        if _reads_directory(run) and public.find_folder(run) is None:
            return Source(None, "real, in a directory   not here: use --from DIR")
        return Source(_open(run))
    except UserError as error:
        return Source(None, f"not here: {error}")


def _state(run: AnyRun) -> str:
    """Kind, place, name and size of a source, or why it is not here; a second line says what was left out."""
    source = _source(run)
    if source.data is None:
        return source.missing
    data = source.data
    place = (
        f"in {public.find_folder(run)}" if _reads_directory(run) else "embedded" if data.kind == "real" else "by seed"
    )
    losses = f"\n{'':8}  left out: {data.losses()}" if data.losses() else ""
    return f"{data.kind}, {place}   {data.name}: {_sizes(data.samples)}; {data}{losses}"


def _sizes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _inspect(
    task: str, source: str, run: AnyRun, overrides: Sequence[str], directory: Path | None, *, check: bool
) -> Source:
    """Describe the real data in a directory; with `check`, read all of it.

    Raises:
        UserError: if no directory was given, or it does not contain the source's files.
    """
    folder = public.find_folder(run)
    if folder is None:
        raise UserError(f"{task}: the directory of its {source} data is missing; use --from DIR")
    module = run.task.member
    load.check_names(module, "PARTS", "census", "check")
    options = {"data": source, **run.task.options()["source"]} | {"data_dir": str(folder)}
    faults = module.check(**options) if check else None
    try:
        data, parts = _open(run), module.census(**options)
    except UserError:
        if not faults:
            raise
        return Source(None, faults=faults)
    compared = check and isinstance(module, CountsRecurring)
    recurring = module.count_recurring(**{**run.task.options(), **options}) if compared else None
    place = [f"data_dir={shlex.quote(str(folder))}"] if run.data_dir is not None else []
    typed = [override for override in overrides if key_of(override) != "data_dir"]
    command = [f"suite +task={task} task.data={source}", *place, *typed]
    command += ["task.on_error=skip"] if faults else []
    return Source(
        data, parts=parts, faults=faults, next_command=render_command(" ".join(command), directory), recurring=recurring
    )


def _describe(name: str, source: Source, parts_name: str) -> None:
    """Print what a directory contains; `parts_name` is the word for the parts that are counted, such as classes."""
    if source.data is None or source.parts is None:  # so damaged that it cannot be opened
        for fault in source.faults or []:
            print(f"cannot read {fault}")
        return
    data = source.data
    print(f"{name}: {data.kind}, {data.name}, {_sizes(data.samples)}")
    print(f"identity  {data.identity}  ({data.note})")
    if losses := data.losses():
        print(f"left out  {losses}")
    for split, counts in source.parts.items():
        fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        print(f"{split}  {len(counts):,} {parts_name}, {counts[fewest]:,} ({fewest}) to {counts[most]:,} ({most}) each")
        if len(counts) <= FEW:
            print(f"  {_sizes(counts)}")
    for fault in source.faults or []:
        print(f"cannot read {fault}")
    if source.faults is not None:
        print(f"read {sum(data.samples.values()):,} {data.unit}; {len(source.faults):,} damaged files")
    if source.recurring is not None:
        print(
            f"recur     {source.recurring:,} of {data.samples['valid']:,} validation {data.unit} are in training, too"
        )
    elif source.faults is not None:
        print(f"recur     not counted: {sum(data.samples.values()):,} {data.unit} are too many, or the task cannot")
    if all(data.samples.values()):
        print(f"next: {source.next_command}")
    else:
        print(f"too few usable {data.unit}: a run needs some in each split")
