"""`suite tune`: try a fixed list of hyper-parameters, and write the best ones into a recipe with the evidence."""

import argparse
import dataclasses
import importlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.contract import UserError
from suite.launch import directories, execution
from suite.launch.local import launch
from suite.settings import configure
from suite.settings.overrides import TUNED, clean_overrides
from suite.settings.run import Run
from suite.tuning import recipe
from suite.tuning.trials import PREFIX, Trial, list_rungs, make_table, measure_shortfall, propose_trials

SEARCH = f"{PREFIX}search"
TRIALS, SEEDS = 8, 3
HELP = f"""Run a fixed quasi-random list of trials, each in a process of its own. Rank them by the number of targets
they reach, then by the steps to the last one. Write the best values into a recipe, which later runs use automatically.
A trial is ranked by the worst of its seeds: the best trial runs again with the next seed, until the best trial has run
with {SEEDS} seeds. The ranges stand in the optimizer's YAML file, search: {{lr: [low, high, log]}}; a value on the
command line is not searched, and is recorded. Trials start from the defaults, not from an earlier recipe. Finished
trials do not run again. The recipe's values for other data are kept. If no trial reaches a target, no recipe is
written; with --misses, the trial that came closest to the first target is written. Exit codes: 0 written, 1 no trial
reached a target, 2 bad usage, 130 and 143 interrupted (the same command continues)."""


def main(arguments: Sequence[str]) -> int:
    """Run the trials and write the recipe.

    Args:
        arguments: what was typed after `suite tune`.

    Returns:
        0 written, 1 no trial reached a target, 130 and 143 interrupted.

    Raises:
        UserError: for overrides that cannot be tuned, or a trial that could not run.
    """
    parser = argparse.ArgumentParser(prog="suite tune", description=HELP)
    parser.add_argument(
        "overrides",
        nargs="+",
        metavar="key=value",
        help="as for a run; also trials=N (default: 8) and seeds=N (default: 3)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the recipe to write (default: conf/recipe/<task>-<optimizer>-<scale>.yaml)",
    )
    parser.add_argument("--misses", action="store_true", help="write a recipe even if no trial reached a target")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="your own configuration groups")
    chosen = parser.parse_intermixed_args(arguments)
    overrides, trials, seeds = _split(clean_overrides(chosen.overrides))
    directory = chosen.config_dir

    run = configure.resolve_training(overrides, directory)
    optimizer = configure.compose_nodes(overrides, directory)["optimizer"]
    fixed = [key for key in _keys(overrides) if key.startswith(TUNED) and not key.startswith(SEARCH)]
    path = chosen.out or _recipe_path(run, directory)
    tuned = recipe.tuned_in(path)
    points = propose_trials(optimizer, fixed=fixed, trials=trials)
    common = [override for override in overrides if not override.lstrip("+").startswith(SEARCH)]
    done = []
    try:
        for number, values in enumerate(points, start=1):
            print(f"\ntrial {number}/{trials}: {' '.join(_typed(values))}", flush=True)
            done.append(Trial(number, values, _try([*common, *_typed(values)], directory)))
        ranked = _ranked(done, common, seed=run.seed, seeds=seeds, directory=directory)
    except _InterruptedError as interrupted:
        return interrupted.code
    print(f"\n{make_table(ranked)}\n")
    missed = not list_rungs(ranked[0].result)
    if missed and not (chosen.misses and math.isfinite(measure_shortfall(ranked[0].result))):
        print("no trial reached a target, so no recipe is written; type a larger max_steps=, or other ranges")
        return 1
    keys = dict.fromkeys([*fixed, *points[0], "max_steps"])
    source = run.task.options().get("data", recipe.ANY)
    typed = [*chosen.overrides, *(["--misses"] if missed else [])]
    tuned |= {source: recipe.collect_evidence(ranked, keys=list(keys), command=typed, name=path.stem)}
    defaults = [override for override in common if not override.startswith(TUNED)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(recipe.render_recipe(configure.resolve_training(defaults, directory), tuned))
    print(f"written: {path}" + (" (no trial reached a target)" if missed else ""))
    return int(missed)


class _InterruptedError(Exception):
    """A trial was interrupted; `code` is the exit code of the signal."""

    def __init__(self, code: int):
        self.code = code


def _ranked(done: list[Trial], common: Sequence[str], *, seed: int, seeds: int, directory: Path | None) -> list[Trial]:
    """Run the best trial with further seeds until the best trial has run with all seeds; return the trials, best first.

    A trial is ranked by its worst seed, so further seeds cannot improve its rank. Therefore the first trial that leads
    with all seeds would also lead if every trial had run with all seeds.
    """
    common = [word for word in common if not word.startswith("seed=")]
    while True:
        done = sorted(done, key=lambda trial: trial.place)
        best = done[0]
        if 1 + len(best.again) == seeds or not list_rungs(best.result):
            return done
        further = f"seed={seed + 1 + len(best.again)}"
        print(f"\ntrial {best.number}, the best so far, with {further}", flush=True)
        result = _try([*common, *_typed(best.values), further], directory)
        done[0] = dataclasses.replace(best, again=(*best.again, result))


def _split(typed: list[str]) -> tuple[list[str], int, int]:
    """Split what was typed into the runs' overrides, the number of trials and the number of seeds.

    Raises:
        UserError: for overrides that tuning does not accept.
    """
    counts = {"trials": str(TRIALS), "seeds": str(SEEDS)}
    overrides = []
    for override in typed:
        key, _, value = override.partition("=")
        if key in counts:
            counts[key] = value
            continue
        if key in ("recipe", "experiment"):
            raise UserError(f"{override}: tuning starts from the defaults; type the {key}'s values instead")
        if key == "baseline":
            raise UserError(f"{override}: a baseline has no optimizer to tune; run suite +task=… {override}")
        adds = key.startswith(("+", "~")) and key.lstrip("+~").startswith(TUNED)
        if adds and not key.startswith(f"+{SEARCH}"):
            raise UserError(
                f"{override}: a recipe can only replace values, not add or remove them; first write a default for "
                f"{key.lstrip('+~')} into a YAML file"
            )
        overrides.append(override)
    for key, value in counts.items():
        if not value.isdecimal() or int(value) < 1:
            raise UserError(f"{key}={value}: must be a whole number of at least 1")
    quiet = [] if "track" in _keys(overrides) else ["track=none"]
    return [*overrides, "~recipe", *quiet], int(counts["trials"]), int(counts["seeds"])


def _typed(values: Mapping[str, float]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.partition("=")[0] for override in overrides]


def _recipe_path(run: Run, directory: Path | None) -> Path:
    """The file in which `configure.resolve` looks for a tuned recipe."""
    folder = directory or Path(next(iter(importlib.import_module("suite.conf").__path__)))
    return folder / "recipe" / f"{run.task.name}-{run.optimizer.name}-{run.scale}.yaml"


def _try(overrides: list[str], directory: Path | None) -> dict[str, Any] | None:
    """Run one trial, or reuse its finished run; return its result, or None if it failed."""
    run = configure.resolve(overrides, directory)
    configure.reject_unread(run, overrides)
    # computed first, because files may change during the run
    fingerprint = execution.make_header(run, overrides, execution.make_task(run))["fingerprint"]
    code = launch(run, overrides, apart=True)
    if code == 2:
        raise UserError("the trial could not run, for the reason above; no recipe is written")
    if code in execution.SIGNALS.values():
        raise _InterruptedError(code)
    trial = directories.Directory(run.model_copy(update={"force": False}), fingerprint)
    return json.loads((trial.path / "result.json").read_text()) if trial.state == "finished" else None
