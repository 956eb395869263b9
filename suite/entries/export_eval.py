"""Writes a result as a record of Every Eval Ever, schema 0.3.0 (every_eval_ever/schemas/eval.schema.json, evaleval).

The schema describes evaluations of language models. A result becomes the last evaluation of the trained network on the
task's validation split.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from suite.contract import UserError
from suite.entries.check_result import find_range
from suite.entries.submission import name_of
from suite.record import record
from suite.record.result import Result

SCHEMA = "0.3.0"
Relationship = Literal["first_party", "third_party", "collaborative", "other"]
RELATIONSHIPS: tuple[Relationship, ...] = get_args(Relationship)


@dataclass(frozen=True)
class Source:
    """Facts that the schema demands and a result lacks.

    Attributes:
        organization: who publishes the record.
        relationship: of the evaluator to the developer of the method.
        created: when the record is written, in seconds since 1970.
    """

    organization: str
    relationship: str
    created: int


def eval_record(result: Result, source: Source) -> dict[str, Any]:
    """Return the record of a result.

    Args:
        result: contents of a result.json.
        source: what it does not say.

    Raises:
        UserError: if no metric of the last evaluation can be written.
    """
    spec, made = result.spec, result.environment
    entries = list(_results(result))
    if not entries:
        reason = "no metric has both a value at the last evaluation and a target, which says whether lower is better"
        raise UserError(f"evaluation_results is mandatory and would be empty: {reason}")
    model = f"{_slug(source.organization)}/{spec.task}-{name_of(result).stem}"
    return {
        "schema_version": SCHEMA,
        "evaluation_id": f"{spec.task}/{model}/{source.created}",
        "retrieved_timestamp": str(source.created),
        "source_metadata": {
            "source_name": "Training Reproducibility Suite",
            "source_type": "evaluation_run",
            "source_organization_name": source.organization,
            "evaluator_relationship": source.relationship,
            "additional_details": _texts({"execution_id": result.execution_id, "command": result.command}),
        },
        "eval_library": {
            "name": "training-reproducibility-suite",
            "version": made.suite,
            "additional_details": _texts({"commit": made.commit, "uncommitted_changes": made.dirty}),
        },
        "model_info": {
            "name": f"{spec.task} {spec.variant}, {record.method_of(spec)}, seed {spec.seed}",
            "id": model,
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown",
                **_texts({name: getattr(spec, name) for name in ("scale", "comm", "backend", "world", "batch_size")}),
                **_texts({name: getattr(result, name) for name in ("parameters", "steps", "train_seconds", "hash")}),
            },
        },
        "evaluation_results": entries,
    }


def left_out(result: Result) -> list[str]:
    """Metrics of the last evaluation that a record cannot have, because nothing says whether lower is better."""
    known = {target.metric for target in result.targets}
    return sorted(set(result.curve[-1].metrics) - known) if result.curve else []


def _results(result: Result) -> Iterator[dict[str, Any]]:
    """One entry for each metric that has a target."""
    directions = {target.metric: target.higher_is_better for target in result.targets}
    data = result.data
    for metric, higher_is_better in directions.items() if result.curve else ():
        last = result.curve[-1]
        value = last.metrics.get(metric)
        if value is None:
            continue
        config: dict[str, Any] = {"metric_name": metric, "lower_is_better": not higher_is_better}
        limits = find_range(metric)
        if limits is not None and limits[1] < float("inf"):
            config |= {"score_type": "continuous", "min_score": limits[0], "max_score": limits[1]}
        described = {
            "kind": data.kind,
            "identity": data.identity,
            "validation_samples": data.samples.get("valid"),
        }
        yield {
            "evaluation_name": f"{result.spec.task} {metric}",
            "source_data": {
                "dataset_name": data.name,
                "source_type": "other",
                "additional_details": _texts(described),
            },
            "metric_config": config,
            "score_details": {
                "score": value,
                "details": _texts({name: value for name, value in asdict(last).items() if name != "metrics"}),
            },
        }


def _texts(values: dict[str, Any]) -> dict[str, str]:
    """Values as texts, which is all that additional details may be; absent ones are left out."""
    return {name: str(value) for name, value in values.items() if value is not None}


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"
