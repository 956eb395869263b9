"""Runs the trials of `suite tune`, each in a separate process, and ranks them."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from suite import disk
from suite.contract import UserError
from suite.launch import execution
from suite.launch.local import launch
from suite.settings import configure
from suite.tuning.trials import Trial, list_rungs


class Interrupted(Exception):
    """A trial was interrupted; `code` is the exit code of the signal."""

    def __init__(self, code: int):
        self.code = code


def run_trials(points: Sequence[Mapping[str, float]], common: Sequence[str], directory: Path | None) -> Iterator[Trial]:
    """Run a trial for each point; finished trials are reused.

    Args:
        points: values by key.
        common: overrides of all trials.
        directory: the user's own configuration groups.

    Raises:
        UserError: if a trial cannot run.
        Interrupted: if a trial was interrupted.
    """
    for number, values in enumerate(points, start=1):
        print(f"\ntrial {number}/{len(points)}: {' '.join(_typed(values))}", flush=True)
        yield Trial(number, dict(values), _run_trial([*common, *_typed(values)], directory))


def rank_trials(
    done: Sequence[Trial], common: Sequence[str], *, seed: int, seeds: int, directory: Path | None
) -> list[Trial]:
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
        result = _run_trial([*common, *_typed(best.values), further], directory)
        done[0] = dataclasses.replace(best, again=(*best.again, result))


def _typed(values: Mapping[str, float]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _run_trial(overrides: list[str], directory: Path | None) -> dict[str, Any] | None:
    """Run one trial, or reuse its finished run; return its result, or None if it failed.

    Raises:
        UserError: if it could not run, or ended without a result, as a killed process does.
        Interrupted: if it was interrupted.
    """
    run = configure.resolve(overrides, directory)
    configure.reject_unread(run, overrides)
    paths: list[Path] = []
    code = launch(run, overrides, apart=True, report_directory=paths.append)
    if code == 2:
        raise UserError("the trial could not run, for the reason above; no recipe is written")
    if code in execution.SIGNALS.values():
        raise Interrupted(code)
    path = paths[-1] / "result.json"
    if not path.exists():
        raise UserError(
            f"{paths[-1]}: the trial ended without a result, for the reason above; no recipe is written. The same "
            "command continues; if these values cannot run, set a smaller range in optimizer.search"
        )
    result = disk.read_json(path)
    return None if result["outcome"]["kind"] == "failed" else result
