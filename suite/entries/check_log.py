"""Finds contradictions inside an event log, and between a log and the configuration of its run.

What a log contains follows from `suite/training/loop.py`: steps 1, 2, 3, … with the samples and the learning rate of
the configuration, clocks that never run backwards, evaluations when they are due, and one last event.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeGuard

from suite.record.record import format_json
from suite.settings import rates
from suite.settings.run import AnyRun, Run

Event = Mapping[str, Any]
CLOCKS = {  # the numbers of seconds in each kind of event; the first two are clocks of the whole run
    "step": ("train_seconds", "step_seconds"),
    "evaluated": ("train_seconds", "wall_seconds"),
    "decided": ("train_seconds", "seconds"),
}
RUNNING = ("train_seconds", "wall_seconds")
KINDS = {"started", "checkpointed", "saved", "finished", *CLOCKS}
ROUNDING = 1e-9  # relative: sums of seconds, and the powers of another C library
SLACK = 1e-6  # seconds that sums of clock readings may miss


def list_log_contradictions(run: AnyRun, events: Sequence[Event]) -> Iterator[str]:
    """Yield one line for each contradiction.

    Args:
        run: the run, as the result has it.
        events: of its log, in which the steps are in order (`record.check_order`).

    Raises:
        LookupError, TypeError: if an event lacks a field, or has one of another type.
    """
    yield from _ends(events)
    yield from _clocks(events)
    yield from _durations(events)
    if isinstance(run, Run):
        yield from _places(run, events)
        yield from _rates(run, [event for event in events if event["event"] == "step"])


def _ends(events: Sequence[Event]) -> Iterator[str]:
    """First and last event, and their kinds."""
    kinds = [event["event"] for event in events]
    for kind in dict.fromkeys(kinds):
        if kind not in KINDS:
            yield f"the log has an event {kind!r}, which no run writes"
    if (count := kinds.count("finished")) != 1 or kinds[-1] != "finished":
        yield f"the log must end with its only 'finished', but has {count} and ends with {kinds[-1]!r}"
    if kinds[0] != "started":
        yield f"the log begins with {kinds[0]!r} instead of 'started'"


def _clocks(events: Sequence[Event]) -> Iterator[str]:
    """Seconds that are missing, negative or less than before."""
    latest: dict[str, float] = dict.fromkeys(RUNNING, 0.0)
    for event in events:
        for name, value in _readings(event).items():
            least = latest.get(name, 0.0)
            if not _is_number(value) or value < least:
                yield f"{_name(event)}: {name} is {format_json(value)}, but must be at least {least:g}"
            elif name in latest:
                latest[name] = value


def _readings(event: Event) -> dict[str, Any]:
    """Numbers of seconds in an event, by name."""
    if event["event"] == "finished":
        return {name: event["facts"][name] for name in RUNNING if name in event["facts"]}
    return {name: event.get(name) for name in CLOCKS.get(event["event"], ())}


def _durations(events: Sequence[Event]) -> Iterator[str]:
    """Steps that took longer than the clock ran; those that were logged together share their time."""
    clock = 0.0
    for (kind, seconds), group in groupby(events, lambda event: (event["event"], event.get("train_seconds"))):
        members = list(group)
        if not _is_number(seconds):
            continue
        taken = [event["step_seconds"] for event in members] if kind == "step" else []
        if len(set(taken)) > 1:
            yield f"{_name(members[-1])}: step_seconds differ among steps that were logged together"
        if all(map(_is_number, taken)) and sum(taken) > (seconds - clock) * (1 + ROUNDING) + SLACK:
            yield f"{_name(members[-1])}: took {sum(taken):g} seconds, but the clock ran {seconds - clock:g}"
        clock = seconds


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _name(event: Event) -> str:
    return event["event"] if event.get("step") is None else f"{event['event']} {event['step']}"


def _places(run: Run, events: Sequence[Event]) -> Iterator[str]:
    """Events that are not about the step before them, and evaluations that are not due or missing."""
    last, evaluated, due, outcome = 0, set[int](), 0, ""
    for number, event in enumerate(events):
        kind, step = event["event"], event["step"]
        expected = last
        if kind == "step":
            expected = last = step
        elif kind == "evaluated":
            evaluated.add(step)
            if step % run.eval_every and step != run.max_steps:
                yield f"{_name(event)}: is no multiple of eval_every={run.eval_every}"
        elif kind == "started" and event["resumed"] != (number > 0):
            yield f"{_name(event)}: resumed is {event['resumed']} in event {number + 1} of the log"
        elif kind == "decided":  # steps before it may be logged later
            expected, due = due, step + (event["steps"] or run.max_steps)
        elif kind == "finished":
            outcome = event["outcome"]["kind"]
            evaluating = "loss" not in event["outcome"]  # it diverged in an evaluation, or else in a step
            ends = {"exhausted": run.max_steps, "diverged": last + (not evaluating), "failed": 0}
            expected = ends.get(outcome, last)
            if event["outcome"].get("step", expected) != step:
                yield f"{_name(event)}: its outcome is of step {event['outcome']['step']}"
        if step != expected:
            yield f"{_name(event)}: belongs to step {expected}"
        if kind in ("step", "evaluated") and event["samples"] != step * run.task.batch_size:
            yield (
                f"{_name(event)}: has {event['samples']} samples, but {step} steps of {run.task.batch_size} are "
                f"{step * run.task.batch_size}"
            )
        if kind == "step" and not _is_number(event["loss"]):
            yield f"{_name(event)}: loss is {format_json(event['loss'])}, which is no number"
    missing = {step for step in range(run.eval_every, last + 1, run.eval_every)} - evaluated
    if missing and outcome != "failed":
        yield f"the log lacks the evaluation of step {min(missing)}, which is due with eval_every={run.eval_every}"


def _rates(run: Run, steps: Sequence[Event]) -> Iterator[str]:
    """Hyper-parameters that the schedule does not give; a block-sparse task multiplies the rate by a constant."""
    scheduled, factor = rates.Scheduled(run.max_steps, run.schedule, run.optimizer), None
    for event in steps:
        if not 1 <= event["step"] <= run.max_steps:
            yield f"{_name(event)}: the run has {run.max_steps} steps"
            return
        expected, found = scheduled[event["step"] - 1], event["hyper"]
        if factor is None and expected["lr"]:
            factor = found["lr"] / expected["lr"]
        expected["lr"] *= factor or 1.0
        if found.keys() != expected.keys() or any(
            not math.isclose(found[name], value, rel_tol=ROUNDING) for name, value in expected.items()
        ):
            yield f"{_name(event)}: hyper is {format_json(found)}, but the schedule gives {format_json(expected)}"
