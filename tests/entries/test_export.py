"""Exports follow the formats of other projects, and contain nothing that the result does not.

EVAL_SCHEMA may name the schema of evaleval/every_eval_ever (every_eval_ever/schemas/eval.schema.json), and
mlperf_logging may be installed; then these judge, too. Without them the parts below do, which were read there.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import conftest
import jsonschema
import pytest
from tiny_runs import Call

from suite.contract import UserError
from suite.entries import export_eval, export_mlperf
from suite.entries.export_eval import Source
from suite.record import record
from suite.record.record import make_result
from suite.settings.run import Run

RUNS = conftest.TESTS.parent / "results" / "runs"
SAMPLES = sorted(path for task in RUNS.iterdir() for path in sorted(task.glob("*-s0-*.json"))[:2])
SAMPLE = RUNS / "resnet50" / "shapes-kfac-jax-s2-b8e5fcbb50a7.json"
SOURCE = Source("Some Lab", "third_party", 1795000000)
# mlperf_logging 4.1.68: constants.py has these keys; mllog.py writes these fields in this order
KEYS = {"seed", "global_batch_size", "gradient_accumulation_steps", "opt_name", "opt_base_learning_rate", "run_stop"}
KEYS |= {"opt_weight_decay", "opt_gradient_clip_norm", "opt_learning_rate_warmup_steps", "train_samples", "run_start"}
KEYS |= {"eval_samples", "eval_accuracy", "submission_platform", "micro_batch_size", "config_filename"}
KEYS |= {f"lowest_numerical_precision_in_{part}" for part in ("linear", "attn", "comm")}
KEYS |= {f"{part}_parallelism" for part in ("tensor", "pipeline", "context", "expert")}
LINE = re.compile(
    r':::MLLOG \{"namespace": "", "time_ms": \d+, "event_type": "(INTERVAL_START|INTERVAL_END|POINT_IN_TIME)", '
    r'"key": "[a-z_]+", "value": [^{]+, "metadata": \{.*\}\}'
)
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
MANDATORY = ["schema_version", "evaluation_id", "retrieved_timestamp", "source_metadata", "model_info", "eval_library"]
# every_eval_ever 0.3.0, the parts that a record of this suite can have
PARTS = {
    "type": "object",
    "additionalProperties": False,
    "required": [*MANDATORY, "evaluation_results"],
    "properties": {
        "schema_version": {"const": "0.3.0"},
        "evaluation_id": {"type": "string"},
        "retrieved_timestamp": {"type": "string", "pattern": r"^\d+$"},
        "source_metadata": {
            "required": ["source_type", "source_organization_name", "evaluator_relationship"],
            "properties": {
                "source_type": {"enum": ["documentation", "evaluation_run"]},
                "source_organization_name": {"type": "string"},
                "evaluator_relationship": {"enum": ["first_party", "third_party", "collaborative", "other"]},
                "additional_details": TEXTS,
            },
        },
        "eval_library": {"required": ["name", "version"], "properties": {"additional_details": TEXTS}},
        "model_info": {
            "required": ["name", "id", "additional_details"],
            "properties": {
                "additional_details": {
                    **TEXTS,
                    "required": ["deployment_type", "model_availability"],
                    "properties": {
                        "deployment_type": {"enum": ["self_deployed", "externally_managed", "unknown"]},
                        "model_availability": {"enum": ["open_weights", "closed_weights", "unknown"]},
                    },
                }
            },
        },
        "evaluation_results": {
            "type": "array",
            "items": {
                "required": ["evaluation_name", "source_data", "metric_config", "score_details"],
                "properties": {
                    "source_data": {
                        "required": ["dataset_name", "source_type"],
                        "properties": {"source_type": {"const": "other"}, "additional_details": TEXTS},
                    },
                    "metric_config": {
                        "required": ["lower_is_better"],
                        "properties": {"lower_is_better": {"type": "boolean"}},
                        "dependentRequired": {"score_type": ["min_score", "max_score"]},
                    },
                    "score_details": {
                        "required": ["score"],
                        "properties": {"score": {"type": "number"}, "details": TEXTS},
                    },
                },
            },
        },
    },
}


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def entries(path: Path) -> list[dict[str, Any]]:
    lines = list(export_mlperf.format_log(make_result(read(path))))
    assert all(LINE.fullmatch(line) for line in lines)
    return [json.loads(line.removeprefix(export_mlperf.PREFIX)) for line in lines]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_each_line_of_an_mlperf_log_has_its_form_and_a_known_key(path: Path) -> None:
    log = entries(path)
    assert {entry["key"] for entry in log} <= KEYS
    assert [entry["time_ms"] for entry in log] == sorted(entry["time_ms"] for entry in log)
    assert not {entry["key"] for entry in log} & {key for keys in export_mlperf.LACKING for key in keys.split(", ")}


def test_an_mlperf_log_has_the_values_of_the_result() -> None:
    result, log = read(SAMPLE), entries(SAMPLE)
    values = {entry["key"]: entry["value"] for entry in log}
    assert values["seed"] == 2 and values["global_batch_size"] == 64 and values["opt_base_learning_rate"] == 0.017
    assert "opt_gradient_clip_norm" not in values  # this run does not clip
    curve = [entry for entry in log if entry["key"] == "eval_accuracy"]
    assert [entry["value"] for entry in curve] == [point["metrics"]["top1"] for point in result["curve"]]
    assert [entry["metadata"]["samples_count"] for entry in curve] == [point["samples"] for point in result["curve"]]
    assert log[-1]["key"] == "run_stop" and log[-1]["metadata"]["status"] == "success"
    assert log[-1]["time_ms"] == round(result["wall_seconds"] * 1000)


@pytest.mark.parametrize("warmup, steps", [(10, 10), (0, 0), (0.1, None)])
def test_a_warmup_that_is_a_share_of_the_run_is_left_out(warmup: float, steps: int | None) -> None:
    result = read(SAMPLE)
    result["spec"]["config"]["schedule"]["warmup"] = warmup
    log = [
        json.loads(line.removeprefix(export_mlperf.PREFIX)) for line in export_mlperf.format_log(make_result(result))
    ]
    assert {entry["key"]: entry["value"] for entry in log}.get("opt_learning_rate_warmup_steps") == steps


def test_a_run_that_missed_its_target_is_no_success_in_mlperfs_log() -> None:
    result = read(SAMPLE) | {"outcome": {"kind": "exhausted", "step": 290}}
    last = json.loads(list(export_mlperf.format_log(make_result(result)))[-1].removeprefix(export_mlperf.PREFIX))
    assert last["metadata"]["status"] == "aborted"


def test_mlperfs_own_parser_and_constants_know_the_log() -> None:
    constants = pytest.importorskip("mlperf_logging.mllog.constants")
    parser = pytest.importorskip("mlperf_logging.compliance_checker.mlp_parser.ruleset_510")
    known = {value for value in vars(constants).values() if isinstance(value, str)}
    for path in SAMPLES:
        lines = list(export_mlperf.format_log(make_result(read(path))))
        parsed, errors = parser.parse_generator(lines)
        assert not errors and len(parsed) == len(lines) and {line.key for line in parsed} <= known


@pytest.mark.parametrize("ruleset", ["5.1.0", "6.1.0"])
def test_mlperfs_own_checker_misses_what_the_export_names_and_nothing_else(tmp_path: Path, ruleset: str) -> None:
    pytest.importorskip("mlperf_logging", reason="install the extra mlperf")
    onebit = read(SAMPLE)
    onebit["spec"]["config"]["comm"]["codec"] = {"module": "suite.comm.codecs.onebit"}
    for result in (read(SAMPLE), onebit):
        (tmp_path / "log.txt").write_text("\n".join(export_mlperf.format_log(make_result(result))) + "\n")
        command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training"]
        done = subprocess.run(
            [*command, "--ruleset", ruleset, "log.txt"], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        lines = (done.stdout + done.stderr).splitlines()
        missed = {key for line in lines if line.startswith("Required") for key in re.findall(r"'(\w+)'", line)}
        assert missed, "the checker found nothing, or changed its words"
        named = export_mlperf.list_lacking(make_result(result))
        demanded = {key for keys, reason in named.items() if ruleset in reason for key in keys.split(", ")}
        # without a division, the checker does not read the rules that demand a benchmark
        assert missed == demanded - {"submission_benchmark"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "fp32"),
        ({"codec": {"module": "suite.comm.codecs.bfloat16"}}, "bfloat16"),
        ({"codec": {"module": "suite.comm.codecs.minifloat", "exponent": 5, "mantissa": 2, "scale": "absmax"}}, "fp8"),
        ({"kinds": {"linear": {"codec": {"module": "suite.comm.codecs.int8"}}}}, "int8"),
        ({"codec": {"module": "suite.comm.codecs.onebit"}}, None),
        ({"codec": {"module": "suite.comm.codecs.minifloat", "exponent": 6, "mantissa": 9, "scale": "none"}}, None),
    ],
)
def test_mlperfs_precision_of_the_communication_is_the_lowest_of_all_codecs(
    changes: dict[str, Any], expected: str | None
) -> None:
    result = read(SAMPLE)
    result["spec"]["config"]["comm"] |= changes
    run = record.load_run(make_result(result))
    assert isinstance(run, Run)
    assert export_mlperf._disclosures(make_result(result), run)["lowest_numerical_precision_in_comm"] == expected
    named = "lowest_numerical_precision_in_comm" in export_mlperf.list_lacking(make_result(result))
    assert named == (expected is None)


def judges() -> list[dict[str, Any]]:
    named = os.environ.get("EVAL_SCHEMA")
    return [PARTS, *([read(Path(named))] if named else [])]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_record_of_every_eval_ever_follows_its_schema(path: Path) -> None:
    written = json.loads(json.dumps(export_eval.eval_record(make_result(read(path)), SOURCE), allow_nan=False))
    for schema in judges():
        validator = jsonschema.Draft202012Validator(schema)
        assert not [error.message for error in validator.iter_errors(written)]


def test_a_record_has_the_last_score_of_each_metric_with_a_direction() -> None:
    result = read(SAMPLE)
    (entry,) = export_eval.eval_record(make_result(result), SOURCE)["evaluation_results"]
    assert entry["score_details"]["score"] == result["curve"][-1]["metrics"]["top1"]
    assert entry["metric_config"]["lower_is_better"] is False and entry["metric_config"]["max_score"] == 100
    assert export_eval.left_out(make_result(result)) == ["loss"]
    lower = read(next((RUNS / "autoencoder").glob("curves-soap-torch-s0-*.json")))
    (entry,) = export_eval.eval_record(make_result(lower), SOURCE)["evaluation_results"]
    assert entry["metric_config"] == {"metric_name": "loss", "lower_is_better": True}  # no known range


def test_a_result_without_a_score_has_no_record() -> None:
    with pytest.raises(UserError, match="evaluation_results is mandatory and would be empty"):
        export_eval.eval_record(make_result(read(SAMPLE) | {"curve": []}), SOURCE)


def test_the_command_says_which_mandatory_field_is_missing_and_what_was_left_out(suite: Call, tmp_path: Path) -> None:
    code, text = suite("export", "every-eval-ever", str(SAMPLE))
    assert code == 2 and "source_organization_name is mandatory" in text and "--organization NAME" in text
    code, text = suite("export", "every-eval-ever", str(SAMPLE), "--organization", "Some Lab")
    assert code == 2 and "evaluator_relationship is mandatory" in text and "--relationship first_party|" in text
    words = (
        "--organization",
        "Some Lab",
        "--relationship",
        "third_party",
        "--created",
        "1795000000",
        "--out",
        "records",
    )
    code, text = suite("export", "every-eval-ever", str(SAMPLE), *words)
    assert code == 0 and "left out loss: no target" in text
    written = tmp_path / "records" / "resnet50" / SAMPLE.name
    assert read(written) == export_eval.eval_record(make_result(read(SAMPLE)), SOURCE)


def test_the_command_prints_one_log_or_writes_several(suite: Call, tmp_path: Path) -> None:
    code, text = suite("export", "mlperf", str(SAMPLE))
    assert code == 0 and text.count(":::MLLOG") == len(entries(SAMPLE)) and "left out submission_benchmark" in text
    others = [str(path) for path in SAMPLES[:2]]
    code, text = suite("export", "mlperf", *others)
    assert code == 2 and "2 runs: use --out DIR" in text
    assert suite("export", "mlperf", *others, "--out", "logs")[0] == 0
    assert len(list((tmp_path / "logs").rglob("*.txt"))) == 2


def test_the_command_rejects_what_is_no_result(suite: Call, tmp_path: Path) -> None:
    (tmp_path / "RUN").mkdir()
    assert "RUN: contains no result.json" in suite("export", "mlperf", "RUN")[1]
    wrong = read(SAMPLE) | {"steps": 5}
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    code, text = suite("export", "mlperf", "wrong.json")
    assert code == 2 and "wrong.json: " in text and "steps" in text
