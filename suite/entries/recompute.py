"""Recomputes a result from its configuration, its event log and its curve, and lists the differences."""

import json
from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from typing import Any

from suite import published
from suite.contract import Target
from suite.entries.check_log import list_log_contradictions
from suite.entries.command import list_contradicting_words
from suite.record import environment, record
from suite.record.record import is_baseline
from suite.record.result import Header, Result
from suite.record.versions import is_version
from suite.settings.run import Run


def list_faults(result: Result, events: list[dict[str, Any]] | None) -> Iterator[str]:
    """One line for each difference from the recomputed result, and for each contradiction in the result or its log.

    Args:
        result: contents of a result.json.
        events: its event log; None if it is not there.

    Raises:
        UserError: the configuration is not that of a run; LogError: the log is not that of one run.
        LookupError, TypeError: the log is not of a complete run.
    """
    yield from list_differences(result.plain(), recompute_result(result, events))
    if events is not None:
        yield from list_log_contradictions(record.load_run(result), events)
    yield from list_contradictions(result)


def recompute_result(result: Result, events: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Recompute a result.

    Args:
        result: contents of a result.json.
        events: its event log; None recomputes what the result's own curve determines, and copies the rest.

    Returns:
        The recomputed result.
    """
    targets = [Target(entry.metric, entry.value, entry.higher_is_better) for entry in result.targets]
    run, recorded = record.load_run(result), result.plain()
    facts = recorded["environment"]
    device = run.device if isinstance(run, Run) else "cpu"
    header = Header(
        hash=record.hash_of(result),
        execution_id=result.execution_id,
        fingerprint=environment.compute_fingerprint(facts, device=device, threads=facts["threads"]),
        task_version=result.task_version,
        environment=result.environment,
        command=result.command,
    )
    if result.resumed_anyway:
        header = header.model_copy(update={"resumed_anyway": result.resumed_anyway})
    computed = record.compute_entries(
        events if events is not None else _events_from(recorded),
        run=run,
        targets=targets,
        header=header,
        data=record.describe_data(record.read_data(result.data)),
        published=result.published,
    )
    recomputed: dict[str, Any] = json.loads(json.dumps(computed))
    # of an older result, the names of settings are not those of today
    config = result.spec.config
    recomputed["schema"] = result.version
    recomputed["tuning"] = config.get("tuning", recomputed["tuning"])
    recomputed["spec"]["config"] = config
    if events is None or result.log is None:  # older results lack the checksum of the log
        recomputed.pop("log")
        recomputed |= {"log": result.log} if result.log is not None else {}
    if events is None:
        from_log = ("steps", "samples", "step_seconds", "compile_seconds", "flops")
        recomputed |= {name: value for name, value in recorded.items() if name in from_log}
        if result.outcome.kind in ("reached", "exhausted") and result.outcome.step is not None:
            recomputed["steps"] = result.outcome.step
    return recomputed


def _events_from(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Reconstruct the events from a result: all except the steps."""
    names = (
        "parameters",
        "train_seconds",
        "wall_seconds",
        "excluded_seconds",
        "compile_cache",
        "peak_memory_bytes",
        "bytes",
    )
    facts = {name: result[name] for name in names} | {"compile_seconds": 0.0}
    facts |= {"flops": result.get("flops", {}).get("sample"), "explored": result.get("explored")}
    facts |= {name: result.get(name) for name in record.OPTIONAL}
    facts |= {name: result[name] for name in record.TIMES if name in result}
    segments = result["segments"]
    started = [{"event": "started", **segment, "facts": facts | segment} for segment in segments]
    for segment, following in pairwise(started):
        if "bytes" in segment:
            following["facts"]["before"] = {name: segment[name] for name in ("bytes", "peak_memory_bytes")}
    if segments and "bytes" in segments[-1]:
        facts |= {name: segments[-1][name] for name in ("bytes", "peak_memory_bytes")}
    evaluated = [{"event": "evaluated", **point} for point in result["curve"]]
    decided = [{"event": "decided", **decision} for decision in result.get("decisions", ())]
    saved = [{"event": "saved", **result["weights"]}] if "weights" in result else []
    return [*started, *decided, *evaluated, *saved, {"event": "finished", "outcome": result["outcome"], "facts": facts}]


def list_differences(recorded: Any, computed: Any, place: str = "") -> Iterator[str]:
    """One line for each leaf in which two JSON values differ.

    Args:
        recorded: a value from the result.
        computed: the recomputed value.
        place: dotted key of the values; it begins each line.
    """
    if recorded == computed:
        return
    pairs: list[tuple[Any, Any, Any]] = []
    if isinstance(recorded, dict) and isinstance(computed, dict):
        pairs = [(key, recorded.get(key), computed.get(key)) for key in recorded.keys() | computed.keys()]
    elif isinstance(recorded, list) and isinstance(computed, list) and len(recorded) == len(computed):
        pairs = [(key, *pair) for key, pair in enumerate(zip(recorded, computed, strict=True))]
    elif recorded == recorded or computed == computed:  # NaN equals NaN here
        yield f"{place}: the result has {recorded!r}, recomputed {computed!r}"
    for key, before, after in sorted(pairs, key=lambda pair: str(pair[0])):
        yield from list_differences(before, after, f"{place}.{key}" if place else str(key))


def list_contradictions(result: Result) -> Iterator[str]:
    """One line for each contradiction inside a result, which no log could have produced."""
    if not is_baseline(result.spec):
        yield from _miscounted(result)
        yield from _undefined(result)
    if any(before.train_seconds >= after.train_seconds for before, after in pairwise(result.curve)):
        yield "curve: train_seconds does not increase from point to point"
    yield from _changed_targets(result)
    missed = [target.label for target in result.targets if not target.reached]
    if result.outcome.kind == "interrupted":
        yield "outcome: 'interrupted', although a run that is interrupted has no result yet"
    if result.outcome.kind == "reached" and (missed or not result.targets):
        reason = f"the run missed {', '.join(missed)}" if missed else "there is no target"
        yield f"outcome: 'reached', although {reason}"
    run, version = record.load_run(result), result.task_version
    if not is_version(run, version):
        yield f"task_version: {run.task.name} has no version {version}"
    unknown = set(result.published) - {row.id for row in published.find_rows(result.spec.task)}
    yield from list_contradicting_words(result)
    if unknown:
        yield f"published: {result.spec.task} has no rows {', '.join(sorted(unknown))}"


def _changed_targets(result: Result) -> Iterator[str]:
    """One line if the targets are not those of the configuration; a run that failed early has none."""
    wanted = result.spec.config["task"].get("targets")
    own = [target.value for target in result.targets]
    early = not own and result.outcome.kind in ("failed", "interrupted")
    if isinstance(wanted, list) and own != wanted and not early:
        yield f"targets: the result has {own}, but the configuration has {wanted}"
    if len({(target.metric, target.higher_is_better) for target in result.targets}) > 1:
        yield "targets: they have different metrics"


def _undefined(result: Result) -> Iterator[str]:
    """One line if the run diverged in an evaluation, but the result says otherwise.

    Outputs that are not finite leave no metric, and end the run. A split without a class, which leaves some metrics
    undefined, does so in each evaluation, and always has a mean loss.
    """
    usual: set[str] | None = None
    for point in result.curve:
        names = {name for name, value in point.metrics.items() if value is None}
        usual = names if usual is None else usual
        if names and len(names) == len(point.metrics):
            if result.outcome.kind != "diverged" or point is not result.curve[-1]:
                yield f"curve: every metric of step {point.step} is undefined, but the run did not diverge there"
                return
        elif wrong := (names - usual) | {name for name in names if name == "loss" or name.endswith("_loss")}:
            yield f"curve: step {point.step} has metrics beside an undefined {', '.join(sorted(wrong))}"
            return


def _miscounted(result: Result) -> Iterator[str]:
    """One line for each number of samples or steps that contradicts the others."""
    steps, size, most = result.steps, result.spec.batch_size or 0, result.spec.config["max_steps"]
    evaluated = [point.step or 0 for point in result.curve]
    counted = [("samples", steps, result.samples)]
    for index, (step, point) in enumerate(zip(evaluated, result.curve, strict=True)):
        counted.append((f"curve.{index}.samples", step, point.samples or 0))
    for place, step, samples in counted:
        if samples != step * size:
            yield f"{place}: the result has {samples}, but {step} steps of {size} samples are {step * size}"
    if any(before >= after for before, after in pairwise(evaluated)):
        yield "curve: step does not increase from point to point"
    last = max(evaluated, default=0)
    if last > steps:
        yield f"curve: its last point is at step {last}, but the run made {steps} steps"
    every, made = result.spec.config["eval_every"], set(evaluated)
    due = chain(range(every, steps, every), [steps] if result.outcome.kind in ("reached", "exhausted") else [])
    lacking = next((step for step in due if step not in made), None)
    if lacking is not None:
        yield f"curve: has no evaluation at step {lacking}, where one was due"
    if result.outcome.kind == "exhausted" and steps != most:
        yield f"outcome: 'exhausted' after only {steps} of {most} steps"
