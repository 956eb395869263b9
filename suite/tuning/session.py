"""Runs the trials of `suite tune`, each in a separate process, and chooses the best one within a budget of steps.

1. Every point runs for a quarter of the steps, with the schedule of a whole run.
2. The best quarter of them run whole: those that reached most targets, then those that came nearest to the next one.
3. The best two of these run with further seeds. The better one, over all seeds, leads.
4. While the leader has the lowest or highest value tried of a hyper-parameter, and that is no bound of it, a trial
   beyond it runs. If it is better with the first seed, it runs with the others, too, and may lead.

The search has converged if step 4 ends because no such value is left, and not because the budget is spent.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite import signals
from suite.contract import UserError
from suite.launch.local import launch
from suite.record import record
from suite.record.result import Result
from suite.settings import configure
from suite.settings.overrides import add_directory
from suite.settings.rates import count_steps, list_unread
from suite.settings.run import Run
from suite.tuning.points import Range, Values
from suite.tuning.trials import Trial, list_rungs, score_results, score_short_run

SHORT = 4  # a short run has max_steps divided by this; and this share of the points run whole
FINALISTS = 2
STRETCHED = ("constant", "linear", "cosine", "polynomial", "inverse_sqrt")  # shapes that `schedule.end` places


class Interrupted(Exception):
    """A trial was interrupted; `code` is the exit code of the signal."""

    def __init__(self, code: int):
        self.code = code


@dataclass
class Session:
    """One search.

    Attributes:
        run: the run that is tuned.
        common: overrides of all trials.
        ranges: by dotted key.
        seeds: number of seeds of a finalist, from `run.seed`.
        runs: the budget, as a number of whole runs. Runs that stop at the last target spend less than one.
        directory: the user's own configuration groups.
        spent: steps so far.
        trials: so far.
    """

    run: Run
    common: Sequence[str]
    ranges: Mapping[str, Range]
    seeds: int
    runs: float
    directory: Path | None = None
    spent: int = 0
    trials: dict[int, Trial] = field(default_factory=dict)

    @property
    def short(self) -> int:
        """Steps of a short run: whole evaluations; those of a whole run where its schedule cannot be stretched."""
        steps, every = self.run.max_steps, self.run.eval_every
        if self.run.schedule.shape not in STRETCHED:
            return steps
        return min(steps, math.ceil(steps / SHORT / every) * every)

    @property
    def tried(self) -> list[Trial]:
        """Trials, best first: by all seeds, then by the first one, then by the short run."""
        return sorted(self.trials.values(), key=self._place)

    @property
    def runs_spent(self) -> float:
        """Part of the budget that is spent."""
        return self.spent / self.run.max_steps

    @property
    def converged(self) -> bool:
        """Return whether the leader is final.

        It has reached a target and run with all seeds, and no trial and no value beyond its own could replace it.
        """
        leader = self.tried[0]
        if not any(map(list_rungs, leader.results)):
            return False
        started = (trial for trial in self.trials.values() if 0 < len(trial.results) < self.seeds)
        better = any(self._score(trial, 1) < self._score(leader, 1) for trial in started)
        return len(leader.results) == self.seeds and not self.open_ends and not better

    @property
    def open_ends(self) -> list[tuple[str, float]]:
        """Hyper-parameters whose lowest or highest tried value the leader has, and the next value for each."""
        leader = self.tried[0]
        found: list[tuple[str, float]] = []
        for key, limits in self.ranges.items():
            value = leader.values[key]
            # on a logarithmic scale, 0 switches something off, and is no lowest value
            others = [trial.values[key] for trial in self.trials.values() if trial.values[key] or limits.scale != "log"]
            for outward, extreme in ((1, max(others, default=value)), (-1, min(others, default=value))):
                further = limits.step_out(value, outward) if value == extreme else None
                found += [(key, further)] if further is not None else []
        return found

    def search(self, points: Sequence[Values]) -> None:
        """Try the points, and what follows from them.

        Raises:
            UserError: if a trial cannot run.
            Interrupted: if a trial was interrupted.
        """
        for values in points:
            if not self._affords(self.short + self._whole):
                print(
                    f"\nruns={self.runs:g} is too few for more than {len(self.trials)} of {len(points)} trials",
                    flush=True,
                )
                break
            self._screen(values)
        best = [trial for trial in self.tried[: max(FINALISTS, len(points) // SHORT)] if not trial.results]
        for trial in best:
            if self._affords(self._whole):
                self._add_run(trial)
        finalists = [trial for trial in self.tried if trial.results][:FINALISTS]
        for trial in finalists:
            self._add_seeds(trial)
        while (ends := self.open_ends) and self._affords(self._whole):
            key, further = ends[0]
            leader = self.tried[0]
            print(f"\ntrial {leader.number} leads, with the outermost {key}; next {key}={further:g}", flush=True)
            trial = Trial(len(self.trials) + 1, leader.values | {key: further})
            trial = self._add_run(trial)
            if self._score(trial, 1) < self._score(leader, 1):
                self._add_seeds(trial)

    @property
    def _whole(self) -> int:
        return self.run.max_steps

    def _place(self, trial: Trial) -> tuple[Any, ...]:
        runs = len(trial.results)
        if not runs:
            return (2, score_short_run(trial.screened), trial.number)
        return (0 if runs == self.seeds else 1, self._score(trial, runs), trial.number)

    def _score(self, trial: Trial, runs: int) -> tuple[float, ...]:
        return score_results(trial.results[:runs], self._whole)

    def _affords(self, steps: int) -> bool:
        return self.spent + steps <= self.runs * self._whole

    def _screen(self, values: Values) -> None:
        number, steps, schedule = len(self.trials) + 1, self.short, self.run.schedule
        print(f"\ntrial {number}, {steps} steps: {' '.join(_typed(values))}", flush=True)
        words = [f"max_steps={steps}"]
        if steps < self._whole and schedule.end is None and "end" not in list_unread(schedule.shape):
            words.append(f"schedule.end={self._whole}")
        if steps < self._whole and 0 < schedule.warmup < 1:
            words.append(f"schedule.warmup={count_steps(schedule.warmup, self._whole)}")
        result = self._run([*_typed(values), *words])
        short = steps < self._whole
        self.trials[number] = Trial(number, values, result) if short else Trial(number, values, None, (result,))

    def _add_run(self, trial: Trial) -> Trial:
        """Run a trial whole with its next seed."""
        seed = self.run.seed + len(trial.results)
        print(f"\ntrial {trial.number}, seed {seed}: {' '.join(_typed(trial.values))}", flush=True)
        result = self._run([*_typed(trial.values), f"seed={seed}"])
        self.trials[trial.number] = dataclasses.replace(trial, results=(*trial.results, result))
        return self.trials[trial.number]

    def _add_seeds(self, trial: Trial) -> None:
        """Run a trial with the remaining seeds, unless the budget lacks the steps."""
        if self._affords((self.seeds - len(trial.results)) * self._whole):
            while len(trial.results) < self.seeds:
                trial = self._add_run(trial)

    def _run(self, words: Sequence[str]) -> Result | None:
        keys = {word.partition("=")[0] for word in words}
        common = [word for word in self.common if word.partition("=")[0].lstrip("+") not in keys]
        result, steps = run_trial([*common, *words], self.directory)
        self.spent += steps
        return result


def _typed(values: Mapping[str, float]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def run_trial(overrides: list[str], directory: Path | None) -> tuple[Result | None, int]:
    """Run one trial, or reuse its finished run.

    Args:
        overrides: of the run.
        directory: the user's own configuration groups.

    Returns:
        Its result, or None if it failed; and its steps.

    Raises:
        UserError: if it could not run, or ended without a result, as a killed process does.
        Interrupted: if it was interrupted.
    """
    run = configure.resolve(overrides, directory)
    configure.reject_unread(run, overrides, directory)
    paths: list[Path] = []
    code = launch(run, add_directory(overrides, directory), apart=True, report_directory=paths.append)
    if code == 2:
        raise UserError("the trial could not run, for the reason above; no recipe is written")
    if code in signals.CODES.values():
        raise Interrupted(code)
    path = paths[-1] / "result.json"
    if not path.exists():
        raise UserError(
            f"{paths[-1]}: the trial ended without a result, for the reason above; no recipe is written. The same "
            "command continues; if these values cannot run, set a smaller range in optimizer.search"
        )
    result = record.read_result(path)
    return None if result.outcome.kind == "failed" else result, result.steps
