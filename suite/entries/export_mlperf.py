"""Writes a result as lines of MLPerf's training log, `:::MLLOG {json}`.

Keys and form are those of mlperf_logging 4.1.68 (mlperf_logging/mllog/constants.py and mllog.py). A key is written only
if the result has its value. `list_lacking` names the keys that MLPerf's compliance checker demands and a log lacks.
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
# Keys that compliance_checker/training_5.1.0 and training_6.1.0 demand (common.yaml and closed_common.yaml) and that no
# result has, and why. Both rulesets demand the same of them; what 6.1.0 demands in addition is `DISCLOSED`.
RULESETS = "rulesets 5.1.0 and 6.1.0"
LACKING = {
    "submission_org, submission_division": "a result does not say who submits it, or where",
    "submission_benchmark": "the suite's tasks are not MLPerf's, even where model and data have the same names",
    "cache_clear": "the suite does not clear the system's caches",
    "init_start, init_stop": "a result has the seconds of compilation, but not when it took place",
    "block_start, block_stop, epoch_start, epoch_stop": "the suite counts steps, and has no epochs or blocks",
    "eval_start, eval_stop": "a result has the end of each evaluation, but not its beginning",
}
DISCLOSED = {  # demanded by 6.1.0 only; left out where the result has no value that 6.1.0 accepts
    "lowest_numerical_precision_in_linear": "MLPerf has no name for the precision of the model",
    "lowest_numerical_precision_in_attn": "MLPerf has no name for the precision of the model",
    "lowest_numerical_precision_in_comm": "MLPerf has no name for a codec of the run's communication mode",
    "pipeline_parallelism": "the result does not say into how many stages the model was cut",
}
PRECISIONS = {
    "float64": "fp64",
    "float32": "fp32",
    "tf32": "tf32",
    "bfloat16": "bfloat16",
}  # of a model, by MLPerf's names
CODECS = {"float32": "fp32", "bfloat16": "bfloat16", "float16": "fp16", "int8": "int8"}  # by the names of their modules
BITS = {"fp32": 32, "bfloat16": 16, "fp16": 16, "fp8": 8, "int8": 8}
FP8 = (5, 2), (4, 3)  # exponent and mantissa of the formats that are called fp8 (OCP 8-bit floating point, 2023)


def format_log(result: Result) -> Iterator[str]:
    """Yield the lines of a result's log.

    Args:
        result: contents of a result.json.

    Raises:
        UserError: for a baseline, which has no steps, and for a run without a target, which has no accuracy to log.
    """
    spec = result.spec
    if is_baseline(spec):
        raise UserError("MLPerf's log is of a training with steps, and a baseline has none")
    if not result.targets:
        raise UserError("the run has no target, so that no metric is MLPerf's eval_accuracy")
    for key, value in _settings(result):
        yield _line(0.0, "POINT_IN_TIME", key, value)
    yield _line(0.0, "INTERVAL_START", "run_start", None, {"clock": CLOCK})
    metric = result.targets[-1].metric
    for point in result.curve:
        value = point.metrics.get(metric)
        if value is not None:
            place = {"samples_count": point.samples, "step": point.step, "metric": metric}
            yield _line(point.wall_seconds, "POINT_IN_TIME", "eval_accuracy", value, place)
    if result.wall_seconds is not None:
        status = "success" if result.outcome.kind == "reached" else "aborted"
        end = {"status": status, "samples_count": result.samples, "train_seconds": result.train_seconds}
        yield _line(result.wall_seconds, "INTERVAL_END", "run_stop", None, end)


def _settings(result: Result) -> Iterator[tuple[str, Any]]:
    """Keys and values of the configuration that MLPerf has names for."""
    spec = result.spec
    run, samples = record.load_run(result), result.data.samples
    assert isinstance(run, Run)
    optimizer = run.optimizer.options()
    machine = result.environment
    warmup = run.schedule.warmup  # in steps, or below 1 a share of the run
    devices = ", ".join(str(gpu) for gpu in machine.gpus or ()) or f"{machine.cpu}, {machine.cores} cores"
    values: dict[str, Any] = {
        "submission_platform": devices,
        "seed": spec.seed,
        "global_batch_size": spec.batch_size,
        "gradient_accumulation_steps": run.accumulate,
        "opt_name": spec.optimizer,
        "opt_base_learning_rate": optimizer.get("lr"),
        "opt_weight_decay": optimizer.get("weight_decay"),
        "opt_gradient_clip_norm": run.clip_norm or None,  # 0 means no clipping
        "opt_learning_rate_warmup_steps": None if 0 < warmup < 1 else round(warmup),
        "train_samples": samples.get("train"),
        "eval_samples": samples.get("valid"),
    }
    values |= _disclosures(result, run)
    yield from ((key, value) for key, value in values.items() if value is not None)


def list_lacking(result: Result) -> dict[str, str]:
    """Return the keys that MLPerf's checker demands and the result's log lacks, with the rulesets and the reason."""
    run = record.load_run(result)
    assert isinstance(run, Run)
    absent = [key for key, value in _disclosures(result, run).items() if value is None]
    lacking = {keys: f"demanded by {RULESETS}; {reason}" for keys, reason in LACKING.items()}
    return lacking | {key: f"demanded by ruleset 6.1.0; {DISCLOSED[key]}" for key in absent}


def _disclosures(result: Result, run: Run) -> dict[str, Any]:
    """Return what ruleset 6.1.0 demands about precision, partition and batch; None where the result lacks it."""
    precision = PRECISIONS.get(result.precision or "")
    shares = run.partition.micro_batches if run.partition else run.world * run.accumulate
    return {
        "lowest_numerical_precision_in_linear": precision,
        "lowest_numerical_precision_in_attn": precision,  # a model computes in one precision
        "lowest_numerical_precision_in_comm": _find_lowest(result.spec.config["comm"]),
        "tensor_parallelism": 1,
        "pipeline_parallelism": run.partition.stages if run.partition else 1,
        "context_parallelism": 1,
        "expert_parallelism": 1,
        "micro_batch_size": run.task.batch_size // shares,
        "config_filename": "config.yaml",  # of the run directory
    }


def _find_lowest(comm: Mapping[str, Any]) -> str | None:
    """Return MLPerf's name of a communication mode's codec with the fewest bits; None if a codec has no name there."""
    names = [_name_codec(node) for node in _codecs(comm)]
    known = [name for name in names if name is not None]
    return min(known, key=BITS.__getitem__) if known and len(known) == len(names) else None


def _codecs(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of each codec in a communication mode."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            if key in ("codec", "inner"):
                yield value
            else:
                yield from _codecs(value)


def _name_codec(codec: Mapping[str, Any]) -> str | None:
    name = str(codec["module"]).rpartition(".")[2]
    return "fp8" if (codec.get("exponent"), codec.get("mantissa")) in FP8 else CODECS.get(name)


def _line(seconds: float, event: str, key: str, value: Any, metadata: Mapping[str, Any] | None = None) -> str:
    entry = {"namespace": "", "time_ms": round(seconds * 1000), "event_type": event, "key": key, "value": value}
    return PREFIX + json.dumps({**entry, "metadata": dict(metadata or {})}, allow_nan=False)
