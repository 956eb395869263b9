"""Makes one row of the leaderboard from the results of its seeds."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from suite.entries.command import list_needs, show_command
from suite.entries.condition import read_rung
from suite.record import record
from suite.record.environment import describe_cpu
from suite.record.record import is_baseline, is_crowded
from suite.record.result import Crossing, Result
from suite.settings.run import Run
from suite.statistics.summary import Observation, Summary, summarize_seeds

COLUMNS = ("optimizer", "comm", "backend", "world")
Seeds = dict[int, Observation]
Unit = Literal["step", "train_seconds"]  # in which what a run spent is counted
Execution = tuple[bool, float, float]  # missed, spent, earliest: misses sort last


@dataclass(frozen=True)
class Timing:
    """Training seconds to the target on one type of machine."""

    machine: str
    seconds: Summary
    seeds: Seeds


@dataclass(frozen=True)
class Entry:
    """One row of the leaderboard: what was run, when it reached the target, and its results."""

    rank: int | None  # None: the median seed does not reach the target
    optimizer: str  # or a baseline's name
    comm: str | None  # None for a baseline, like the next five and `steps`
    backend: str | None
    world: int | None
    precision: str | None
    eval_every: int | None  # steps between evaluations
    budget: int | None  # steps that every run of the row may spend
    settings: dict[str, Any]  # the settings that differ within the group
    steps: Summary | None  # None: no run has finished
    tries: Summary | None  # the steps, or a baseline's seconds; gives the numbers of seeds and hits
    seeds: Seeds  # the steps of each seed, from which `steps` is computed; empty for a baseline
    score: float | None  # a baseline's median of the target's metric
    timings: tuple[Timing, ...]
    unbilled: int  # results without timing, because threads computed while the clock was stopped
    misses: dict[str, int]  # number of executions that missed the target, by outcome
    bytes_per_step: float | None  # sent by one device; the median of the executions
    memory_bytes: float | None  # peak of one process; the median of the executions
    channels_last: bool  # whether a run stored images with channels last, on a GPU
    tuning: Mapping[str, Any]
    dirty: bool  # whether a result was made with uncommitted changes
    command: str
    needs: tuple[str, ...]  # what the command needs beside the suite: code from outside, with its origin
    results: tuple[dict[str, Any], ...]  # seed, file, commit, dirty, unbilled


def make_entry(files: dict[str, Result], target: dict[str, Any] | None, settings: dict[str, Any]) -> Entry:
    """Make a row, without its rank.

    Args:
        files: the row's results by file name.
        target: of the group; None if no run got as far as to know its targets.
        settings: the settings in which the row differs from others of its group.
    """
    ordered = sorted(files.items(), key=lambda item: (item[1].spec.seed, item[0]))
    results = [result for _, result in ordered]
    evidence = []
    for file, result in ordered:
        commit, dirty = result.environment.commit, result.environment.dirty is not False
        marks = {"dirty": dirty, "unbilled": _unbilled(result)}
        evidence.append({"seed": result.spec.seed, "file": file, "commit": commit, **marks})
    missed = Counter(result.outcome.kind for result in results if not _crossing(result, target))
    spec = results[0].spec
    baseline = is_baseline(spec)
    seeds = {} if baseline else _seeds(results, target, "step")
    steps = _summary(seeds)
    columns: dict[str, Any] = {key: getattr(spec, key) for key in COLUMNS} | {"optimizer": record.method_of(spec)}
    runs = [run for run in map(record.load_run, results) if isinstance(run, Run)]
    return Entry(
        rank=None,
        **columns,
        precision=results[0].precision,
        eval_every=runs[0].eval_every if runs else None,
        budget=min((run.max_steps for run in runs), default=None),
        settings=settings,
        steps=steps,
        tries=_summary(_seeds(results, target, "train_seconds")) if baseline else steps,
        seeds=seeds,
        score=_score(results, target) if baseline else None,
        timings=_timings(results, target),
        unbilled=sum(_unbilled(result) for result in results),
        misses=dict(sorted(missed.items())),
        bytes_per_step=_median(map(_bytes_per_step, results)),
        memory_bytes=_median(result.peak_memory_bytes for result in results),
        channels_last=any(bool(result.channels_last) for result in results),
        tuning=results[0].tuning.plain(),
        dirty=any(item["dirty"] for item in evidence),
        command=show_command(results[0]),
        needs=tuple(list_needs(results[0])),
        results=tuple(evidence),
    )


def rank_median(summary: Summary | None) -> float:
    """Return the median for sorting; infinite if the median seed misses."""
    return math.inf if summary is None or summary.median is None else summary.median


def _timings(results: list[Result], target: dict[str, Any] | None) -> tuple[Timing, ...]:
    machines: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if not _unbilled(result) and not is_crowded(result):
            machines[_machine(result)].append(result)
    timings = []
    for machine, timed in sorted(machines.items()):
        seeds = _seeds(timed, target, "train_seconds")
        if summary := _summary(seeds):
            timings.append(Timing(machine, summary, seeds))
    return tuple(timings)


def _unbilled(result: Result) -> bool:
    """Return whether the training seconds are too low, because threads computed while the clock was stopped."""
    return bool(result.busy_pauses)


def _bytes_per_step(result: Result) -> float | None:
    return result.bytes.sent / result.steps if result.steps else None


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _score(results: list[Result], target: dict[str, Any] | None) -> float | None:
    """Return the median of the target's metric at the last evaluations."""
    values = [result.curve[-1].metrics.get(target["metric"]) for result in results if target and result.curve]
    defined = [value for value in values if value is not None]
    return median(defined) if defined else None


def _crossing(result: Result, target: dict[str, Any] | None) -> Crossing | None:
    """Return the entry of the ladder in which the run reached the target; None if it missed it."""
    return next((rung for rung in result.targets if rung.reached and read_rung(rung) == target), None)


def _seeds(results: list[Result], target: dict[str, Any] | None, unit: Unit) -> Seeds:
    """Return what each seed spent to the target: the median of its executions. Interrupted runs do not count."""
    executions: dict[int, list[Execution]] = defaultdict(list)
    for result in results:
        seed, kind = result.spec.seed, result.outcome.kind
        if crossing := _crossing(result, target):
            executions[seed].append((False, getattr(crossing, unit), _earliest(result, crossing, unit)))
        elif kind in ("diverged", "failed"):
            executions[seed].append((True, math.inf, math.inf))
        elif kind != "interrupted":
            spent = max((getattr(point, unit) for point in result.curve), default=0)
            executions[seed].append((True, spent, spent))
    return {seed: _middle(sorted(some)) for seed, some in executions.items()}


def _middle(executions: Sequence[Execution]) -> Observation:
    """Return the median of executions, misses last; between a hit and a miss, it is a miss of more than their mean."""
    middle = executions[(len(executions) - 1) // 2 : len(executions) // 2 + 1]
    missed = middle[-1][0]
    spent, earliest = median(spent for _, spent, _ in middle), median(earliest for *_, earliest in middle)
    return Observation(spent, not missed, None if missed else earliest)


def _earliest(result: Result, crossing: Crossing, unit: Unit) -> float:
    """Return the first step (or training second) at which the run may have met the target.

    It is one step after the last evaluation that did not see it.
    """
    step = crossing.step or 0  # a baseline makes no steps
    before = [point for point in result.curve if (point.step or 0) < step]
    last = max(before, key=lambda point: point.step or 0, default=None)
    steps, met = step - ((last.step or 0) if last else 0), getattr(crossing, unit)
    seen = getattr(last, unit) if last else 0.0
    return seen + (met - seen) / steps if steps else met


def _summary(seeds: Seeds) -> Summary | None:
    return summarize_seeds(seeds.values()) if seeds else None


def _machine(result: Result) -> str:
    """Return the machine in words; a run that was resumed elsewhere has several devices."""
    facts = result.environment
    devices = dict.fromkeys(segment.device for segment in result.segments)
    return f"{' then '.join(devices)} · {describe_cpu(facts)} · {facts.threads} threads"
