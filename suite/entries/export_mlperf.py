"""Writes a result as lines of MLPerf's training log, `:::MLLOG {json}`.

Keys and form are those of mlperf_logging 4.1.68 (mlperf_logging/mllog/constants.py and mllog.py). A key is written only
if the result has its value. `LACKING` has the keys that MLPerf's compliance checker demands and that results lack.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from suite.contract import UserError
from suite.record import record
from suite.record.record import is_baseline
from suite.record.result import Result
from suite.settings.run import Run

PREFIX = ":::MLLOG "
CLOCK = "milliseconds since the run began, compilation included; a result has no date"
# Keys that compliance_checker/training_5.1.0/common.yaml and closed_common.yaml demand, and why they are left out.
LACKING = {
    "submission_org, submission_division, submission_status": "a result does not say who submits it, or where",
    "submission_benchmark": "the suite's tasks are not MLPerf's, even where model and data have the same names",
    "cache_clear": "the suite does not clear the system's caches",
    "init_start, init_stop": "a result has the seconds of compilation, but not when it took place",
    "block_start, block_stop, epoch_start, epoch_stop": "the suite counts steps, and has no epochs or blocks",
    "eval_start, eval_stop": "a result has the end of each evaluation, but not its beginning",
}


def format_log(result: Result) -> Iterator[str]:
    """Yield the lines of a result's log.

    Args:
        result: contents of a result.json.

    Raises:
        UserError: for a baseline, which has no steps, and for a run without a target, which has no accuracy to log.
    """
    spec = result["spec"]
    if is_baseline(spec):
        raise UserError("MLPerf's log is of a training with steps, and a baseline has none")
    if not result["targets"]:
        raise UserError("the run has no target, so that no metric is MLPerf's eval_accuracy")
    for key, value in _settings(result):
        yield _line(0.0, "POINT_IN_TIME", key, value)
    yield _line(0.0, "INTERVAL_START", "run_start", None, {"clock": CLOCK})
    metric = result["targets"][-1]["metric"]
    for point in result["curve"]:
        value = point["metrics"].get(metric)
        if value is not None:
            place = {"samples_count": point["samples"], "step": point["step"], "metric": metric}
            yield _line(point["wall_seconds"], "POINT_IN_TIME", "eval_accuracy", value, place)
    if result["wall_seconds"] is not None:
        status = "success" if result["outcome"]["kind"] == "reached" else "aborted"
        end = {"status": status, "samples_count": result["samples"], "train_seconds": result["train_seconds"]}
        yield _line(result["wall_seconds"], "INTERVAL_END", "run_stop", None, end)


def _settings(result: Result) -> Iterator[tuple[str, Any]]:
    """Keys and values of the configuration that MLPerf has names for."""
    spec = result["spec"]
    run, samples = record.load_run(result), result["data"]["samples"]
    assert isinstance(run, Run)
    optimizer = run.optimizer.options()
    machine = result["environment"]
    warmup = run.schedule.warmup  # in steps, or below 1 a share of the run
    devices = ", ".join(str(gpu) for gpu in machine.get("gpus", ())) or f"{machine['cpu']}, {machine['cores']} cores"
    values: dict[str, Any] = {
        "submission_platform": devices,
        "seed": spec["seed"],
        "global_batch_size": spec["batch_size"],
        "gradient_accumulation_steps": run.accumulate,
        "opt_name": spec["optimizer"],
        "opt_base_learning_rate": optimizer.get("lr"),
        "opt_weight_decay": optimizer.get("weight_decay"),
        "opt_gradient_clip_norm": run.clip_norm or None,  # 0 means no clipping
        "opt_learning_rate_warmup_steps": None if 0 < warmup < 1 else round(warmup),
        "train_samples": samples.get("train"),
        "eval_samples": samples.get("valid"),
    }
    yield from ((key, value) for key, value in values.items() if value is not None)


def _line(seconds: float, event: str, key: str, value: Any, metadata: Mapping[str, Any] | None = None) -> str:
    entry = {"namespace": "", "time_ms": round(seconds * 1000), "event_type": event, "key": key, "value": value}
    return PREFIX + json.dumps({**entry, "metadata": dict(metadata or {})}, allow_nan=False)
