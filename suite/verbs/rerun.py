"""The first steps of a run once more: `python -m suite.verbs.rerun CONFIG` launches a configuration as any run is.

The run is told to stop, as by Ctrl-C, when it has gone far enough. Nothing of its configuration that could change a
number is touched: a learning rate depends on `max_steps`.
"""

import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from suite import load, record, run
from suite.contract import Target, UserError
from suite.launch import launch
from suite.verbs.plan import describe, missing
from suite.verbs.recompute import differences

# Another machine, framework or number of threads rounds differently, and in a network of ReLUs the difference grows
# about tenfold a step: measured on the laptop ResNet-50 between 1 and 2 threads and torch and jax, in both precisions.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "tf32": 2.0**-10, "bfloat16": 2.0**-7}
FIRST, GROWTH, MOST = 100, 10, 0.2  # epsilons allowed at the first step, growth a step, largest relative tolerance
GRACE = 120.0  # seconds a run that was told to stop may take over its last step and snapshot
QUIET = {"track": {"name": "none"}, "force": False, "repeat": 1, "require": None}
LAST_LINES = 3  # of what a failed run said
SAME = ("source", "packages", "python", "cpu", "threads")  # what the fingerprint covers, beside device

Events = list[dict[str, Any]]


def modules(node: Any, key: str = "") -> list[str]:
    """Everything in a configuration that would be imported: `module`, and an external optimizer's `torch` and `jax`."""
    if isinstance(node, dict):
        return sorted({name for key, value in node.items() for name in modules(value, key)})
    return [node] if isinstance(node, str) and key in ("module", "torch", "jax") else []


def rerun(
    result: Mapping[str, Any], events: Events | None, config: dict[str, Any], *, steps: int
) -> tuple[list[str], str]:
    """Make the first steps again and compare.

    Args:
        result: what is recorded.
        events: the log beside it; without one, only evaluations can be compared, and the run goes on to the first.
        config: the result's, with data where it lies here.
        steps: updates to make.

    Returns:
        What differs, and one line to say where nothing does.

    Raises:
        UserError: where the steps cannot be made here.
    """
    faults = list(_premises(result, config))
    if faults:  # another task's losses would say nothing
        return faults, ""
    recorded = events or [{"event": "evaluated", **point} for point in result["curve"]]
    if "baseline" in config:
        return _fitted_again(result, config)
    first = next((event["step"] for event in recorded if event["event"] in ("step", "evaluated")), None)
    if first is None:
        return faults, "not made: nothing is recorded that it could be compared with"
    steps = max(steps, first)
    exact, other = _same(result)
    if not (exact or events):
        return faults, f"not made: without a log only evaluations compare; {other}"
    made = first_steps(config, steps)
    losses = _paired(recorded, made, "step", "loss", steps)
    scores = _paired(recorded, made, "evaluated", "metrics", steps) if exact else {}
    for step, (theirs, mine) in losses.items():
        allowed = 0.0 if exact else tolerance(step, config["precision"])
        if mine is None:
            faults.append(f"step {step} is recorded, and was not reached here")
        elif abs(theirs - mine) > allowed * max(abs(theirs), abs(mine)):
            limit = f"{allowed:.0e} of it may differ" if allowed else "bits must be equal"
            faults.append(f"loss of step {step}: {theirs!r} is recorded, {mine!r} comes out; {limit}")
    for step, (theirs, mine) in scores.items():
        faults += differences(theirs, mine, f"metrics of step {step}")
    compared = f"to step {steps}: losses ({len(losses)}) and evaluations ({len(scores)}) agree"
    if exact:
        return faults, f"{compared} bit for bit: same source, packages, processor, device and threads"
    limits = (
        f"{tolerance(1, config['precision']):.0e} at step 1, {tolerance(steps, config['precision']):.0e} at the last"
    )
    return faults, f"{compared} within {limits}; bits need not; {other}"


def _same(result: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether bits must be equal here, and in words what is not the same where they need not."""
    here = run.make_header(result["spec"]["config"], ["verify"])
    other = [name for name in SAME if result["environment"].get(name) != here["environment"].get(name)] or ["device"]
    return here["fingerprint"] == result["fingerprint"], f"different here: {', '.join(other)}"


def _fitted_again(result: Mapping[str, Any], config: dict[str, Any]) -> tuple[list[str], str]:
    """What `rerun` returns, of a baseline: its metrics once more, where they must come out equal."""
    exact, other = _same(result)
    if not (exact and result["curve"]):
        why = other if result["curve"] else "no metrics are recorded"
        return [], f"not made: {why}"
    made = [event["metrics"] for event in first_steps(config, 0) if event["event"] == "evaluated"]
    faults = differences(result["curve"][0]["metrics"], made[0], "metrics")
    return list(faults), "fitted again: metrics agree bit for bit; same source, packages, processor and threads"


def tolerance(step: int, precision: str) -> float:
    """Largest relative difference between two losses after different rounding, at a step from 1."""
    return min(MOST, FIRST * EPSILON[precision] * float(GROWTH) ** min(step - 1, 20))


def _premises(result: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Where the task as it is here is not the one that is recorded.

    Raises:
        UserError: where it cannot run here.
    """
    lacking = missing(config)
    if lacking:
        raise UserError(f"cannot run here, missing {'; '.join(lacking)}; --steps 0 checks the numbers alone")
    version = load.common(config["task"]["module"]).VERSION
    if version != result["task_version"]:
        raise UserError(
            f"made with version {result['task_version']} of the task, this suite has {version}; type --steps 0"
        )
    task, absent = describe(config)
    if absent:
        raise UserError(f"cannot run here, missing {absent[0]}, as --data-dir DIR; or --steps 0")
    targets = [Target(entry["metric"], entry["value"], entry["higher_is_better"]) for entry in result["targets"]]
    count = sum(math.prod(spec.shape) for spec in task.shapes().values() if spec.kind == "parameter")
    yield from differences(list(map(str, targets)), list(map(str, task.targets)), "targets")
    yield from differences(result["parameters"], None if "baseline" in config else count, "parameters")
    yield from differences(result["data"]["identity"], task.data.identity, "data.identity")


def _paired(recorded: Events, made: Events, kind: str, name: str, steps: int) -> dict[int, tuple[Any, Any]]:
    """Values of one kind of event up to a step, recorded and made, by step."""
    one, other = (
        {event["step"]: event[name] for event in events if event["event"] == kind and event["step"] <= steps}
        for events in (recorded, made)
    )
    return {step: (value, other.get(step)) for step, value in one.items()}


def first_steps(config: Mapping[str, Any], steps: int) -> Events:
    """The events of the first updates, made in processes of their own; there may be a few more than `steps`.

    Raises:
        UserError: with what the run said, where it made no step.
    """
    with tempfile.TemporaryDirectory(prefix="suite-verify-") as folder:
        run_dir, path, said = Path(folder, "run"), Path(folder, "config.json"), Path(folder, "said")
        path.write_text(json.dumps({**config, **QUIET, "run_dir": str(run_dir)}))
        with said.open("w") as output:
            command = [sys.executable, "-m", "suite.verbs.rerun", str(path)]
            child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            try:
                _wait(child, run_dir / "events.jsonl", steps)
            finally:
                child.kill()
                child.wait()
        events = _events(run_dir / "events.jsonl")
        if not any(event["event"] in ("step", "evaluated") for event in events):
            last = " / ".join(said.read_text().splitlines()[-LAST_LINES:])
            raise UserError(f"nothing was trained here; it said: {last}")
    return events


def _wait(child: "subprocess.Popen[bytes]", log: Path, steps: int) -> None:
    """Until the run has ended, or has gone far enough and been stopped."""
    while child.poll() is None and not _enough(_events(log), steps):
        time.sleep(0.05)
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        child.wait(GRACE)


def _events(log: Path) -> Events:
    return record.read_events(log) if log.exists() else []


def _enough(events: Events, steps: int) -> bool:
    """Whether `steps` updates have been made, and what is evaluated after the last of them is there."""
    past = any(event["event"] == "step" and event["step"] > steps for event in events)
    return past or any(event["event"] == "evaluated" and (event["step"] or 0) >= steps for event in events)


if __name__ == "__main__":
    sys.exit(launch(json.loads(Path(sys.argv[1]).read_text()), ["verify"]))
