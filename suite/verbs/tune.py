"""`suite tune`: try a frozen list of hyper-parameters, and write the best into a recipe with its evidence."""

import argparse
import dataclasses
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import configure, run
from suite.contract import UserError
from suite.launch import launch
from suite.verbs import recipe
from suite.verbs.trials import PREFIX, Trial, propose, rungs, table

SEARCH = f"{PREFIX}search"
AGAIN = 2  # seeds at most that tell equal trials apart: of a run scored every few steps equal means little
HELP = """Run the trials of a frozen quasi-random list, each a process of its own, rank them by the steps to the last
target they reach (more targets first), and write the best into a recipe that later runs find by themselves. Trials
that are equal run again with the next seeds, two at most. Ranges stand in the optimizer's YAML file,
search: {lr: [low, high, log]}; a value given on the command line is fixed, and recorded. Trials start from the
defaults, not from an earlier recipe; finished ones are not run again; the same recipe's values for other data are
kept. Exit codes: 0 written, 1 no trial reached a target, 2 bad usage, 130 and 143 interrupted, when the same command
goes on."""


def main(arguments: Sequence[str]) -> int:
    """0 written, 1 no trial reached a target, 130 and 143 interrupted."""
    parser = argparse.ArgumentParser(prog="suite tune", description=HELP)
    parser.add_argument("overrides", nargs="+", metavar="key=value", help="as for a run; trials=8 says how many")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="conf/recipe/<task>-<optimizer>-<scale>.yaml if not given"
    )
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="your own configuration groups")
    chosen = parser.parse_intermixed_args(arguments)
    overrides, trials = _split(configure.clean(chosen.overrides))
    directory = chosen.config_dir

    config = configure.whole(overrides, directory)
    fixed = [key for key in _keys(overrides) if key.startswith(configure.TUNED) and not key.startswith(SEARCH)]
    path = chosen.out or _place(config, directory)
    tuned = recipe.tuned_in(path)
    points = propose(config["optimizer"], fixed=fixed, trials=trials)
    common = [override for override in overrides if not override.lstrip("+").startswith(SEARCH)]
    done = []
    try:
        for number, values in enumerate(points, start=1):
            print(f"\ntrial {number}/{trials}: {' '.join(_typed(values))}", flush=True)
            done.append(Trial(number, values, _try([*common, *_typed(values)], directory)))
        ranked = _ranked(done, common, config["seed"], directory)
    except _InterruptedError as interrupted:
        return interrupted.code
    print(f"\n{table(ranked)}\n")
    if not rungs(ranked[0].result):
        print("no trial reached a target, nothing is written: allow more max_steps=, or search elsewhere")
        return 1
    keys = dict.fromkeys([*fixed, *points[0], "max_steps"])
    source = config["task"].get("data", recipe.ANY)
    tuned |= {source: recipe.evidence(ranked, keys=list(keys), command=chosen.overrides, name=path.stem)}
    defaults = [override for override in common if not override.startswith(configure.TUNED)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(recipe.text(configure.whole(defaults, directory), tuned))
    print(f"written: {path}")
    return 0


class _InterruptedError(Exception):
    """A trial was told to stop, with the exit code that says how."""

    def __init__(self, code: int):
        self.code = code


def _ranked(done: list[Trial], common: Sequence[str], seed: int, directory: Path | None) -> list[Trial]:
    """The trials, best first, after those that tie for the first place have run with further seeds."""
    common = [word for word in common if not word.startswith("seed=")]
    ranked = sorted(done, key=lambda trial: trial.place)
    for further in range(seed + 1, seed + 1 + AGAIN):
        tied = [trial for trial in ranked if trial.score == ranked[0].score]
        if len(tied) == 1 or not rungs(ranked[0].result):
            break
        for place, trial in enumerate(tied):
            print(f"\ntrial {trial.number} again, as {len(tied)} are equal: seed={further}", flush=True)
            result = _try([*common, *_typed(trial.values), f"seed={further}"], directory)
            ranked[place] = dataclasses.replace(trial, again=(*trial.again, result))
        ranked.sort(key=lambda trial: trial.place)
    return ranked


def _split(typed: list[str]) -> tuple[list[str], int]:
    """The runs' overrides, and the number of trials.

    Raises:
        UserError: for what a recipe cannot be tuned from, or record.
    """
    trials = "8"
    overrides = []
    for override in typed:
        key, _, value = override.partition("=")
        if key == "trials":
            trials = value
            continue
        if key in ("recipe", "experiment"):
            raise UserError(f"{override}: tuning starts from the defaults; give that one's values instead")
        if key == "baseline":
            raise UserError(f"{override}: a baseline has no optimizer to tune; type suite +task=… {override}")
        adds = key.startswith(("+", "~")) and key.lstrip("+~").startswith(configure.TUNED)
        if adds and not key.startswith(f"+{SEARCH}"):
            raise UserError(f"{override}: a recipe replaces values and adds none; give {key[1:]} a default first")
        overrides.append(override)
    if not trials.isdecimal() or int(trials) < 1:
        raise UserError(f"trials={trials}: must be a whole number, at least 1")
    quiet = [] if "track" in _keys(overrides) else ["track=none"]
    return [*overrides, "~recipe", *quiet], int(trials)


def _typed(values: Mapping[str, float]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.partition("=")[0] for override in overrides]


def _place(config: dict[str, Any], directory: Path | None) -> Path:
    """Where composition looks for a tuned recipe."""
    folder = directory or Path(next(iter(importlib.import_module("suite.conf").__path__)))
    return folder / "recipe" / f"{config['task']['name']}-{config['optimizer']['name']}-{config['scale']}.yaml"


def _try(overrides: list[str], directory: Path | None) -> dict[str, Any] | None:
    """Run one trial, or find it; its result unless it failed."""
    config = configure.compose(overrides, directory)
    configure.refuse_unread(config, overrides)
    fingerprint = run.make_header(config, overrides)["fingerprint"]  # before: files may be edited while it runs
    code = launch(config, overrides, apart=True)
    if code == 2:
        raise UserError("the trial could not run, for the reason above; nothing is written")
    if code in run.SIGNALS.values():
        raise _InterruptedError(code)
    found = run.Directory(config | {"force": False}, fingerprint)
    return json.loads((found.path / "result.json").read_text()) if found.state == "finished" else None
