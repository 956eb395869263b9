"""The command line: `suite <overrides>` starts runs, `suite <verb>` runs one of the verbs."""

import errno
import functools
import importlib
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite import __version__, disk
from suite.contract import UserError
from suite.load import nearest, options, search_working_directory
from suite.settings.configure import CHOICES
from suite.settings.overrides import split_directory

VERBS = {
    "list": "suite.verbs.list",
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

  suite list | plan | data | tune | verify | sync       each with --help
  suite reproduce | report | board | submit | export | regress | counters

Groups (group=choice):
{groups}

Everything else is a value (optimizer.lr=0.1): suite task=resnet50 --cfg job prints them all.
Hydra's own help: --hydra-help."""
HYDRA = ("--hydra-help", "--cfg", "-c", "--info", "-i", "--resolve", "-sc", "--shell-completion")
SWEEP = ("-m", "--multirun")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `suite` script; returns the exit code.

    0 completed and recorded, 1 failed, 2 bad usage, 3 target missed under require=target, 130 and 143 interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    search_working_directory()
    try:
        return _dispatch(arguments)
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of the output has closed the pipe, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        if error.errno not in disk.PASSING:
            raise
        print(f"suite: {error.filename or 'standard output'}: {disk.cause(error)}", file=sys.stderr)
        return 2


def _dispatch(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in VERBS:
        return importlib.import_module(VERBS[first]).main(arguments[1:])
    if arguments == ["--version"]:
        print(f"suite {__version__}")
        return 0
    if {"--help", "-h"} & set(arguments):
        print(_help(arguments))
        return 0
    if any(argument in HYDRA or argument.startswith("--cfg=") for argument in arguments):
        return _hydra(arguments)
    from suite.settings import configure, validation
    from suite.settings.overrides import expand

    if first and "=" not in first and not first.startswith("-"):
        raise UserError(f"{first}: no such verb; {nearest(first, VERBS)} (for a setting, type key=value)")
    directory, overrides = split_directory(arguments)
    sweep = any(argument in SWEEP for argument in overrides)
    runs = expand([argument for argument in overrides if argument not in SWEEP])
    if len(runs) > 1 and not sweep:
        raise UserError("several values for one key; type -m first to run them all")
    configs = [configure.compose(run, directory) for run in runs]  # every run is checked before the first one starts
    for config, run in zip(configs, runs, strict=True):
        validation.reject_unread(config, run, directory)
    return _run_all(runs, configs, apart=sweep)


def _help(arguments: list[str]) -> str:
    """The help text with the choices of every group. Hydra's own help would print whole configuration files."""
    directory, _ = split_directory(arguments)
    groups = {group: ", ".join(options(group, directory)) for group in CHOICES}
    wrap = functools.partial(textwrap.fill, width=110, subsequent_indent=" " * 14)
    return HELP.format(groups="\n".join(wrap(f"  {group:<11} {names}") for group, names in groups.items()))


def _run_all(runs: list[list[str]], configs: list[dict[str, Any]], *, apart: bool) -> int:
    """Launch the runs one after another; a failed run does not stop the others.

    Args:
        runs: the overrides of each run.
        configs: the configuration of each run.
        apart: whether the runs are a sweep, in which each is a process of its own.

    Returns:
        The worst exit code.

    Raises:
        UserError: if the only run is rejected.
    """
    from suite import load

    launch = load.common(configs[0].get("launch", {}).get("module", "suite.launch.local")).launch  # a baseline has none
    parent = _sweep_in_mlflow(configs[0]) if apart and configs else None
    codes, launched = [], []
    for overrides, config in zip(runs, configs, strict=True):
        for replicate in range(config["repeat"]):
            directories: list[Path] = []
            repeated = config | {"force": config["force"] or replicate > 0}
            try:
                alone = not apart and config["repeat"] == 1
                codes.append(
                    launch(repeated, overrides, apart=not alone, parent=parent, report_directory=directories.append)
                )
            except UserError as error:
                if len(configs) == 1:
                    raise
                print(f"suite: {error}", file=sys.stderr)
                codes.append(2)
            launched.append((overrides, directories[0] if directories else None))
            if codes[-1] in (130, 143):
                return codes[-1]
    if len(launched) > 1:
        from suite.track import sweep

        sweep.show(launched)
    return max(codes, key=lambda code: (code == 1, code == 2, code))


def _sweep_in_mlflow(config: dict[str, Any]) -> str | None:
    """Create the MLflow run below which a sweep's runs are shown; None without tracking."""
    if config["track"]["name"] == "none":
        return None
    from suite.track import mlflow

    try:
        return mlflow.parent_run("sweep", config=config)
    except UserError as error:
        print(f"suite: {error}", file=sys.stderr)
        return None


def _hydra(arguments: list[str]) -> int:
    """Let Hydra print its help or the configuration, or complete a command."""
    import hydra

    from suite.settings.configure import complete

    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.argv = ["suite", *complete(arguments, split_directory(arguments)[0])]
    hydra.main(version_base="1.3", config_path="pkg://suite.conf", config_name="config")(lambda config: None)()
    return 0


if __name__ == "__main__":
    sys.exit(main())
