"""`make grid`: which runs are missing, and which results count."""

import json
from pathlib import Path
from typing import Any

import conftest
import pytest
import yaml

from suite import load
from suite.studies import grid

GRID = yaml.safe_load((grid.ROOT / "results" / "grid.yaml").read_text(encoding="utf-8"))
RECIPE = """tuned:
  shapes:
    trials: 8
    command: suite tune +task=cifar10 optimizer=sgd schedule.warmup=9
    values: {max_steps: 450, optimizer: {lr: 0.25}}
"""


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> grid.Cell:
    """A tuned cell in a checkout of its own."""
    monkeypatch.setattr(grid, "ROOT", tmp_path)
    monkeypatch.setattr(grid, "RUNS", tmp_path / "results" / "runs")
    (tmp_path / "conf" / "recipe").mkdir(parents=True)
    (tmp_path / "conf" / "recipe" / "cifar10-sgd-laptop.yaml").write_text(RECIPE)
    return grid.Cell("cifar10", "shapes", "sgd", (3, 4), trials=8, overrides=("schedule.warmup=9",))


def result(
    seed: int = 3, *, lr: float = 0.25, trials: int = 8, comm: str = "float32", world: int = 1
) -> dict[str, Any]:
    committed = conftest.TESTS.parent / "results" / "runs" / "cifar10"
    content = json.loads(next(committed.glob("shapes-sgd-torch-*.json")).read_text())
    content["spec"] |= {"comm": comm, "world": world, "seed": seed}
    content["spec"]["config"]["optimizer"] |= {"lr": lr}
    content["tuning"]["trials"] = trials
    return content


def write(folder: Path, *results: dict[str, Any]) -> list[Path]:
    paths = [folder / f"{number}.json" for number in range(len(results))]
    for path, content in zip(paths, results, strict=True):
        path.write_text(json.dumps(content))
    return paths


def test_a_run_of_the_present_recipe_counts(cell: grid.Cell, tmp_path: Path) -> None:
    made = grid.committed(write(tmp_path, result(3)), 8)
    assert grid.missing(cell, made, ["torch"]) == [("torch", 4)]


@pytest.mark.parametrize(
    "other", [result(lr=0.5), result(trials=0), result(comm="fp8", world=2), result(world=2), result(seed=5)]
)
def test_another_run_does_not_count(other: dict[str, Any], cell: grid.Cell, tmp_path: Path) -> None:
    made = grid.committed(write(tmp_path, other), 8)
    assert ("torch", 3) in grid.missing(cell, made, ["torch"])


def test_a_recipe_of_other_overrides_is_tuned_again(cell: grid.Cell) -> None:
    other = grid.Cell("cifar10", "shapes", "sgd", (3, 4), trials=8, overrides=("schedule.warmup=10",))
    more = grid.Cell("cifar10", "shapes", "sgd", (3, 4), trials=9)
    assert cell.tuned and not other.tuned and not more.tuned


def test_a_run_is_kept_under_its_settings(cell: grid.Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []

    def suite(*words: str) -> int:
        commands.append(words)
        for name, content in {"abc": result(3, comm="fp8", world=2), "def": result(4, comm="fp8", world=2)}.items():
            folder = tmp_path / "runs" / "cifar10" / name
            folder.mkdir(parents=True)
            (folder / "result.json").write_text(json.dumps(content))
        return 0

    monkeypatch.setattr(grid, "_suite", suite)
    mode = grid.Cell("cifar10", "shapes", "sgd", (3,), trials=8, comm="fp8 comm.piece_kib=64", world=2)
    grid.run(mode, "torch", 3)
    assert [path.name for path in grid.RUNS.rglob("*.json")] == ["shapes-sgd-fp8-torch-s3-abc.json"]
    assert commands[0][4:7] == ("world=2", "comm=fp8", "comm.piece_kib=64")


def test_a_failed_run_leaves_no_file(cell: grid.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    def rejected(*words: str) -> int:
        folder = grid.ROOT / "runs" / "cifar10" / "abc"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(result(3)))  # of an earlier run
        return 2

    monkeypatch.setattr(grid, "_suite", rejected)
    grid.run(cell, "torch", 3)
    assert not list(grid.RUNS.rglob("*.json"))


def test_every_task_has_five_optimizers_and_two_tasks_have_every_mode() -> None:
    cells = list(grid.cells(GRID))
    optimizers = {(cell.task, cell.data, cell.optimizer) for cell in cells if cell.world == 1}
    for task in load.find_members("tasks"):
        assert len({name for other, _, name in optimizers if other == task}) >= 5, task
    modes = {(cell.task, cell.mode) for cell in cells if cell.world > 1}
    presets = {path.stem for path in load.find_files("comm")}
    presets -= {name for name in presets if name.startswith("kfac_")}  # how K-FAC's statistics travel
    assert {task for task, _ in modes} == {"resnet50", "frnn"}
    for task in ("resnet50", "frnn"):
        assert {mode for other, mode in modes if other == task} == presets
