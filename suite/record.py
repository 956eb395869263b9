"""From events to the result: a pure function of the event log, the configuration and the environment.

`events.jsonl` holds one event a line, flushed as it happens; `result.json` is written last, atomically, and never
changed. `suite verify` folds the log again and compares.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from suite.contract import Data, Event, Target

SCHEMA = 1
UNHASHED = ("run_dir", "track", "launch", "force", "repeat", "require")  # do not change what a run computes


def config_hash(config: Mapping[str, Any]) -> str:
    """Names the run directory: sha256 of everything in the configuration that can change a number."""
    kept = {name: value for name, value in config.items() if name not in UNHASHED}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def as_line(event: Event) -> str:
    """One event as a line of the log."""
    return json.dumps({"event": type(event).__name__.lower(), **asdict(event)})


def read_events(path: Path) -> list[dict[str, Any]]:
    """The log's events; a last line that was cut off by a crash is left out."""
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]


def crossings(curve: list[dict[str, Any]], targets: Iterable[Target]) -> list[dict[str, Any]]:
    """For each target the first evaluation that meets it, and its bracket: the last miss before, the first hit."""
    found = []
    for target in targets:
        hit = next((point for point in curve if target.met(point["metrics"])), None)
        misses = curve[: curve.index(hit)] if hit else curve
        place = {name: hit[name] if hit else None for name in ("step", "samples", "train_seconds", "wall_seconds")}
        bracket = [misses[-1]["step"] if misses else None, place["step"]]
        found.append(
            {**asdict(target), "label": label(target), "reached": hit is not None, **place, "bracket": bracket}
        )
    return found


def label(target: Target) -> str:
    """A target's name where `>=` may not stand, as in MLflow's metrics: top1_97."""
    return f"{target.metric}_{target.value:g}"


def fold(events: list[dict[str, Any]], targets: Iterable[Target]) -> dict[str, Any]:
    """Everything a result derives from its events."""
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
    segments = [event for event in events if event["event"] == "started"]
    last = events[-1] if events and events[-1]["event"] == "finished" else None
    facts = last["facts"] if last else segments[-1]["facts"]
    return {
        "parameters": facts["parameters"],
        **_cost(facts, steps[-1]["samples"] if steps else 0),
        "curve": curve,
        "targets": crossings(curve, targets),
        "outcome": last["outcome"] if last else {"kind": "failed"},
        "steps": steps[-1]["step"] if steps else 0,
        "samples": steps[-1]["samples"] if steps else 0,
        "step_seconds": _quantiles([event["step_seconds"] for event in steps]),
        "train_seconds": facts.get("train_seconds"),
        "wall_seconds": facts.get("wall_seconds"),
        "compile_seconds": sum(segment["facts"]["compile_seconds"] for segment in segments),
        "compile_cache": facts["compile_cache"],
        "excluded_seconds": facts.get("excluded_seconds", {}),
        "segments": [{"step": s["step"], "resumed": s["resumed"], "device": s["facts"]["device"]} for s in segments],
        "peak_memory_bytes": facts["peak_memory_bytes"],
        "bytes": _bytes(facts["bytes"]),
        **({"optimizer": facts["optimizer"]} if facts.get("optimizer") else {}),
        **({"decisions": decisions} if decisions else {}),
    }


def _cost(facts: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """Where the task counts them, operations of one sample and of all trained on; and what moving blocks explored."""
    flops, explored = facts.get("flops"), facts.get("explored")
    found: dict[str, Any] = {} if flops is None else {"flops": {"sample": flops, "trained": flops * samples}}
    return found | ({} if explored is None else {"explored": explored})


def _bytes(counted: Mapping[str, Any]) -> dict[str, Any]:
    """The ledger's bytes; on the test bed also the kernel's, and their ratio.

    With several ranks on a host there is no ratio: what one of them sends may stay inside.
    """
    kernel = counted.get("kernel")
    if not kernel:
        return dict(counted)
    leaves = counted["sent"] if kernel["ranks"] == 1 else 0
    return {**counted, "kernel": {**kernel, "ratio": kernel["sent"] / leaves if leaves else None}}


def _quantiles(seconds: list[float]) -> dict[str, float | None]:
    """Median and 99th percentile by the nearest rank."""
    ordered = sorted(seconds)
    pick = lambda q: ordered[min(math.ceil(q * len(ordered)) - 1, len(ordered) - 1)] if ordered else None  # noqa: E731
    return {"p50": pick(0.50), "p99": pick(0.99)}


def data_record(data: Data) -> dict[str, Any]:
    """A task's data as the result holds it."""
    return {**asdict(data), "samples": dict(data.samples), "skipped": list(data.skipped), "label": str(data)}


def result(
    events: list[dict[str, Any]],
    *,
    config: Mapping[str, Any],
    targets: Iterable[Target],
    header: Mapping[str, Any],
    published: Iterable[str],
) -> dict[str, Any]:
    """The whole result. `header` holds execution_id, task_version, data, environment, fingerprint and command."""
    task = config["task"]
    spec = {
        "task": task["name"],
        "variant": task["variant"],
        "scale": config["scale"],
        "recipe": config["tuning"]["source"],
        **_means(config),
        "seed": config["seed"],
        "config": dict(config),
    }
    return {
        "schema": SCHEMA,
        "hash": config_hash(config),
        **header,
        "spec": spec,
        "tuning": dict(config["tuning"]),
        "precision": config.get("precision"),
        "deterministic": config.get("deterministic"),
        **fold(events, targets),
        "published": sorted(published),
    }


def _means(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the run trains with. A baseline has none of it but its name."""
    if "baseline" in config:
        nothing = dict.fromkeys(("optimizer", "comm", "backend", "world", "batch_size"))
        return {"baseline": config["baseline"]["name"], **nothing}
    return {
        "optimizer": config["optimizer"]["name"],
        "comm": config["comm"]["name"],
        "backend": config["backend"],
        "world": config["world"],
        "batch_size": config["task"]["batch_size"],
    }


def method(config: Mapping[str, Any]) -> str:
    """What trains, for people: the optimizer's name, or `trees (baseline)`."""
    return f"{config['baseline']['name']} (baseline)" if "baseline" in config else config["optimizer"]["name"]


def write(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON so that a reader sees the whole file or none."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1, sort_keys=False) + "\n")
    partial.replace(path)
