"""K-FAC's ablation, table A8: each preset adds one way of saving to the one before; earlier works are sums of these."""

import re
from typing import Any

import conftest
import engines
import numpy as np
import pytest
from engines import advance, config, engine, weights

from suite import published
from suite.contract import UserError
from suite.launch.job import make_task
from suite.projection import project
from suite.settings import configure
from suite.settings.run import Run

ROWS = ("distributed", "symmetric", "float21", "overlap", "hierarchical", "stale")
TABLES = (conftest.TESTS.parent / "docs" / "kfac.md").read_text()
PRINTED = [
    (row, words.split())
    for rows, words in re.findall(r"^\| (A8-[^|]+) \|[^|]*\| `([^`]+)` \|$", TABLES, re.MULTILINE)
    for row in rows.split(", ")
]
EVERY = {"factor_interval": 1, "inverse_interval": 1}


def preset(row: str) -> Run:
    chosen = ["optimizer.factor_interval=1", "optimizer.inverse_interval=1", "comm.ranks_per_host=2"]
    return configure.resolve_training(["task=resnet50", "optimizer=kfac", f"comm=kfac_{row}", "world=4", *chosen])


def changed(one: Any, other: Any, path: str = "") -> set[str]:
    """Dotted names whose values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name for key in one | other for name in changed(one.get(key), other.get(key), f"{path}{key}.")}
    return set() if one == other else {path.rstrip(".")}


def test_each_row_adds_to_the_one_before() -> None:
    added = {
        "symmetric": {"comm.factors.symmetric"},
        "float21": {"comm.codec.module", "comm.factors.codec.module", "comm.factors.algorithm.module"},
        "overlap": {"comm.schedule.module"},
        "hierarchical": {"comm.topology.module"},
        "stale": {"optimizer.stale"},
    }
    presets = [preset(row) for row in ROWS]
    for row, before, after in zip(ROWS[1:], presets[:-1], presets[1:], strict=True):
        assert changed(before.plain(), after.plain()) == added[row] | {"comm.name"}


@pytest.mark.parametrize("row, words", PRINTED)
def test_documented_words_have_what_the_published_row_has(row: str, words: list[str]) -> None:
    every = ["optimizer.factor_interval=1", "optimizer.inverse_interval=1", "comm.ranks_per_host=2"]
    found = configure.resolve(["task=resnet50", "optimizer=kfac", "world=4", *every, *words])
    comm, said = found.comm, published.find_row(row).details
    assert comm.factors.symmetric == said["symmetric_communication"]
    assert comm.codec.module.endswith("float21") == said["float21"]
    assert comm.factors.codec.module.endswith("float21") == said["float21"]
    assert comm.schedule.module.endswith("overlap") == said["overlap"]
    assert comm.topology.module.endswith("two_level") == said["hierarchical"]
    assert found.optimizer.stale == said["stale"]
    assert said["distributed_inverse"] and not comm.feedback


def test_every_row_of_the_table_is_documented() -> None:
    assert sorted(row for row, _ in PRINTED) == [f"A8-{number:02}" for number in range(1, 11)]


def test_float21_sends_two_thirds() -> None:
    """Of the factors of `resnet50`'s stand-in; those of the run below are so small that whole words count."""
    sent = {}
    for row in ("symmetric", "float21"):
        chosen = engines.change(preset(row), {"task.batch_size": 128})
        [exchanges] = project.list_refreshes(chosen, make_task(chosen)) or []
        sent[row] = sum(item.sent for _, *ways in exchanges for way in ways for item in way.entries)
    assert abs(sent["float21"] / sent["symmetric"] - 2 / 3) < 0.01


@pytest.mark.slow
def test_bytes_fall_and_the_run_stays_the_run() -> None:
    """Four jax devices taken for two hosts; float32, five steps: what is sent between hosts, by row."""
    sent, ends = {}, {}
    for row in ROWS:
        chosen = preset(row)
        hyper = EVERY | {"stale": chosen.optimizer.stale}
        made = engine(config("kfac", "jax", world=4, precision="float32", hyper=hyper, comm=chosen.comm))
        advance(made, range(5))
        sent[row], ends[row] = made.facts()["bytes"], weights(made)
    factor = {row: found["by_name"]["factor"] + found["by_name"]["inverse"] for row, found in sent.items()}
    assert factor["symmetric"] < 0.75 * factor["distributed"]
    assert 2 / 3 <= factor["float21"] / factor["symmetric"] < 0.85  # of chunks of a few values, rounded up to threes
    assert sent["overlap"] == sent["float21"]
    outer = {row: found["by_level"].get("outer", 0) + found["by_level"]["flat"] for row, found in sent.items()}
    assert outer["hierarchical"] < 0.7 * outer["overlap"]
    assert factor["stale"] <= factor["hierarchical"]
    for row in ROWS[1:5]:
        gap = max(float(np.abs(value - ends["distributed"][name]).max()) for name, value in ends[row].items())
        assert gap <= (1e-5 if row == "symmetric" else 2e-2), row


def test_stale_statistics_are_k_facs_alone() -> None:
    """SGD rejects a preset that sets options of K-FAC; the error names the preset."""
    with pytest.raises(UserError, match="sgd has no such option; comm=kfac_stale is for another optimizer"):
        configure.resolve(["task=resnet50", "optimizer=sgd", "comm=kfac_stale"])
