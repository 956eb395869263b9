"""The format of results: the committed schema is that of the types, and every committed result is written as read."""

import copy
import json
from pathlib import Path
from typing import Any

import conftest
import jsonschema
import pytest
from stored import find_faults

from suite.record import schema
from suite.record.result import Result

FOLDER = conftest.TESTS.parent / "results"
SAMPLE = min(FOLDER.glob("runs/resnet50/shapes-kfac-jax-s2-*.json"))
TREES = min(path for path in FOLDER.glob("runs/frnn/*.json") if "trees" in path.name)


@pytest.mark.quick
def test_the_committed_schema_is_that_of_the_types() -> None:
    assert schema.PATH.read_text() == schema.render_schema(), "run: python -m suite.record.schema"


def test_every_committed_result_is_written_as_it_was_read() -> None:
    files = [path for name in ("runs", "adaprec") for path in sorted((FOLDER / name).rglob("*.json"))]
    assert len(files) > 800
    for path in files:
        text = path.read_text()
        assert json.dumps(Result.model_validate_json(text).plain()) == json.dumps(json.loads(text)), path


@pytest.mark.quick
@pytest.mark.parametrize(
    ("sample", "path", "value"),
    [
        (SAMPLE, "schema", True),
        (SAMPLE, "hash", "0" * 13),
        (SAMPLE, "weights", None),
        (SAMPLE, "curve.0.wall_seconds", -1.0),
        (SAMPLE, "curve.0.step", None),
        (SAMPLE, "outcome.kind", "interrupted"),
        (SAMPLE, "published", ["a", "a"]),
        (SAMPLE, "further", 1),
        (SAMPLE, "precision", None),
        (SAMPLE, "spec.optimizer", None),
        (SAMPLE, "spec.config.optimizer", {}),
        (SAMPLE, "spec.config.world", 0),
        (TREES, "steps", 1),
        (TREES, "parameters", 5),
        (TREES, "curve.0.step", 5),
        (TREES, "spec.batch_size", 5),
        (TREES, "spec.config.world", 1),
    ],
)
def test_the_types_and_the_schema_refuse_the_same(sample: Path, path: str, value: Any) -> None:
    content = json.loads(sample.read_text())
    changed = copy.deepcopy(content)
    *parents, last = path.split(".")
    node: Any = changed
    for name in parents:
        node = node[int(name)] if isinstance(node, list) else node[name]
    node[last] = value
    validator = jsonschema.Draft202012Validator(json.loads(schema.PATH.read_text()))
    assert validator.is_valid(content) and not find_faults(content)
    assert not validator.is_valid(changed)
    assert bool(find_faults(changed)) == (value != "interrupted"), "an unfinished run has a result in memory"


def test_a_fault_is_one_sentence() -> None:
    content = json.loads(SAMPLE.read_text())
    content["outcome"]["kind"] = "won"
    assert find_faults(content) == [
        "outcome.kind: Input should be 'reached', 'exhausted', 'diverged', 'failed' or 'interrupted'"
    ]


def test_bytes_of_a_kernel_have_their_ratio_in_the_sum_alone() -> None:
    content = json.loads(SAMPLE.read_text())
    content["segments"][0]["bytes"] = {"sent": 9, "by_name": {}, "kernel": {"sent": 9, "ranks": 2}}
    assert not find_faults(content)
