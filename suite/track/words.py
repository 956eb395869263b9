"""A result in words and table cells: what the console, reports and MLflow's descriptions say alike."""

import re
from collections.abc import Sequence

from suite.contract import Target
from suite.published import Row
from suite.record.record import is_baseline, is_crowded, measure_crowding
from suite.record.result import Crossing, Kernel, Result

OUTCOMES = {
    "reached": "reached the last target at step {step:,}",
    "exhausted": "made all max_steps={step} steps",
    "diverged": "diverged: the train loss at step {step:,} was {loss}",
    "unscored": "diverged: outputs for the validation split were not finite after step {step:,}",
    "failed": "failed: {error}",
}
FITTED = {"reached": "fitted, and reached the last target", "exhausted": "fitted"}  # baselines
# Heads of tables; `>` marks numbers, and `*3` a text that may take three shares of the remaining width.
MUCH = 0.2  # of the training time, spent waiting for batches, that a run prints
LADDER = ("target", "reached", ">step", ">samples", ">train s", ">all-in s", ">last miss")
PUBLISHED = ("row", "optimizer, paper*5", "model*4", "devices*4", ">batch", ">epochs", "value*4", ">time")


def describe_outcome(result: Result) -> str:
    """How the run ended."""
    sentences, outcome = OUTCOMES | FITTED if is_baseline(result.spec) else OUTCOMES, result.outcome
    kind = "unscored" if outcome.kind == "diverged" and outcome.loss is None else outcome.kind
    return sentences[kind].format_map(outcome.plain())


def list_missed(result: Result) -> list[str]:
    """List the targets that the run did not reach."""
    return [str(target_of(entry)) for entry in result.targets if not entry.reached]


def target_of(entry: Crossing) -> Target:
    """Return the target of an entry of the result's ladder."""
    return Target(entry.metric, entry.value, entry.higher_is_better)


def list_ladder(result: Result) -> list[list[str]]:
    """List the cells of each target (`LADDER`): when it was reached, and the last evaluation that missed it.

    For a missed target, `>` marks what the run had spent at its last evaluation.
    """
    rows = []
    seconds = {point.step: point.train_seconds for point in result.curve}
    for entry in result.targets:
        name, miss = str(target_of(entry)), entry.bracket[0]
        before = ("none" if entry.reached else "") if miss is None else f"{seconds[miss]:.2f} (step {miss:,})"
        reached = "yes" if entry.reached else f"no, {find_best(result, entry)}"
        rows.append([name, reached, *_spent(result, entry), before])
    return rows


def _spent(result: Result, entry: Crossing) -> list[str]:
    """Steps, samples, training seconds and all-in seconds: to the target, or to the last evaluation that missed it."""
    if not (entry.reached or result.curve):
        return ["", "", "", ""]
    point = entry if entry.reached else result.curve[-1]
    mark = "" if entry.reached or point.step is None else "> "  # a baseline is fitted once; more time would not help
    counts = ["" if count is None else f"{mark}{count:,}" for count in (point.step, point.samples)]
    return counts + [f"{mark}{seconds:.2f}" for seconds in (point.train_seconds, point.wall_seconds)]


def find_best(result: Result, entry: Crossing) -> str:
    """Find the best value that the run reached of a target's metric, in words."""
    values = [point.metrics[entry.metric] for point in result.curve]
    defined = [value for value in values if value is not None]
    better = max if entry.higher_is_better else min
    if not defined:
        return "undefined" if values else "never evaluated"
    return f"best {better(defined):.4g}"


def describe_speed(result: Result) -> str:
    """One line with training time, all-in time, compile time, step times and device."""
    train, wall = result.train_seconds, result.wall_seconds
    spent = ""
    if train is not None and wall is not None:
        spent = f"{format_duration(train)} of training, {format_duration(wall)} all in · "
    device = result.segments[-1].device if result.segments else "no device"
    if is_baseline(result.spec):
        return f"{spent}{device}"
    cache = f" (cache {result.compile_cache})" if result.compile_cache else ""
    quantiles = {"median step": result.step_seconds.p50, "p99": result.step_seconds.p99}
    known = {name: seconds for name, seconds in quantiles.items() if seconds is not None}
    times = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in known.items()) or "no step made"
    if result.predicted_step_seconds is not None:
        times += f", {1000 * result.predicted_step_seconds:.1f} ms predicted without the optimizer"
    counted = f" · {result.flops.trained:.3g} FLOPs" if result.flops else ""
    return f"{spent}compile {result.compile_seconds:.1f} s{cache} · {times}{counted} · {device}"


def describe_waits(result: Result) -> str | None:
    """A line about the time in which the loop waited for batches, if that is much of the training time."""
    waited, train = result.input_seconds or 0.0, result.train_seconds
    if not train or waited < MUCH * train:
        return None
    advice = "" if result.spec.config["prefetch"] else "; prefetch=2 makes them in other threads"
    return f"{100 * waited / train:.0f} % of the training time went by until batches were made{advice}"


def describe_crowding(result: Result) -> str | None:
    """A warning about the seconds of a run beside other programs."""
    if not is_crowded(result):
        return None
    share = f"{100 * measure_crowding(result):.0f} %"
    words = (
        f"the machine was busy: for {share} of its time, this run waited for a core. Compare its steps, not its seconds"
    )
    # each operator of torch waits for the last of its threads: tests/bench/test_spinning.py
    several = result.spec.backend == "torch" and result.environment.threads > 1
    return f"{words}; beside other programs, threads=1 may be faster" if several else words


def warn_unbilled(result: Result) -> str:
    """A warning about work that was not billed."""
    pauses = result.busy_pauses or 0
    return (
        f"training seconds are too low: the clock stopped {pauses} times while threads of this process "
        "still computed. An optimizer with such threads must declare them (`host` and `drain` in the contract)"
    )


def describe_wire(sent: int, kernel: Kernel) -> str:
    """On the test bed: the bytes sent, by the ledger and by the host's kernel."""
    comparison = f"{kernel.ranks} ranks" if kernel.ratio is None else f"{kernel.ratio:.4f} times as much"
    return f"wire: {sent:,} bytes by rank 0's ledger · {kernel.sent:,} by its host's kernel, {comparison}"


def published_cells(rows: Sequence[Row]) -> list[list[str]]:
    """Return the cells of each published row (`PUBLISHED`)."""
    cells = []
    for row in rows:
        paper = re.split("[,:(]", row.citation)[0].strip()
        devices = " × ".join(str(part) for part in (row.devices, row.hardware) if part is not None)
        batch = f"{row.batch_size:,}" if isinstance(row.batch_size, int) else row.batch_size or ""
        epochs = "" if row.epochs is None else f"{row.epochs:g}"
        time = "" if row.time_seconds is None else format_duration(row.time_seconds)
        method, value = ", ".join(filter(None, (row.optimizer, paper))), f"{row.value:g} {row.metric}"
        cells.append([row.id, method, row.model or "", devices, batch, epochs, value, time])
    return cells


def format_duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours, with three digits."""
    for limit, unit, name in ((100, 1, "s"), (6000, 60, "min"), (float("inf"), 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    return "forever"
