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
TRIALS, SEEDS = 8, 3
HELP = f"""Run the trials of a frozen quasi-random list, each a process of its own, rank them by the steps to the last
target they reach (more targets first), and write the best into a recipe that later runs find by themselves. A trial is
as good as the worst of {SEEDS} seeds: whichever leads runs with the next one, until one leads with all. Ranges stand in
the optimizer's YAML file, search: {{lr: [low, high, log]}}; a value given on the command line is fixed, and recorded.
Trials start from the defaults, not from an earlier recipe; finished ones are not run again; the same recipe's values
for other data are kept. Exit codes: 0 written, 1 no trial reached a target, 2 bad usage, 130 and 143 interrupted, when
the same command goes on."""


def main(arguments: Sequence[str]) -> int:
    """0 written, 1 no trial reached a target, 130 and 143 interrupted."""
    parser = argparse.ArgumentParser(prog="suite tune", description=HELP)
    parser.add_argument(
        "overrides", nargs="+", metavar="key=value", help="as for a run; trials=8 and seeds=3 say how many"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="conf/recipe/<task>-<optimizer>-<scale>.yaml if not given"
    )
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="your own configuration groups")
    chosen = parser.parse_intermixed_args(arguments)
    overrides, trials, seeds = _split(configure.clean(chosen.overrides))
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
        ranked = _ranked(done, common, seed=config["seed"], seeds=seeds, directory=directory)
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


def _ranked(done: list[Trial], common: Sequence[str], *, seed: int, seeds: int, directory: Path | None) -> list[Trial]:
    """The trials, best first, after the best has held with further seeds.

    A trial counts as the worst of its seeds, so that further ones cannot improve it: the first that leads with all of
    them would lead if every trial had run with all of them.
    """
    common = [word for word in common if not word.startswith("seed=")]
    while True:
        done = sorted(done, key=lambda trial: trial.place)
        best = done[0]
        if 1 + len(best.again) == seeds or not rungs(best.result):
            return done
        further = f"seed={seed + 1 + len(best.again)}"
        print(f"\ntrial {best.number}, the best so far, with {further}", flush=True)
        result = _try([*common, *_typed(best.values), further], directory)
        done[0] = dataclasses.replace(best, again=(*best.again, result))


def _split(typed: list[str]) -> tuple[list[str], int, int]:
    """The runs' overrides, the number of trials, and of seeds.

    Raises:
        UserError: for what a recipe cannot be tuned from, or record.
    """
    counts = {"trials": str(TRIALS), "seeds": str(SEEDS)}
    overrides = []
    for override in typed:
        key, _, value = override.partition("=")
        if key in counts:
            counts[key] = value
            continue
        if key in ("recipe", "experiment"):
            raise UserError(f"{override}: tuning starts from the defaults; give that one's values instead")
        if key == "baseline":
            raise UserError(f"{override}: a baseline has no optimizer to tune; type suite +task=… {override}")
        adds = key.startswith(("+", "~")) and key.lstrip("+~").startswith(configure.TUNED)
        if adds and not key.startswith(f"+{SEARCH}"):
            raise UserError(f"{override}: a recipe replaces values and adds none; give {key[1:]} a default first")
        overrides.append(override)
    for key, value in counts.items():
        if not value.isdecimal() or int(value) < 1:
            raise UserError(f"{key}={value}: must be a whole number, at least 1")
    quiet = [] if "track" in _keys(overrides) else ["track=none"]
    return [*overrides, "~recipe", *quiet], int(counts["trials"]), int(counts["seeds"])


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
    configure.refuse_unread(config, overrides, directory)
    fingerprint = run.make_header(config, overrides)["fingerprint"]  # before: files may be edited while it runs
    code = launch(config, overrides, apart=True)
    if code == 2:
        raise UserError("the trial could not run, for the reason above; nothing is written")
    if code in run.SIGNALS.values():
        raise _InterruptedError(code)
    found = run.Directory(config | {"force": False}, fingerprint)
    return json.loads((found.path / "result.json").read_text()) if found.state == "finished" else None
