"""Metric points of a run in MLflow's form: key, value, time and step."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from suite.record.result import Result


class Point(NamedTuple):
    """One value of one metric; `time` is in training milliseconds, which serve as MLflow's time axis."""

    key: str
    value: float
    time: int
    step: int


Points = dict[tuple[str, int], Point]


def list_points(result: Result, events: Iterable[Mapping[str, Any]], *, finished: bool) -> Points:
    """All metric points of a run, by (key, step).

    The step of `train/…`, `valid/…` and `hyper/…` is the number of updates; of `by_millisecond/…` the training
    milliseconds; of `time_to/<target>/seconds|steps|samples` the update that met the target; of totals the last one.

    Args:
        result: of the run, or what it would be if the run ended now.
        events: of the run.
        finished: whether the run has a result; otherwise totals are left out, because points cannot be changed.
    """
    collected: Points = {}

    def add(key: str, value: float | None, time: float, step: int) -> None:
        if value is not None:
            collected[key, step] = Point(key, float(value), round(1000 * time), step)

    for event in events:
        for name, value in _series(event).items():
            time = event["train_seconds"]
            add(name, value, time, event["step"] or 0)  # a baseline's evaluation has no step, but MLflow needs one
            add(f"by_millisecond/{name}", value, time, round(1000 * time))
        for name, value in event.get("hyper", {}).items():
            add(f"hyper/{name}", value, event["train_seconds"], event["step"])
    for target in result.targets:
        if target.reached:
            at = target.train_seconds or 0.0, target.step or 0
            spent = {"seconds": target.train_seconds, "steps": target.step, "samples": target.samples}
            for name, value in spent.items():
                add(f"time_to/{target.label}/{name}", value, *at)
    if finished:
        for name, value in _totals(result).items():
            add(name, value, result.train_seconds or 0.0, result.steps)
    return collected


def _series(event: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the values of one event that form curves, by key."""
    if event["event"] == "step":
        return {"train/loss": event["loss"]}
    return {f"valid/{name}": value for name, value in event.get("metrics", {}).items()}


def _totals(result: Result) -> dict[str, float | None]:
    """Return the values of a whole run, by key."""
    quantiles = {f"step_seconds/{name}": value for name, value in result.step_seconds}
    names = ("train_seconds", "wall_seconds", "compile_seconds", "peak_memory_bytes", "parameters", "steps", "samples")
    counted = {"flops": result.flops.trained} if result.flops else {}
    known = {"explored": result.explored, "predicted_step_seconds": result.predicted_step_seconds}
    optimizer = {f"optimizer/{name}": value for name, value in (result.optimizer or {}).items()}
    return quantiles | counted | known | optimizer | {name: getattr(result, name) for name in names}
