"""Checks one result: finds contradictions with its log, its clock, its metrics and its source."""

import math
from collections.abc import Iterator
from itertools import pairwise

from suite.contract import UserError
from suite.entries.accept import recorded_digest
from suite.entries.finding import Entry, Finding, Severity
from suite.entries.recompute import list_faults
from suite.entries.strict import escape_text
from suite.record.record import is_baseline
from suite.record.result import Result

# Metrics whose range is known, by name or by the name's beginning: shares in per cent, and probabilities. Other metrics
# may have any value; a loss may be negative in general, so that it is not listed.
RANGES = {"top1": (0.0, 100.0), "bleu": (0.0, 100.0), "mlm_accuracy": (0.0, 100.0), "auc": (0.0, 1.0)}
RANGES |= {"early": (0.0, 1.0), "missed": (0.0, 1.0), "false": (0.0, 1.0), "squared_error": (0.0, math.inf)}
COUNTED = "top1"  # per cent of all validation samples, so that the number of right ones is whole
WHOLE = 1e-6  # how far a number of right samples may be from a whole one, because of rounding
# Seconds by which sums of clock readings may miss, because each is read at another moment; and as a share of the sum.
SLACK_SECONDS, SLACK_SHARE = 0.05, 0.001
MOST_LISTED = 3  # differences from the log that a sentence lists


def check_result(entry: Entry) -> Iterator[Finding]:
    """Everything that is found in one result."""

    def found(severity: Severity, check: str, sentence: str, remedy: str) -> Finding:
        return Finding(severity, check, (entry.file,), sentence, remedy)

    for sentence in _numbers(entry):
        yield found("wrong", "numbers", sentence, "run it again, or submit the unchanged result of the run")
    for sentence in _clock(entry.result):
        yield found("wrong", "clock", sentence, "run it again; if the suite wrote this, report the bug")
    for sentence in _ranges(entry.result):
        yield found("wrong", "metric", sentence, "check the task's metric, and run it again")
    for sentence in _fractions(entry.result):
        yield found("doubtful", "metric", sentence, "say how the metric was computed, or run it again")
    if pauses := entry.result.busy_pauses:
        sentence = f"threads still computed at {pauses} pauses of the clock, so that the training seconds are too low"
        yield found("doubtful", "unbilled", sentence, "do not use its seconds; its steps are valid")
    source = entry.result.environment
    if source.dirty:
        sentence = "was made with uncommitted changes, so that nobody else can have the same code"
        yield found("doubtful", "source", sentence, "commit the changes and run it again")
    elif source.commit is None:
        yield found("note", "source", "names no commit", "run it in a checkout")
    for resumed in entry.result.resumed_anyway or ():
        changed = escape_text(", ".join(resumed.changed))
        sentence = f"was resumed at step {resumed.step} although this had changed: {changed}"
        yield found("doubtful", "source", sentence, "run it again without resume=anyway")


def _numbers(entry: Entry) -> Iterator[str]:
    """Differences from what the configuration, the curve and the log give, as one sentence; and a changed log."""
    known = recorded_digest(entry.path)
    if known and entry.log_digest and known != entry.log_digest:
        yield f"its log has the sha256 {entry.log_digest[:12]}…, but {known[:12]}… was submitted"
    try:
        faults = list(list_faults(entry.result, entry.events))
    except (UserError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        faults = [f"cannot be recomputed ({type(error).__name__}: {error})"]
    if faults:
        source = "its log" if entry.events is not None else "its configuration and curve"
        more = f" and {len(faults) - MOST_LISTED} more" if len(faults) > MOST_LISTED else ""
        yield f"disagrees with {source}: {'; '.join(escape_text(fault) for fault in faults[:MOST_LISTED])}{more}"


def _exceeds(part: float, whole: float) -> bool:
    return part > whole * (1 + SLACK_SHARE) + SLACK_SECONDS


def _clock(result: Result) -> Iterator[str]:
    """Contradictions between the clock readings of a result."""
    train, wall = result.train_seconds, result.wall_seconds
    excluded = sum(result.excluded_seconds.values())
    if train is not None and wall is not None:
        if _exceeds(train, wall):
            yield f"has {train:.2f} training seconds in {wall:.2f} wall seconds"
        elif _exceeds(train + excluded, wall):
            yield f"has {train:.2f} training and {excluded:.2f} excluded seconds in {wall:.2f} wall seconds"
    for point in result.curve:
        if _exceeds(point.train_seconds, point.wall_seconds):
            training, all_in = point.train_seconds, point.wall_seconds
            yield f"has {training:.2f} training seconds in {all_in:.2f} wall seconds at step {point.step}"
            break
    last = result.curve[-1] if result.curve else None
    readings = (("train_seconds", last.train_seconds, train), ("wall_seconds", last.wall_seconds, wall)) if last else ()
    for name, seconds, total in readings:
        if total is not None and _exceeds(seconds, total):
            yield f"has {name} {seconds:.2f} at its last evaluation, but {total:.2f} at its end"
    for before, after in pairwise(result.curve):
        if after.wall_seconds < before.wall_seconds:
            yield f"has fewer wall seconds at step {after.step} than at step {before.step}"
            break
    median, steps = result.step_seconds.p50, result.steps
    # half of the steps take at least the median
    if median is not None and train is not None and _exceeds(median * ((steps + 1) // 2), train):
        least = median * ((steps + 1) // 2)
        yield f"has {train:.2f} training seconds, but half of its {steps} steps took at least {least:.2f}"
    at_step = {point.step: point for point in result.curve}
    for target in result.targets if not is_baseline(result.spec) else ():
        point = at_step.get(target.step)
        seconds = target.train_seconds
        if target.reached and (point is None or seconds is None or seconds < point.train_seconds):
            yield f"reached {escape_text(target.label)} before the evaluation that it belongs to"


def find_range(metric: str) -> tuple[float, float] | None:
    """Return the range of a metric's values, if it is known."""
    return next((limits for name, limits in RANGES.items() if metric == name or metric.startswith(f"{name}_")), None)


def _ranges(result: Result) -> Iterator[str]:
    """Yield the first value of each metric that is outside the metric's range."""
    seen: set[str] = set()
    for point in result.curve:
        for name, value in point.metrics.items():
            known = find_range(name)
            if known and value is not None and not known[0] <= value <= known[1] and name not in seen:
                seen.add(name)
                yield f"has {escape_text(name)} {value:g} at step {point.step}, outside {known[0]:g} to {known[1]:g}"


def _fractions(result: Result) -> Iterator[str]:
    """An accuracy that no whole number of right samples gives."""
    count = result.data.samples.get("valid", 0)
    for point in result.curve if count else ():
        value = point.metrics.get(COUNTED)
        right = 0.0 if value is None else value * count / 100
        if math.isinf(right) or abs(right - round(right)) > WHOLE * count:
            yield f"has {COUNTED} {value} at step {point.step}, which is no whole number of {count} images"
            return
