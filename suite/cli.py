"""Command line: `suite <overrides>` starts runs, `suite <verb>` runs one of the verbs."""

import errno
import functools
import importlib
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from suite import __version__, disk, output, signals
from suite.contract import UserError, suggest_names
from suite.load import list_options, search_working_directory
from suite.settings.overrides import CHOICES, add_directory, expand_sweep, split_directory
from suite.threads import limit_spinning

if TYPE_CHECKING:
    from suite.settings.run import AnyRun

VERBS = {
    "list": "suite.verbs.list",
    "new": "suite.verbs.new",
    "plan": "suite.verbs.plan",
    "data": "suite.verbs.data",
    "tune": "suite.verbs.tune",
    "verify": "suite.verbs.verify",
    "sync": "suite.verbs.sync",
    "board": "suite.verbs.board",
    "reproduce": "suite.verbs.reproduce",
    "report": "suite.verbs.report",
    "submit": "suite.verbs.submit",
    "export": "suite.verbs.export",
    "regress": "suite.verbs.regress",
    "counters": "suite.verbs.counters",
}
HELP = """suite: published claims of large-scale training as commands, in PyTorch and in JAX

  suite task=resnet50 optimizer=kfac                    train, measure, compare with published numbers
  suite task=resnet50 optimizer=sgd backend=jax seed=1
  suite -m task=resnet50 optimizer=sgd,kfac seed=0,1,2  a sweep, one process per run
  suite experiment=A1-12                                a published row, as printed

  suite --version                                       also the commit
  suite list | plan | data | tune | verify | sync | new each with --help
  suite reproduce | report | board | submit | export | regress | counters

Groups (group=choice):
{groups}

Everything else is a value (optimizer.lr=0.1): suite task=resnet50 --cfg job prints them all.
Hydra's own help: --hydra-help."""
HYDRA = ("--hydra-help", "--info", "-i", "-sc", "--shell-completion")
CONFIGURATION = ("--cfg", "-c")
SWEEP = ("-m", "--multirun")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `suite` script; returns the exit code.

    0 completed and recorded, 1 failed, 2 bad usage, 3 target missed under require=target, 129, 130 and 143 interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    search_working_directory()
    limit_spinning(os.environ)  # before a library loads OpenMP; processes that this one starts inherit it
    with output.drop_unwritable() as descriptors:
        code = _report_errors(arguments)
        sys.stdout.flush()
        lost = next((one.lost for one in descriptors if one.lost and one.lost.errno != errno.EPIPE), None)
        if lost:  # a closed pipe is no error: its reader has read enough, as `head` does
            print(f"suite: output was lost: {disk.explain_error(lost)}", file=sys.stderr)
        is_verb = bool(arguments) and arguments[0] in VERBS
        return code or (2 if lost and is_verb else 0)  # a run is what its training was


def _report_errors(arguments: list[str]) -> int:
    """Do what was asked; print an error that is the user's or the machine's in one line."""
    try:
        return _dispatch(arguments)
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)
    except OSError as error:
        if error.errno not in disk.PASSING:
            raise
        print(f"suite: {error.filename or 'a file'}: {disk.explain_error(error)}", file=sys.stderr)
    return 2


def _dispatch(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in VERBS:
        return importlib.import_module(VERBS[first]).main(arguments[1:])
    if "--version" in arguments:
        print(_version())
        return 0
    if {"--help", "-h"} & set(arguments):
        print(_help(arguments))
        return 0
    if any(argument in HYDRA for argument in arguments):
        return _ask_hydra(arguments)
    if any(argument in CONFIGURATION or argument.startswith("--cfg=") for argument in arguments):
        return _print_run(arguments)
    if first and "=" not in first and not first.startswith(("-", "~")):
        raise UserError(f"{first}: no such verb; {suggest_names(first, VERBS)} (for a setting, use key=value)")
    from suite.settings.configure import reject_unread, resolve

    directory, overrides = split_directory(arguments)
    if verb := next(filter(VERBS.__contains__, overrides), None):
        raise UserError(f"{verb}: a verb comes first; write suite {verb}, then the settings and options")
    sweep = any(argument in SWEEP for argument in overrides)
    commands = expand_sweep([argument for argument in overrides if argument not in SWEEP])
    if len(commands) > 1 and not sweep:
        raise UserError("several values for one key; use -m to run them all")
    runs = [resolve(command, directory) for command in commands]  # every run is checked before the first one starts
    for run, command in zip(runs, commands, strict=True):
        reject_unread(run, command, directory)
    if sweep:
        commands, runs = _drop_equal(commands, runs)
    return _run_all(commands, runs, directory, apart=sweep)


def _version() -> str:
    """Return the version, and in a checkout the commit."""
    from suite.record.environment import read_revision

    commit, dirty = read_revision()
    changes = ", with uncommitted changes" if dirty else ""
    return f"suite {__version__}" + (f" (commit {commit}{changes})" if commit else "")


def _help(arguments: list[str]) -> str:
    """Return the help text with the choices of every group. Hydra's own help would print whole configuration files."""
    directory, _ = split_directory(arguments)
    groups = {group: ", ".join(list_options(group, directory)) for group in CHOICES}
    wrap = functools.partial(textwrap.fill, width=110, subsequent_indent=" " * 14)
    return HELP.format(groups="\n".join(wrap(f"  {group:<11} {names}") for group, names in groups.items()))


def _drop_equal(commands: list[list[str]], runs: "list[AnyRun]") -> "tuple[list[list[str]], list[AnyRun]]":
    """Leave out the runs of a sweep that an earlier one equals, which it would find finished; say so."""
    from suite.settings.effects import hash_run

    places: set[tuple[str, str | None]] = set()
    kept: list[int] = []
    for index, run in enumerate(runs):
        place = hash_run(run), run.run_dir
        if place not in places or run.force:
            kept.append(index)
        else:
            words = " ".join(commands[index])
            print(f"note: {words}: the same run as an earlier one of this sweep; it runs once. For more runs of one "
                  "command, set repeat=N", file=sys.stderr)  # fmt: skip
        places.add(place)
    return [commands[index] for index in kept], [runs[index] for index in kept]


def _run_all(commands: list[list[str]], runs: "list[AnyRun]", directory: Path | None, *, apart: bool) -> int:
    """Launch the runs one after another; a failed run does not stop the others.

    Args:
        commands: the overrides of each run.
        runs: the runs.
        directory: the user's own configuration groups.
        apart: whether the runs are a sweep, in which each is a separate process.

    Returns:
        The worst exit code.

    Raises:
        UserError: if the only run is rejected.
    """
    from suite.nodes import Part
    from suite.settings.run import Run

    first = runs[0]
    launcher = Part(module=first.launch.module if isinstance(first, Run) else "suite.launch.local")
    launch = launcher.member.launch
    typed = [add_directory(overrides, directory) for overrides in commands]
    codes: list[int] = []
    launched: list[tuple[list[str], Path | None]] = []
    with _sweep_parent(first, typed, codes) if apart else nullcontext() as parent:
        for overrides, words, run in zip(commands, typed, runs, strict=True):
            for replicate in range(run.repeat):
                directories: list[Path] = []
                repeated = run.model_copy(update={"force": run.force or replicate > 0})
                alone = not apart and run.repeat == 1
                try:
                    codes.append(
                        launch(repeated, words, apart=not alone, parent=parent, report_directory=directories.append)
                    )
                except UserError as error:
                    if len(runs) == 1:
                        raise
                    print(f"suite: {error}", file=sys.stderr)
                    codes.append(2)
                launched.append((overrides, directories[0] if directories else None))
                if codes[-1] in signals.CODES.values():
                    return codes[-1]
    if len(launched) > 1:
        from suite.track import sweep

        sweep.show_sweep(launched)
    return max(codes, key=lambda code: (code == 1, code == 2, code))


@contextmanager
def _sweep_parent(run: "AnyRun", commands: Sequence[Sequence[str]], codes: Sequence[int]) -> Iterator[str | None]:
    """Keep the MLflow run below which a sweep's runs are shown, and set its state at the end.

    Args:
        run: the first run.
        commands: what is typed for each run.
        codes: exit codes of the runs, as they end.

    Yields:
        The id of the MLflow run; None without tracking.
    """
    if run.track.name == "none":
        yield None
        return
    from suite.track import parent

    number = None
    try:
        number = parent.start_sweep(commands, like=run)
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)
    whole = False
    try:
        yield number
        whole = not set(codes) & set(signals.CODES.values())
    finally:
        if number:
            try:
                parent.end_sweep(number, codes, whole=whole)
            except UserError as error:
                print(f"suite: {error}", file=sys.stderr)


def _print_run(arguments: list[str]) -> int:
    """Print the run that a command describes, as YAML."""
    import yaml

    from suite.settings.configure import resolve

    directory, words = split_directory(arguments)
    for flag in CONFIGURATION:
        if flag in words:
            index = words.index(flag)
            words[index : index + 2] = [f"--cfg={' '.join(words[index + 1 : index + 2])}"]
    asked = [word for word in words if word.startswith("--cfg=")]
    if asked != ["--cfg=job"]:
        raise UserError(f"{' '.join(asked)}: use --cfg job, which prints every setting of the run")
    run = resolve([word for word in words if word not in asked and word != "--resolve"], directory)
    print(yaml.safe_dump(run.plain(), sort_keys=False, allow_unicode=True), end="")
    return 0


def _ask_hydra(arguments: list[str]) -> int:
    """Let Hydra print its help, or complete a command."""
    import hydra

    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.argv = ["suite", *arguments]
    hydra.main(version_base="1.3", config_path="pkg://suite.conf", config_name="config")(lambda config: None)()
    return 0


if __name__ == "__main__":
    sys.exit(main())
