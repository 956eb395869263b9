"""Repeats the first steps of a run. `python -m suite.launch.replay CONFIG` launches a configuration like any run.

`first_steps` interrupts the run, like Ctrl-C, after enough steps. The configuration keeps all settings that can change
a number, `max_steps` included, because the learning rate depends on it.
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from suite import load, orphan
from suite.contract import Target, UserError
from suite.entries.recompute import list_differences
from suite.launch import checks, job
from suite.launch.local import launch
from suite.launch.premises import describe_task, list_missing
from suite.record import environment, record
from suite.record.result import Result
from suite.record.versions import find_version
from suite.settings.run import AnyRun, BaselineRun, TrackSettings, read_run

# Other machines, frameworks and numbers of threads round differently. In a network of ReLUs the difference grows
# about tenfold a step (laptop ResNet-50, between 1 and 2 threads, and between torch and jax, in both precisions).
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "tf32": 2.0**-10, "bfloat16": 2.0**-7}
FIRST, GROWTH, MOST = 100, 10, 0.2  # epsilons at step 1, growth per step, largest relative tolerance
GRACE = 120.0  # seconds that an interrupted run gets for its last step and checkpoint
QUIET = {"track": TrackSettings(name="none"), "force": False, "repeat": 1, "require": None}
LAST_LINES = 3  # lines of a failed run's output that the error quotes
SAME = (*environment.COVERED, *environment.OPTIONAL, "threads")  # what the fingerprint covers, apart from the device

Events = list[dict[str, Any]]


def list_modules(node: load.Plain, key: str = "") -> list[str]:
    """List the modules that a configuration names: `module`, and an external optimizer's `torch` and `jax`."""
    if load.is_node(node):
        return sorted({name for key, value in node.items() for name in list_modules(value, key)})
    return [node] if isinstance(node, str) and key in ("module", "torch", "jax") else []


def repeat_run(result: Result, events: Events | None, run: AnyRun, *, steps: int) -> tuple[list[str], str]:
    """Repeat the first steps of a result and compare losses and evaluations.

    Args:
        result: contents of a result.json.
        events: its event log; without one, only evaluations are compared, up to the first one.
        run: the result's run, with the data directory of this machine.
        steps: number of steps to repeat.

    Returns:
        One line for each difference, and one line that describes the comparison.

    Raises:
        UserError: if the steps cannot be repeated here.
    """
    faults = list(_premises(result, run))
    if faults:  # losses of another task cannot be compared
        return faults, ""
    recorded = events or [{"event": "evaluated", **asdict(point)} for point in result.curve]
    if isinstance(run, BaselineRun):
        return _fitted_again(result, run)
    first = next((event["step"] for event in recorded if event["event"] in ("step", "evaluated")), None)
    if first is None:
        return faults, "skipped: the result has no step or evaluation to compare with"
    steps = max(steps, first)
    exact, other = _same(result, run)
    if not (exact or events):
        return (
            faults,
            f"skipped: without an event log only evaluations could be compared, bit for bit; {other}",
        )
    repeated = first_steps(run, steps)
    losses = _paired(recorded, repeated, "step", "loss", steps)
    reached = {event["step"] for event in repeated if event["event"] == "step"}
    scores = _paired(recorded, repeated, "evaluated", "metrics", steps) if exact else {}
    for step, (expected, actual) in losses.items():
        allowed = 0.0 if exact else allow_difference(step, run.precision)
        if step not in reached:
            faults.append(f"step {step}: the result has it, but the run here ended before it")
        elif not losses_agree(expected, actual, allowed):
            limit = f"the tolerance is {allowed:.0e} of it" if allowed else "they must be equal bit for bit"
            faults.append(f"loss of step {step}: the result has {expected!r}, this machine gives {actual!r}; {limit}")
    for step, (expected, actual) in scores.items():
        faults += list_differences(expected, actual, f"metrics of step {step}")
    compared = f"to step {steps}: losses ({len(losses)}) and evaluations ({len(scores)}) agree"
    if exact:
        return faults, f"{compared} bit for bit: same source, packages, processor, device and threads"
    limits = (
        f"{allow_difference(1, run.precision):.0e} at step 1, {allow_difference(steps, run.precision):.0e} at the last"
    )
    return faults, f"{compared} within {limits}; {other}"


def _same(result: Result, run: AnyRun) -> tuple[bool, str]:
    """Return whether the numbers must be equal bit for bit; and otherwise what differs from the recorded run."""
    if resumed := result.resumed_anyway:
        changed = " and ".join(dict.fromkeys(part for segment in resumed for part in segment.changed))
        return False, f"changed during the run (resume=anyway): {changed}"
    recorded_run = record.load_run(result)
    threads = job.count_threads(recorded_run, job.count_processes(recorded_run))
    header = job.make_header(recorded_run, job.make_task(run), threads, ["verify"])
    facts, recorded = header.environment.plain(), result.environment.plain()  # older results lack some of these facts
    changed = [name for name in SAME if recorded.get(name, facts.get(name)) != facts.get(name)] or ["device"]
    return header.fingerprint == result.fingerprint, f"different here: {', '.join(changed)}"


def _fitted_again(result: Result, run: AnyRun) -> tuple[list[str], str]:
    """`rerun` for a baseline: fit it again and compare its metrics, if they must be equal."""
    exact, other = _same(result, run)
    if not (exact and result.curve):
        reason = other if result.curve else "the result has no metrics"
        return [], f"skipped: {reason}"
    metrics = [event["metrics"] for event in first_steps(run, 0) if event["event"] == "evaluated"]
    faults = list_differences(result.curve[0].metrics, metrics[0], "metrics")
    return list(faults), "fitted again: metrics agree bit for bit; same source, packages, processor and threads"


def losses_agree(expected: float | None, actual: float | None, allowed: float) -> bool:
    """Return whether two losses differ by at most the share `allowed`; None (old logs: NaN) was not finite."""
    expected, actual = record.drop_infinities(expected), record.drop_infinities(actual)
    if expected is None or actual is None:
        return expected is actual
    return abs(expected - actual) <= allowed * max(abs(expected), abs(actual))


def allow_difference(step: int, precision: str) -> float:
    """Return the largest allowed relative difference between two losses at a step (from 1), for different rounding."""
    return min(MOST, FIRST * EPSILON[precision] * float(GROWTH) ** min(step - 1, 20))


def _premises(result: Result, run: AnyRun) -> Iterator[str]:
    """One line for each difference between this machine's task and the recorded one.

    Raises:
        UserError: if the run cannot work here.
    """
    if reasons := list_missing(run):
        raise UserError(
            f"cannot repeat the steps here; missing {'; '.join(reasons)}. To check only the numbers, use --steps 0"
        )
    version = run.task.member.VERSION
    if version != find_version(run, result.task_version):
        raise UserError(
            f"cannot repeat the steps: the result is of version {result.task_version} of the task, this suite has "
            f"version {version}; to check only the numbers, use --steps 0"
        )
    task, absent = describe_task(run)
    if absent:
        raise UserError(
            f"cannot repeat the steps here; missing {absent[0]}. Add --data-dir DIR; to check only the numbers, add "
            "--steps 0"
        )
    checks.check_run(run, task)
    targets = [Target(entry.metric, entry.value, entry.higher_is_better) for entry in result.targets]
    count = sum(math.prod(spec.shape) for spec in task.shapes().values() if spec.kind == "parameter")
    yield from list_differences(list(map(str, targets)), list(map(str, task.targets)), "targets")
    yield from list_differences(result.parameters, None if isinstance(run, BaselineRun) else count, "parameters")
    if record.identify_data(result.data) != record.identify_data(task.data):
        yield from list_differences(result.data.identity, task.data.identity, "data.identity")


def _paired(recorded: Events, repeated: Events, kind: str, name: str, steps: int) -> dict[int, tuple[Any, Any]]:
    """(recorded, repeated) values of one kind of event, by step, up to the step `steps`."""
    expected, actual = (
        {event["step"]: event[name] for event in events if event["event"] == kind and event["step"] <= steps}
        for events in (recorded, repeated)
    )
    return {step: (value, actual.get(step)) for step, value in expected.items()}


def first_steps(run: AnyRun, steps: int) -> Events:
    """Run the first steps in separate processes; return the events, possibly of a few steps more.

    Raises:
        UserError: if the run made no step, with the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="suite-verify-") as folder:
        run_dir, path, output_path = Path(folder, "run"), Path(folder, "config.json"), Path(folder, "output")
        quiet = run.model_copy(update={**QUIET, "run_dir": str(run_dir)})
        path.write_text(json.dumps(quiet.plain()))
        with output_path.open("w") as output:
            command = [sys.executable, "-m", "suite.launch.replay", str(path)]
            bind = partial(orphan.bind_to_parent, os.getpid())
            child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=bind)
            try:
                _wait(child, run_dir / "events.jsonl", steps)
            finally:
                child.kill()
                child.wait()
        events = _events(run_dir / "events.jsonl")
        if not any(event["event"] in ("step", "evaluated") for event in events):
            last = " / ".join(output_path.read_text().splitlines()[-LAST_LINES:])
            raise UserError(f"cannot repeat the steps here; the run made no step and printed: {last}")
    return events


def _wait(child: "subprocess.Popen[bytes]", log: Path, steps: int) -> None:
    """Wait until the run has ended, or interrupt it after enough steps."""
    while child.poll() is None and not _enough(_events(log), steps):
        time.sleep(0.05)
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        child.wait(GRACE)


def _events(log: Path) -> Events:
    return record.read_events(log) if log.exists() else []


def _enough(events: Events, steps: int) -> bool:
    """Return whether the log has `steps` steps, and the evaluation after the last of them if there is one."""
    past = any(event["event"] == "step" and event["step"] > steps for event in events)
    return past or any(event["event"] == "evaluated" and (event["step"] or 0) >= steps for event in events)


if __name__ == "__main__":
    load.search_working_directory()
    sys.exit(launch(read_run(json.loads(Path(sys.argv[1]).read_text())), ["verify"]))
