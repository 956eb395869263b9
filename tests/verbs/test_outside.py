"""Verbs with a task and an optimizer from outside the tree whose YAML files have alternatives of every kind."""

import json
from pathlib import Path

import pytest
import yaml
from tiny_runs import CONF, Call

TINIER = (*CONF, "task=tinier", "threads=1")
SHORT = (*TINIER, "track=none", "max_steps=2", "eval_every=2")


def runs(folder: Path) -> list[tuple[str, int]]:
    """Return the optimizer and the number of targets of each run below a folder."""
    found = [json.loads(path.read_text()) for path in folder.glob("runs/*/*/result.json")]
    return sorted((result["spec"]["optimizer"], len(result["targets"])) for result in found)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], [("secant", 1)]),
        (["task.variant=split", "optimizer=sgd"], [("sgd", 1)]),
        (["-m", "task.data=easy,hard"], [("secant", 1), ("secant", 2)]),
    ],
    ids=["run", "run-of-a-variant", "sweep"],
)
def test_runs_take_their_values_from_the_alternatives(
    suite: Call, tmp_path: Path, words: list[str], expected: list[tuple[str, int]]
) -> None:
    code, text = suite(*SHORT, *words)
    assert code == 0, text
    assert runs(tmp_path) == expected


def test_a_plan_and_a_list_of_data_read_the_alternatives(suite: Call) -> None:
    code, text = suite("plan", *TINIER, "scale=gpu", "device=cpu")
    assert code == 0 and "steps       40 at most, of 32 samples" in text and "top1>=80" in text, text
    code, text = suite("data", "tinier", *CONF)
    assert code == 0 and text.splitlines()[:2] == [
        f"{name}      generated, by seed   tiny: 1,000,000 train, 22 valid; generated:tiny@1"
        for name in ("easy", "hard")
    ]


def test_tune_searches_the_range_of_an_outside_optimizer(suite: Call, tmp_path: Path) -> None:
    words = ("max_steps=1", "trials=2", "seeds=1", "runs=2", "--misses", "--out", "mine.yaml")
    code, text = suite("tune", *TINIER, *words)
    assert code == 1 and "written: mine.yaml" in text, text
    tried = yaml.safe_load((tmp_path / "mine.yaml").read_text())["tuned"]["easy"]["tried"]
    assert tried[0]["optimizer.lr"] == 0.1 and 0.01 <= tried[1]["optimizer.lr"] <= 1.0
