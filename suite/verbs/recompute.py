"""What a result says, computed again from its configuration, its event log and its own curve."""

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from itertools import pairwise
from typing import Any

from suite import environment, published, record
from suite.contract import Data, Target


def schema_faults(result: Any) -> Iterator[str]:
    """Where a result breaks suite/schema/result.json."""
    import jsonschema

    schema = json.loads(resources.files("suite").joinpath("schema/result.json").read_text())
    for error in jsonschema.Draft202012Validator(schema).iter_errors(result):
        yield f"{error.json_path.removeprefix('$.')}: {error.message}"


def recompute(result: Mapping[str, Any], events: list[dict[str, Any]] | None) -> dict[str, Any]:
    """The result as its log and configuration give it; without a log, as far as its own curve tells."""
    targets = [Target(entry["metric"], entry["value"], entry["higher_is_better"]) for entry in result["targets"]]
    header = {name: result[name] for name in ("execution_id", "fingerprint", "task_version", "environment", "command")}
    data = result["data"]
    known = Data(**{name: value for name, value in data.items() if name != "label"})
    config, facts = result["spec"]["config"], result["environment"]
    device = config.get("device", "cpu")
    header["fingerprint"] = environment.fingerprint(facts, device=device, threads=facts["threads"])
    made = record.result(
        events if events is not None else _told(result),
        config=result["spec"]["config"],
        targets=targets,
        header=header | {"data": record.data_record(known)},
        published=result["published"],
    )
    if events is None:
        untold = ("steps", "samples", "step_seconds", "compile_seconds", "flops")
        made |= {name: result[name] for name in untold if name in result}
        if result["outcome"]["kind"] in ("reached", "exhausted") and "step" in result["outcome"]:
            made["steps"] = result["outcome"]["step"]
    return json.loads(json.dumps(made))


def _told(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Events as far as a result holds them: all but its steps."""
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
    facts["optimizer"] = result.get("optimizer")
    started = [{"event": "started", **segment, "facts": facts | segment} for segment in result["segments"]]
    evaluated = [{"event": "evaluated", **point} for point in result["curve"]]
    decided = [{"event": "decided", **decision} for decision in result.get("decisions", ())]
    return [*started, *decided, *evaluated, {"event": "finished", "outcome": result["outcome"], "facts": facts}]


def differences(recorded: Any, computed: Any, place: str = "") -> Iterator[str]:
    """Every leaf in which two JSON values differ, by its dotted place."""
    pairs: list[tuple[Any, Any, Any]] = []
    if isinstance(recorded, dict) and isinstance(computed, dict):
        pairs = [(key, recorded.get(key), computed.get(key)) for key in recorded.keys() | computed.keys()]
    elif isinstance(recorded, list) and isinstance(computed, list) and len(recorded) == len(computed):
        pairs = [(key, *pair) for key, pair in enumerate(zip(recorded, computed, strict=True))]
    elif recorded != computed and not (recorded != recorded and computed != computed):  # NaN agrees with NaN
        yield f"{place}: {recorded!r} is recorded, {computed!r} comes out"
    for key, one, other in sorted(pairs, key=lambda pair: str(pair[0])):
        yield from differences(one, other, f"{place}.{key}" if place else str(key))


def inconsistent(result: Mapping[str, Any]) -> Iterator[str]:
    """What no log could have given."""
    yield from _miscounted(result) if "baseline" not in result["spec"] else ()
    if any(before["train_seconds"] >= after["train_seconds"] for before, after in pairwise(result["curve"])):
        yield "curve: train_seconds does not rise from point to point"
    missed = [target["label"] for target in result["targets"] if not target["reached"]]
    if result["outcome"]["kind"] == "reached" and (missed or not result["targets"]):
        yield f"outcome: reached, with {', '.join(missed) or 'no target'} missed"
    unknown = set(result["published"]) - {row.id for row in published.rows_for(result["spec"]["task"])}
    if unknown:
        yield f"published: {', '.join(sorted(unknown))}: no such rows of {result['spec']['task']}"


def _miscounted(result: Mapping[str, Any]) -> Iterator[str]:
    """Steps and samples that do not go together."""
    steps, size, most = result["steps"], result["spec"]["batch_size"], result["spec"]["config"]["max_steps"]
    counted = [("samples", steps, result["samples"])]
    counted += [(f"curve.{index}.samples", at["step"], at["samples"]) for index, at in enumerate(result["curve"])]
    for place, step, samples in counted:
        if samples != step * size:
            yield f"{place}: {samples} is recorded, {step} steps of {size} samples are {step * size}"
    if any(before["step"] >= after["step"] for before, after in pairwise(result["curve"])):
        yield "curve: step does not rise from point to point"
    last = max((point["step"] for point in result["curve"]), default=0)
    if last > steps:
        yield f"curve: goes on to step {last}, the run to {steps}"
    if result["outcome"]["kind"] == "exhausted" and steps != most:
        yield f"outcome: exhausted after {steps} of {most} steps"
