"""Computes the result of a run: a pure function of the event log, the configuration and the environment.

`events.jsonl` has one event per line, written as it happens. `result.json` is written last, atomically, and never
changed. `suite verify` computes the result again from the log and compares.
"""

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from suite import disk
from suite.contract import Data, Event, Target, UserError, append_sizes
from suite.record.facts import DataUsed, Spec
from suite.record.result import Header, Result, list_violations
from suite.settings.effects import hash_run
from suite.settings.run import AnyRun, BaselineRun, Run, read_run

SCHEMAS = (1, 2)  # that are read
SCHEMA = 2  # 2: `hash` covers the settings that affect anything; in schema 1, every setting but these
OPTIONAL = ("optimizer", "predicted_step_seconds", "channels_last")  # facts that a result may lack
TIMES = (
    "processor_seconds",
    "busy_pauses",
    "gap_seconds",
    "input_seconds",
    "queued_seconds",
)  # facts that older results lack
CROWDED = 0.2  # of a run's time, spent waiting for a core; chosen here: its seconds are then a quarter too long
WHOLE_MACHINE = 0.8  # of all cores' time; a run that had more had no busy neighbour
UNHASHED_IN_1 = ("run_dir", "track", "launch", "force", "repeat", "require", "save", "resume")


class LogError(UserError):
    """An event log is not the log of one run."""


def format_event(event: Event) -> str:
    """An event as a line of the log."""
    return format_json({"event": type(event).__name__.lower(), **asdict(event)})


def drop_infinities(value: Any) -> Any:
    """Replace each number that is not finite by None, because JSON cannot express it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: drop_infinities(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [drop_infinities(entry) for entry in value]
    return value


def format_json(value: Any, *, indent: int | None = None) -> str:
    """A value as standard JSON, with null for each number that is not finite."""
    return json.dumps(drop_infinities(value), indent=indent, allow_nan=False)


def read_events(path: Path, remedy: str = disk.REMEDY) -> list[dict[str, Any]]:
    """Read the events of a log; a last line that a crash has cut off is ignored.

    Raises:
        ReadError: a line is no event.
    """
    lines = disk.read_text(path, None, remedy).split("\n")[:-1]
    with disk.report_damage(path, remedy):
        events = [json.loads(line) for line in lines]
        for number, event in enumerate(events, start=1):
            if not isinstance(event, dict) or not isinstance(event.get("event"), str):
                raise ValueError(f"line {number} is no event")
        return events


def hash_events(events: Iterable[Mapping[str, Any]]) -> str:
    """Return a checksum (sha256) of a log's events."""
    digest = hashlib.sha256()
    for event in events:
        digest.update(f"{format_json(event)}\n".encode())
    return digest.hexdigest()


def find_crossings(curve: list[dict[str, Any]], targets: Iterable[Target]) -> list[dict[str, Any]]:
    """Find when each target was reached.

    Args:
        curve: the run's evaluations.
        targets: the task's targets.

    Returns:
        For each target, the first evaluation that meets it, and `bracket`: the steps of the last miss before it and of
        this evaluation.
    """
    entries = []
    for target in targets:
        hit = next((point for point in curve if target.met(point["metrics"])), None)
        misses = curve[: curve.index(hit)] if hit else curve
        place = {name: hit[name] if hit else None for name in ("step", "samples", "train_seconds", "wall_seconds")}
        bracket = [misses[-1]["step"] if misses else None, place["step"]]
        entries.append(
            {**asdict(target), "label": name_target(target), "reached": hit is not None, **place, "bracket": bracket}
        )
    return entries


def name_target(target: Target) -> str:
    """A target's name without `>=`, which MLflow's metrics do not allow: top1_97."""
    return f"{target.metric}_{target.value:g}"


def check_order(events: Iterable[Mapping[str, Any]]) -> None:
    """Check that a log is the log of one run: its steps are 1, 2, 3, …, and the evaluations are in order.

    Raises:
        LogError: if an event is out of order.
    """
    last = dict.fromkeys(("step", "evaluated"), 0)
    for event in events:
        kind, step = event["event"], event.get("step")
        if kind not in last or step is None:  # a baseline makes no steps
            continue
        if step <= last[kind] or (kind == "step" and step != last[kind] + 1):
            name = "evaluation at step" if kind == "evaluated" else "step"
            cause = "several processes wrote this log, or lines are lost"
            raise LogError(f"{name} {step} follows {name} {last[kind]}: {cause}")
        last[kind] = step


def fold_events(events: list[dict[str, Any]], targets: Iterable[Target]) -> dict[str, Any]:
    """Compute the part of a result that follows from the events.

    Args:
        events: of the log.
        targets: the task's targets.

    Returns:
        Entries of the result.

    Raises:
        LogError: if the steps are not in order.
    """
    check_order(events)
    curve = [
        {name: event[name] for name in ("step", "samples", "train_seconds", "wall_seconds", "metrics")}
        for event in events
        if event["event"] == "evaluated"
    ]
    steps = [event for event in events if event["event"] == "step"]
    decisions = [
        {name: event[name] for name in ("step", "mode", "steps", "why", "seconds", "train_seconds", "replayed")}
        for event in events
        if event["event"] == "decided"
    ]
    saved = [{name: e[name] for name in ("step", "file", "sha256")} for e in events if e["event"] == "saved"]
    segments = [event for event in events if event["event"] == "started"]
    last = events[-1] if events and events[-1]["event"] == "finished" else None
    facts = last["facts"] if last else segments[-1]["facts"]
    usage = _usage(segments, facts)
    several = len(usage) > 1
    return {
        "parameters": facts["parameters"],
        **_cost(facts, steps[-1]["samples"] if steps else 0),
        "curve": curve,
        "targets": find_crossings(curve, targets),
        "outcome": last["outcome"] if last else {"kind": "failed"},
        "steps": steps[-1]["step"] if steps else 0,
        "samples": steps[-1]["samples"] if steps else 0,
        "step_seconds": _quantiles([event["step_seconds"] for event in steps]),
        "train_seconds": facts.get("train_seconds"),
        "wall_seconds": facts.get("wall_seconds"),
        "compile_seconds": sum(segment["facts"]["compile_seconds"] for segment in segments),
        "compile_cache": facts["compile_cache"],
        "excluded_seconds": facts.get("excluded_seconds", {}),
        **{name: facts[name] for name in TIMES if name in facts},
        "segments": [
            {
                "step": s["step"],
                "resumed": s["resumed"],
                "device": s["facts"]["device"],
                **(usage[n] if several else {}),
            }
            for n, s in enumerate(segments)
        ],
        "peak_memory_bytes": _largest(segment["peak_memory_bytes"] for segment in usage),
        "bytes": _bytes([segment["bytes"] for segment in usage]),
        **{name: facts[name] for name in OPTIONAL if facts.get(name)},
        **({"decisions": decisions} if decisions else {}),
        **({"weights": saved[-1]} if saved else {}),
    }


def _cost(facts: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """FLOPs of one sample and of all training samples, if the task counts them; and the share of explored blocks."""
    flops, explored = facts.get("flops"), facts.get("explored")
    counted: dict[str, Any] = {} if flops is None else {"flops": {"sample": flops, "trained": flops * samples}}
    return counted | ({} if explored is None else {"explored": explored})


def _usage(segments: list[dict[str, Any]], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the bytes sent and the peak memory of each segment, up to its last checkpoint, or to the end of the run.

    Work after a segment's last checkpoint is lost and not counted. Logs of older versions contain only the last
    segment's numbers; then only these are returned.
    """
    before = [segment["facts"].get("before") for segment in segments[1:]]
    counted = [*before, facts] if all(before) else [facts]
    return [{name: segment[name] for name in ("bytes", "peak_memory_bytes")} for segment in counted]


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _bytes(segments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum all segments' bytes by the ledger; on the test bed also by the kernel, with the ratio of the two.

    With several ranks on a host there is no ratio, because a rank's bytes may stay inside the host.
    """
    total: dict[str, Any] = {"sent": sum(counted["sent"] for counted in segments)}
    for kind in ("by_name", "by_level"):
        parts = [counted[kind] for counted in segments if kind in counted]
        if parts:
            total[kind] = {n: sum(part.get(n, 0) for part in parts) for n in dict.fromkeys(n for p in parts for n in p)}
    kernels = [counted["kernel"] for counted in segments if counted.get("kernel")]
    if len(kernels) < len(segments):
        return total
    sent, ranks = sum(kernel["sent"] for kernel in kernels), kernels[-1]["ranks"]
    ledger = total["sent"] if ranks == 1 else 0
    return {**total, "kernel": {"sent": sent, "ranks": ranks, "ratio": sent / ledger if ledger else None}}


def _quantiles(seconds: list[float]) -> dict[str, float | None]:
    """Median and 99th percentile (nearest rank)."""
    ordered = sorted(seconds)
    pick = lambda q: ordered[min(math.ceil(q * len(ordered)) - 1, len(ordered) - 1)] if ordered else None  # noqa: E731
    return {"p50": pick(0.50), "p99": pick(0.99)}


def describe_data(data: Data) -> dict[str, Any]:
    """Return the entry `data` of a result."""
    optional = ("dropped", "dropped_unit", "dropped_of")  # left out if empty, as in older results
    entry = {name: value for name, value in asdict(data).items() if name != "stamp" and (name not in optional or value)}
    return {**entry, "samples": dict(data.samples), "skipped": list(data.skipped), "label": str(data)}


def identify_data(used: DataUsed | Data) -> str:
    """Return the identity of a result's data. For generated data it includes the sizes, which older results lack."""
    return append_sizes(used.identity, used.samples) if used.kind == "generated" else used.identity


def read_data(used: DataUsed) -> Data:
    """Read the data that a result's entry `data` describes; older results lack some fields."""
    return Data(**{name: getattr(used, name) for name in used.model_fields_set if name != "label"})


def compute_entries(
    events: list[dict[str, Any]],
    *,
    run: AnyRun,
    targets: Iterable[Target],
    header: Header,
    data: Mapping[str, Any],
    published: Iterable[str],
) -> dict[str, Any]:
    """Compute the entries of a result.

    Args:
        events: of the log.
        run: the run.
        targets: the task's targets.
        header: what was known before the run.
        data: as `describe_data` returns it.
        published: ids of the task's published rows.

    Raises:
        LogError: if the log is not the log of one run.
    """
    spec = {
        "task": run.task.name,
        "variant": run.task.variant,
        "scale": run.scale,
        "recipe": run.tuning.source,
        **_method(run),
        "seed": run.seed,
        "config": run.plain(),
    }
    trained = isinstance(run, Run)
    return {
        "schema": SCHEMA,
        **header.plain(),
        "data": data,
        "spec": spec,
        "tuning": run.tuning.plain(),
        "precision": run.precision if trained else None,
        "deterministic": run.deterministic if trained else None,
        **fold_events(events, targets),
        "log": hash_events(events),
        "published": sorted(published),
    }


def make_result(entries: Mapping[str, Any]) -> Result:
    """Make a result of its entries; a number that is not finite becomes null.

    Raises:
        ValueError: if the entries do not follow the format, with the first fault.
    """
    try:
        return Result.model_validate_json(format_json(entries))
    except ValidationError as error:
        raise ValueError(next(list_violations(error))) from error


def read_result(path: Path, remedy: str = disk.REMEDY) -> Result:
    """Read a result that the suite wrote on this machine.

    Raises:
        ReadError: if it is damaged.
    """
    content = disk.read_json(path, remedy)
    with disk.report_damage(path, remedy):
        return make_result(content)


def read_header(directory: Path, remedy: str = disk.REMEDY) -> Header:
    """Read the header of a run directory.

    Raises:
        ReadError: if it is damaged.
    """
    path = directory / "header.json"
    content = disk.read_json(path, remedy)
    with disk.report_damage(path, remedy):
        try:
            return Header.read(content)
        except ValidationError as error:
            raise ValueError(next(list_violations(error))) from error


def _method(run: AnyRun) -> dict[str, Any]:
    """Optimizer, communication, backend, devices and batch size; all None for a baseline, which has a name instead."""
    if isinstance(run, BaselineRun):
        nothing = dict.fromkeys(("optimizer", "comm", "backend", "world", "batch_size"))
        return {"baseline": run.baseline.name, **nothing}
    return {
        "optimizer": run.optimizer.name,
        "comm": run.comm.name,
        "backend": run.backend,
        "world": run.world,
        "batch_size": run.task.batch_size,
    }


def load_run(result: Result) -> AnyRun:
    """Read the run of a result, which may be of an earlier version of the suite.

    Raises:
        UserError: its configuration is not that of a run.
    """
    return parse_run(result.spec.settings)


@functools.lru_cache(maxsize=4096)
def parse_run(config: str) -> AnyRun:
    """Read the run of a result from its `spec.config` as JSON; reading it again takes no time."""
    return read_run(json.loads(config), old=True)


def hash_of(result: Result) -> str:
    """Return the hash of a result's run, as it was computed when the result was made."""
    if result.version != 1:
        return hash_run(load_run(result), result.spec.config)
    settings = {key: value for key, value in result.spec.config.items() if key not in UNHASHED_IN_1}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def measure_crowding(result: Result) -> float:
    """Return the share of rank 0's time that its threads waited for a core because other programs had it.

    0 for a run that had nearly all cores, or more processes than cores: then its own threads waited for each other.
    Also 0 for older results, and on systems that do not count the waits.
    """
    spent, queued, cores = result.processor_seconds, result.queued_seconds, result.environment.cores
    if not queued:
        return 0.0
    computed = spent.training + spent.excluded if spent else 0.0
    own = computed > WHOLE_MACHINE * cores * (result.wall_seconds or 0.0) or (result.spec.world or 1) > cores
    return 0.0 if own else queued / (queued + computed)


def is_crowded(result: Result) -> bool:
    """Return whether other programs took so much of the machine that the seconds of a run mean nothing."""
    return measure_crowding(result) > CROWDED


def is_baseline(spec: Spec) -> bool:
    """Return whether a result's `spec` is that of a baseline."""
    return spec.baseline is not None


def method_of(spec: Spec) -> str:
    """Return the method of a result's `spec` as it is printed: the optimizer's name, or `trees (baseline)`."""
    return f"{spec.baseline} (baseline)" if is_baseline(spec) else str(spec.optimizer)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file; readers see the whole file or none.

    Raises:
        WriteError: if writing fails; an earlier file remains.
    """
    disk.replace_file(path, format_json(value, indent=1) + "\n")
