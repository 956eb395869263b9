"""`suite verify`: runs again, and agrees or says where it does not."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import conftest
import pytest
from tiny_runs import PATH, Call, copied

from suite.launch import replay
from suite.record import environment
from suite.settings import configure


def test_verify_agrees_bit_for_bit(suite: Call, one: Path) -> None:
    code, text = suite("verify", str(one / "result.json"), "--trust", "--steps", "8")
    assert code == 0, text
    assert "to step 8: losses (8) and evaluations (2) agree bit for bit" in text


def test_verify_takes_a_run_directory(suite: Call, one: Path, tmp_path: Path) -> None:
    code, text = suite("verify", str(one), "--steps", "0", "--trust")
    assert code == 0, text
    code, text = suite("verify", str(tmp_path))
    assert code == 2 and f"{tmp_path}/result.json: no such file" in text


@pytest.mark.slow
def test_verify_runs_the_same_number_of_ranks(suite: Call, two: Path) -> None:
    code, text = suite("verify", str(two / "result.json"), "--trust", "--steps", "4")
    assert code == 0 and "losses (4) and evaluations (1) agree" in text, text


def test_verify_imports_nothing_foreign_without_trust(suite: Call, one: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    sys.path.insert(0, str(tmp_path))
    try:
        for key in ("module", "torch"):
            path = copied(one, tmp_path / key, **{f"spec__config__optimizer__{key}": "evil"}, log=False)
            code, text = suite("verify", str(path))
            assert code == 2 and "evil" in text and "--trust" in text
            assert suite("verify", str(path), "--steps", "0")[0] == 1  # the hash differs
        (tmp_path / "sly").mkdir()
        (tmp_path / "sly" / "__init__.py").write_text("")
        (tmp_path / "sly" / "settings.py").write_text("raise SystemExit('imported')")
        path = copied(one, tmp_path / "declared", spec__config__optimizer__module="sly", log=False)
        code, text = suite("verify", str(path), "--steps", "0")
        assert code == 2 and "sly" in text and "--trust" in text
    finally:
        sys.path.remove(str(tmp_path))
    assert not {"evil", "sly", "sly.settings"} & set(sys.modules)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"hash": "0" * 12}, "hash: the result has '000000000000'"),
        ({"spec__seed": 5}, "spec.seed: the result has 5, recomputed 0"),
        ({"spec__config__optimizer__lr": 0.5}, "hash"),
        ({"curve__1__metrics__top1": 99.0}, "curve.1.metrics.top1: the result has 99.0"),
        ({"targets__0__value": 1}, "targets.0.reached"),
        ({"targets__1__step": 1}, "targets.1.step: the result has 1"),
        ({"step_seconds__p50": 1e-6}, "step_seconds.p50"),
        ({"outcome__kind": "reached"}, "outcome.kind: the result has 'reached', recomputed 'exhausted'"),
        ({"data__label": "real:tiny@1"}, "data.label"),
        ({"published": ["A1-12"]}, "published: tiny has no rows A1-12"),
        ({"samples": 1}, "samples: the result has 1, but 12 steps of 16 samples are 192"),
        ({"fingerprint": "0" * 16}, "fingerprint: the result has '0000000000000000'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_verify_finds_a_changed_number(
    suite: Call, one: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    code, text = suite("verify", str(copied(one, tmp_path / "a", **changes)), "--steps", "0")
    assert code == 1 and says in text, text


def test_verify_recomputes_from_the_result_alone(suite: Call, one: Path, tmp_path: Path) -> None:
    path = copied(one, tmp_path / "whole", log=False)
    code, text = suite("verify", str(path), "--trust", "--steps", "1")
    assert code == 0 and "to step 4: losses (0) and evaluations (1) agree bit for bit" in text, text
    for changes, says in (
        ({"curve__2__samples": 1}, "curve.2.samples: the result has 1"),
        ({"targets__1__reached": True}, "targets.1: a reached target needs train_seconds"),
        ({"curve__0__step": 9}, "curve: step does not increase"),
        ({"steps": 13, "samples": 208}, "steps: the result has 13, recomputed 12"),
        ({"curve__0__train_seconds": 1e6}, "curve: train_seconds does not increase"),
        ({"steps": 8, "samples": 128}, "curve: its last point is at step 12, but the run made 8 steps"),
        ({"steps": 8, "samples": 128}, "outcome: 'exhausted' after only 8 of 12 steps"),
        ({"outcome__kind": "reached"}, "outcome: 'reached', although the run missed top1_60, top1_80"),
    ):
        path = copied(one, tmp_path / "changed", log=False, **changes)
        code, text = suite("verify", str(path), "--steps", "0")
        assert code == 1 and says in text, text


def test_verify_allows_rounding_elsewhere_but_no_other_run(
    suite: Call, one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded events with one loss changed stand for a run on another machine."""
    recorded = [json.loads(line) for line in (one / "events.jsonl").read_text().splitlines()]
    result = json.loads((one / "result.json").read_text())
    there = result["environment"] | {"cpu": "another"}
    known = environment.compute_fingerprint(there, device=result["spec"]["config"]["device"], threads=there["threads"])
    far = copied(one, tmp_path / "far", fingerprint=known, environment__cpu="another")
    near = copied(one, tmp_path / "near")

    def verified(path: Path, step: int, factor: float) -> tuple[int, str]:
        made = [dict(event) for event in recorded]
        changed = next(event for event in made if event["event"] == "step" and event["step"] == step)
        changed["loss"] *= factor
        monkeypatch.setattr(replay, "first_steps", lambda config, steps: made)
        return suite("verify", str(path), "--trust")

    code, text = verified(far, 1, 1 + 1e-6)
    assert code == 0 and "losses (10)" in text and "different here: cpu" in text, text
    code, text = verified(far, 1, 1.001)
    assert code == 1 and "loss of step 1" in text
    assert verified(far, 4, 1.001)[0] == 0 and verified(far, 10, 1.3)[0] == 1
    code, text = verified(near, 4, 1 + 1e-6)
    assert code == 1 and "they must be equal bit for bit" in text
    assert verified(near, 4, 1)[0] == 0
    recorded = recorded[:3]  # a rerun that ends early
    code, text = verified(far, 1, 1)
    assert code == 1 and "step 3: the result has it, but the run here ended before it" in text


def test_verify_says_where_a_log_is_damaged(suite: Call, one: Path, tmp_path: Path) -> None:
    path = copied(one, tmp_path / "cut")
    log = path.parent / "events.jsonl"
    log.write_text(log.read_text()[:2000] + "\n")
    code, text = suite("verify", str(path), "--steps", "0")
    assert code == 2 and "events.jsonl: damaged" in text
    log.write_text("")
    code, text = suite("verify", str(path), "--steps", "0")
    assert code == 1 and "not the log of a complete run" in text


def test_verify_compares_with_the_task_that_is_here(suite: Call, one: Path, tmp_path: Path) -> None:
    path = copied(one, tmp_path / "data", data__identity="2", data__label="generated:tiny@2")
    code, text = suite("verify", str(path), "--trust", "--steps", "1")
    assert code == 1 and "data.identity: the result has '2', recomputed '1'" in text
    path = copied(one, tmp_path / "version", task_version="0")
    code, text = suite("verify", str(path), "--trust")
    assert code == 2 and "version 0 of the task" in text


def test_verify_takes_an_identity_without_the_sizes_for_the_same_data(suite: Call, one: Path, tmp_path: Path) -> None:
    """Generated data had its version alone in results that are older; the tiny task has it still."""
    train, valid = json.loads((one / "result.json").read_text())["data"]["samples"].values()
    names = {"data__identity": f"1/{train}-{valid}", "data__label": f"generated:tiny@1/{train}-{valid}"}
    code, text = suite("verify", str(copied(one, tmp_path / "sized", **names)), "--trust", "--steps", "1")
    assert code == 0, text


def test_verify_holds_to_the_schema(suite: Call, one: Path, tmp_path: Path) -> None:
    code, text = suite("verify", str(copied(one, tmp_path / "more", speed=9)))
    assert code == 1 and "speed: unknown entry" in text
    code, text = suite("verify", str(copied(one, tmp_path / "kind", outcome__kind="fast")))
    assert code == 1 and "outcome.kind: Input should be 'reached', 'exhausted', 'diverged', 'failed'" in text
    code, text = suite("verify", str(copied(one, tmp_path / "later", schema=3)))
    assert code == 2 and "not a result of schema 2 (its schema is 3)" in text
    (tmp_path / "none.json").write_text("{")
    assert suite("verify", str(tmp_path / "none.json"))[0] == 2


def test_first_steps_are_a_long_run_stopped_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)
    directory = conftest.OUTSIDE / "conf"
    config = configure.resolve(["task=tiny", "max_steps=20000", "eval_every=5000", "threads=1"], directory)
    since = time.monotonic()
    events = replay.first_steps(config, 3)
    steps = [event for event in events if event["event"] == "step"]
    assert 3 <= len(steps) < 19000 and time.monotonic() - since < 60
    assert steps[2]["hyper"]["lr"] == pytest.approx(0.05 * 3 / 10)  # warm-up
    assert events[-1]["outcome"]["kind"] == "interrupted"
