"""Which committed results count for a check, and that few configurations are composed to find them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boards
import conftest
import pytest

from suite.claims import evidence
from suite.claims.claim import Measure, select_claims
from suite.claims.evidence import Found, Results, is_of_run, may_be_of_run, parse_overrides, resolve_decisive
from suite.entries.intake import read_results
from suite.record.record import make_result
from suite.settings import configure

FOLDER = conftest.TESTS.parent / "results" / "runs"
RESULTS, _ = read_results(sorted(FOLDER.rglob("*.json")))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("value", "same", "other"),
    [
        (320, ("320", "320.0", "${x}", "null"), ("20",)),
        (False, ("false", "no"), ("true",)),
        ("empirical", ("empirical", "'empirical'", "null,"), ("sampled",)),
        (0.1, ("0.1", "1e-1"), ("1e-2", "1")),
        (None, ("kfac",), ()),
        ([784, 20], ("kfac",), ()),
    ],
)
def test_only_another_number_or_word_differs(value: Any, same: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert not any(evidence._differs(word, value) for word in same)
    assert all(evidence._differs(word, value) for word in other)


@pytest.mark.parametrize(
    ("scale", "changes", "counts"),
    [
        ("published", {}, True),
        ("published", {"seed": 2}, False),  # a seed by which its settings were chosen
        ("published", {"seed": 2, "trials": 0}, True),
        ("published", {"data": "generated"}, False),
        ("stand-in", {"data": "generated"}, True),
        ("stand-in", {"kind": "interrupted"}, False),
    ],
)
def test_which_results_may_count(scale: str, changes: dict, counts: bool) -> None:
    values = {"seed": 3, "trials": 8, "data": "real", "kind": "reached"} | changes
    content = boards.result(seed=values["seed"] - 3, trials=values["trials"], kind=values["kind"])
    content["data"]["kind"] = values["data"]
    assert evidence._counts(make_result(content), SimpleNamespace(scale=scale)) is counts  # type: ignore[arg-type]


PAPERS = ("ueno2020-kfac", "goldfarb2020-kbfgs", "nado2021-reality-check", "kates-harbeck2019-frnn")
RUNS = sorted(
    {words for _, _, claim in select_claims(PAPERS) for check in claim.checks for words in check.runs.values()}
)  # experiments, explicit choices and values, and a baseline


@pytest.mark.slow
def test_no_result_is_left_out_that_the_composed_configuration_matches() -> None:
    for overrides in RUNS:
        words, wanted = parse_overrides(overrides), resolve_decisive(overrides)
        matching = [result for result in RESULTS if is_of_run(wanted, result)]
        assert all(may_be_of_run(words, result) for result in matching), overrides


@pytest.mark.quick
def test_a_network_does_not_count_as_a_baseline_on_its_data() -> None:
    trees = resolve_decisive("+task=frnn task.data=simulated baseline=trees")
    network = resolve_decisive("+task=frnn task.data=simulated optimizer=adamw eval_every=20")
    results = [result for result in RESULTS if result.spec.task == "frnn" and not result.spec.baseline]
    assert results and not any(is_of_run(trees, result) for result in results)
    assert any(is_of_run(network, result) for result in results)


def _seeds(found: Found) -> list[int]:
    return [result.spec.seed for _, result in found]


def test_what_no_result_can_match_is_not_composed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    composed = []

    def resolve(words):
        composed.append(words)
        return configure.resolve(words)

    monkeypatch.setattr(evidence, "resolve", resolve)
    evidence._composed.cache_clear()
    result = next((FOLDER / "resnet50").glob("digits-sgd-torch-s3-*.json"))
    (tmp_path / "result.json").write_text(result.read_text())
    known = Results([tmp_path])
    (check, *_) = (
        check for _, _, claim in select_claims(["nado2021-reality-check"]) for check in claim.checks if check.stands_for
    )
    sgd = "+task=resnet50 task.data=digits optimizer=sgd"
    for other in ("experiment=A1-12", f"{sgd} backend=jax", f"{sgd} max_steps=7", sgd.replace("digits", "shapes")):
        assert not known.of(other, check)
    assert not composed
    assert _seeds(known.of(sgd, check)) == _seeds(known.of(f"{sgd} backend=torch", check)) == [3]
    assert len(composed) == 1


def test_the_folders_can_be_chosen(tmp_path: Path) -> None:
    (claim,) = [claim for _, _, claim in select_claims(["lessard2016-heavy-ball-cycle"])]
    assert evidence.collect_evidence(claim, claim.checks[0], Results())
    assert not evidence.collect_evidence(claim, claim.checks[0], Results([tmp_path]))


def test_seconds_are_those_of_one_kind_of_machine(tmp_path: Path) -> None:
    for optimizer in ("kfac", "sgd"):
        for seed in (26, 27, 28):
            result = json.loads(
                next((FOLDER / "resnet50").glob(f"shapes-{optimizer}-torch-s{seed}-*.json")).read_text()
            )
            result["environment"]["cpu"] = "the other" if seed == 27 else "the usual"
            result["environment"].pop("cpu_kind", None)
            (tmp_path / f"{optimizer}-{seed}.json").write_text(json.dumps(result))
    known = Results([tmp_path])
    (claim,) = [claim for _, _, claim in select_claims(["ueno2020-sgd-accuracy"])]
    check = next(check for check in claim.checks if check.name == "shapes")
    assert [found.seed for found in evidence.collect_evidence(claim, check, known)] == [26, 28]
    remark = evidence.name_differences(check, known)
    assert "the other, 2 cores and the usual, 2 cores" in remark and "threads" not in remark
    steps = check.model_copy(update={"measure": Measure(steps_to="top1>=90")})
    assert [found.seed for found in evidence.collect_evidence(claim, steps, known)] == [26, 27, 28]
    assert not evidence.name_differences(steps, known)
