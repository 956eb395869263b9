"""Results that the leaderboard accepts, and effects of hostile or damaged files on the site."""

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from boards import result, site
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_site import check_links

from suite.entries import intake

ROOT = Path(__file__).parents[1]


def read(folder: Path, *texts: str):
    paths = []
    for index, text in enumerate(texts):
        paths.append(folder / f"{index}.json")
        paths[-1].write_bytes(text.encode("utf-8", "surrogatepass"))
    return intake.read_results(paths)


def changed(path: str, value: Any) -> dict[str, Any]:
    """A result with another value at a dotted path."""
    content = copy.deepcopy(result())
    *parents, last = path.split(".")
    part: Any = content
    for name in parents:
        part = part[int(name)] if isinstance(part, list) else part[name]
    part[last] = value
    return content


def test_every_committed_result_is_accepted():
    files = sorted((ROOT / "results" / "runs").rglob("*.json"))
    results, left_out = intake.read_results(files)
    assert len(results) == len(files) > 0 and left_out == []


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("spec.task", 5, "spec.task: Input should be a valid string"),
        ("spec.task", "", "spec.task: String should have at least 1 character"),
        ("spec.seed", -1, "spec.seed"),
        ("spec.seed", True, "spec.seed"),
        ("spec.world", 0, "spec.world"),
        ("spec.batch_size", None, "spec: needs optimizer, comm, backend, world and batch_size"),
        ("spec.config.optimizer", {}, "spec.config.optimizer.name, spec.config.optimizer.module are missing"),
        ("curve.0.step", 2**60, "curve.0.step"),
        ("curve.0.step", None, "curve: every evaluation needs a step"),
        ("curve.0.metrics", {"top1": "high"}, "curve.0.metrics.top1"),
        ("targets.0.step", None, "targets: a reached target needs a step"),
        ("targets.0.train_seconds", None, "a reached target needs train_seconds"),
        ("targets.0.train_seconds", -1.0, "targets.0.train_seconds"),
        ("targets.0.value", 1e400, "targets.0.value"),
        ("outcome.kind", "won", "outcome.kind"),
        ("tuning.trials", 0.5, "tuning.trials"),
        ("published", "A1-12", "published"),
        ("schema", 3, "its schema is 3; this suite reads 2"),
    ],
)
def test_a_field_of_the_wrong_type_or_range_is_named(tmp_path, path, value, told):
    text = json.dumps(changed(path, value)).replace("Infinity", "1e400")
    results, (line,) = read(tmp_path, text)
    assert results == [] and told in line and "0.json: not a result: " in line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Expecting value"),
        ("[]", "does not contain an object"),
        ("{}", "schema is missing"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema": NaN}', "NaN is not JSON"),
        ('{"schema": 1, "x": ' + "9" * 5000 + "}", "limit"),
        (json.dumps(changed("command", "half \ud800 pair")), "surrogates not allowed"),
        (json.dumps(changed("spec.config.deep", eval("[" * 60 + "]" * 60))), "nested more than 20 levels"),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path, text, told):
    results, (line,) = read(tmp_path, text)
    assert results == [] and told in line


HOSTILE = st.one_of(
    st.sampled_from(
        [
            "../../x",
            "<script>alert(1)</script>",
            "\"'><img src=x onerror=alert(1)>",
            "{{ 7*7 }}",
            "</style>",
            "a|b",
            "%00",
        ]
    ),
    st.text(max_size=40),
    st.text(min_size=300, max_size=2000),
)
TEXTS = [
    "spec.task",
    "spec.variant",
    "spec.scale",
    "spec.comm",
    "spec.backend",
    "spec.config.optimizer.name",
    "command",
]
TEXTS += [
    "data.name",
    "data.identity",
    "data.note",
    "environment.cpu",
    "segments.0.device",
    "tuning.source",
    "task_version",
]
TEXTS += ["targets.0.metric", "precision"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
QUICK = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(st.lists(st.tuples(st.sampled_from(TEXTS), HOSTILE), min_size=1, max_size=4))
def test_hostile_texts_stay_text_and_inside_the_folder(changes):
    content = copy.deepcopy(result())
    for path, value in changes:
        *parents, last = path.split(".")
        part: Any = content
        for name in parents:
            part = part[int(name)] if isinstance(part, list) else part[name]
        part[last] = value
    content["spec"]["config"]["setting"] = changes[0][1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results, left_out = read(folder, json.dumps(content))
        assert len(results) + len(left_out) == 1
        (folder / "0.json").unlink()
        site([*results, result(optimizer="sgd")], folder / "site", unreadable=left_out)
        assert [path.name for path in folder.iterdir()] == ["site"]
        for page in check_links(folder / "site").values():
            assert page.tags.count("script") == 1 and "img" not in page.tags and page.tags.count("style") == 0
        assert all(path.stat().st_size <= 500_000 for path in (folder / "site").rglob("*.html"))


@QUICK
@given(st.sampled_from([*TEXTS, "spec", "data", "curve", "targets", "outcome", "environment", "segments", "tuning",
                        "parameters", "spec.seed", "spec.world", "curve.0.metrics", "targets.0.value", "published",
                        "spec.config", "spec.config.task", "data.samples", "targets.0.step"]), ANYTHING)  # fmt: skip
def test_any_value_anywhere_is_either_shown_or_named(path, value):
    with tempfile.TemporaryDirectory() as name:
        results, left_out = read(Path(name), json.dumps(changed(path, value)))
        assert len(results) + len(left_out) == 1
        site(results, Path(name) / "site", unreadable=left_out)
        check_links(Path(name) / "site")
