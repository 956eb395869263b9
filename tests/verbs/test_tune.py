"""`suite tune`, and the recipes that it wrote."""

from pathlib import Path
from typing import Any

import conftest
import pytest
import yaml
from faulty import Faulty
from tiny_runs import TINY, Call

from suite.launch import local_ranks
from suite.launch.premises import describe_task
from suite.record import record
from suite.settings import configure
from suite.settings.overrides import flatten_values
from suite.tuning import recipe

SGD = {"name": "sgd", "module": "suite.optimizers.sgd", "lr": 0.05, "momentum": 0.9}


def mean_steps(line: dict[str, Any]) -> float:
    return sum(run["steps"] or 60 for run in line["seeds"])


@pytest.mark.slow
def test_tune_writes_a_recipe_that_runs_find(suite: Call, tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    (conf / "task").mkdir(parents=True)
    (conf / "task" / "tiny.yaml").write_text((conftest.OUTSIDE / "conf" / "task" / "tiny.yaml").read_text())
    words = ["--config-dir", str(conf), "+task=tiny", "max_steps=30", "schedule.warmup=2", "threads=1", "trials=2"]
    words += ["optimizer.search.lr=[0.05,0.2,log]"]
    code, text = suite("tune", *words)
    assert code == 0, text
    path = conf / "recipe" / "tiny-sgd-laptop.yaml"
    assert f"written: {path}" in text.splitlines()  # on a busy machine, a notice about slow reading follows
    found = yaml.safe_load(path.read_text())["tuned"]["all"]
    assert [line["optimizer.lr"] for line in found["tried"]][:2] == [0.05, 0.1] and found["trials"] >= 2
    finalists = [line for line in found["tried"] if len(line.get("seeds", ())) == 3]
    [best] = [line for line in finalists if line["optimizer.lr"] == found["values"]["optimizer"]["lr"]]
    assert len(finalists) >= 2 and mean_steps(best) == min(map(mean_steps, finalists))
    assert found["values"] == {
        "optimizer": {"lr": best["optimizer.lr"]},
        "schedule": {"warmup": 2},
        "max_steps": 30,
    }
    assert found["command"].startswith("suite tune +task=tiny max_steps=30") and found["commit"] and found["machine"]
    assert 0 < found["runs"] <= 12

    config = configure.resolve(["task=tiny"], conf)
    assert (config.optimizer.lr, config.max_steps) == (best["optimizer.lr"], 30)
    assert (config.schedule.shape, config.schedule.warmup) == ("linear", 2)
    assert config.tuning.plain() == {key: found[key] for key in ("source", "trials", "converged")}
    assert not {"tuned", "search"} & {*config.plain(), *config.optimizer.plain()}
    other = configure.resolve(["task=tiny", "optimizer.lr=0.3", "max_steps=7"], conf)
    assert (other.optimizer.lr, other.max_steps, other.schedule.warmup) == (0.3, 7, 2)
    assert other.tuning.source == "command line" and other.tuning.origin == "tiny-sgd-laptop"

    before = sorted((tmp_path / "runs" / "tiny").iterdir())
    code, text = suite("tune", *words)
    assert code == 0 and text.count("this run has a result already") == len(before) >= 2, (
        "finished trials are found again"
    )
    assert sorted((tmp_path / "runs" / "tiny").iterdir()) == before


def test_a_recipe_that_cannot_be_written_leaves_the_earlier_one(suite: Call, tmp_path: Path) -> None:
    """As a killed command does, because the new file gets its name when it is complete."""
    path = tmp_path / "recipes" / "mine.yaml"
    path.parent.mkdir()
    path.write_text("tuned: {}\n")
    with pytest.MonkeyPatch.context() as patch:
        disk = Faulty(patch, path.parent, at=4)  # after mkdir, the check of the folder, and open
        code, text = suite("tune", *TINY, "max_steps=1", "trials=1", "seeds=1", "--misses", "--out", str(path))
    assert disk.failed.startswith("write ") and code == 2 and f"{path}: " in text, text
    assert list(path.parent.iterdir()) == [path] and path.read_text() == "tuned: {}\n"


def test_a_folder_that_cannot_be_written_is_reported_before_the_search(suite: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, text = suite("tune", *TINY, "max_steps=1", "trials=1", "--out", "file/mine.yaml")
    assert code == 2 and "file/mine.yaml: " in text and "trial 1" not in text, text


def test_a_killed_trial_says_nothing_about_its_values(suite: Call, tmp_path: Path) -> None:
    """Ranked as failed, it would leave the recipe to another trial; the same command runs it."""

    def kill(children: list[Any]) -> None:
        children[0].kill()
        children[0].wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_ranks, "_await", kill)
        code, text = suite("tune", *TINY, "max_steps=1", "trials=1", "--out", "never.yaml")
    assert code == 2 and "killed by SIGKILL" in text and "the trial ended without a result" in text, text
    assert "The same command continues" in text and not (tmp_path / "never.yaml").exists()


def test_tune_without_a_target_writes_nothing(suite: Call, tmp_path: Path) -> None:
    code, text = suite("tune", *TINY, "max_steps=1", "trials=1", "seeds=1", "--out", "never.yaml")
    assert code == 1 and "the best trial reached no target" in text and not (tmp_path / "never.yaml").exists()


@pytest.mark.slow
def test_tune_writes_the_closest_trial_when_asked(suite: Call, tmp_path: Path) -> None:
    ranges = "optimizer.search={lr: [0.0001, 1.0, log]}"  # so wide that the trials differ after six steps
    code, text = suite(
        "tune", *TINY, "max_steps=2", "trials=3", "schedule.warmup=0", ranges, "--misses", "--out", "never.yaml"
    )
    assert code == 1 and "written: never.yaml (no target reached)" in text
    evidence = yaml.safe_load((tmp_path / "never.yaml").read_text())["tuned"]["all"]
    runs = [run for line in evidence["tried"] for run in line.get("seeds", [])]
    assert runs and not any(run["reached"] for run in runs)

    chosen = evidence["values"]["optimizer"]["lr"]
    distances = {
        line["optimizer.lr"]: sum(run["short"] for run in line["seeds"])
        for line in evidence["tried"]
        if len(line.get("seeds", ())) == 3
    }
    assert distances[chosen] == min(distances.values()) < max(distances.values())


@pytest.mark.parametrize(
    "words, says",
    [
        (["+task=resnet50", "recipe=goyal-8k"], "tuning starts from the defaults"),
        (["+task=resnet50", "+optimizer.power=2"], "a recipe can only replace values"),
        (["+task=resnet50", "trials=none"], "trials=none"),
        (["+task=resnet50", "seeds=0"], "seeds=0"),
        (["+task=resnet50", "runs=1"], "runs=1: must be a whole number of at least 2"),
        (["+task=resnet50", "optimizer.lr=0.1"], "optimizer.lr: set, so that nothing is searched"),
        (["+task=resnet50", "--out", "hand.yaml"], "suite tune did not write this recipe"),
    ],
)
def test_tune_refuses(suite: Call, tmp_path: Path, words: list[str], says: str) -> None:
    (tmp_path / "hand.yaml").write_text("max_steps: 3\n")
    code, text = suite("tune", *words)
    assert code == 2 and says in text


def test_a_recipe_holds_each_source_of_data_and_falls_back(tmp_path: Path) -> None:
    """Tuning one source of data leaves another's values; a source that was never tuned gets the defaults."""
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "both.yaml").write_text(
        "name: both\nmodule: mylab.tinytask\nvariant: a\nbatch_size: 8\ndata: one\n"
    )
    untouched = configure.resolve_training(["task=both", "recipe=null"], tmp_path)
    evidence = {"source": "both-sgd-laptop", "trials": 8}
    tuned = {
        "one": {**evidence, "values": {"optimizer": {"lr": 0.5}}},
        "two": {**evidence, "trials": 4, "values": {"optimizer": {"lr": 0.2, "nesterov": True}, "max_steps": 9}},
    }
    path = tmp_path / "recipe" / "both-sgd-laptop.yaml"
    path.parent.mkdir()
    path.write_text(recipe.render_recipe(untouched, tuned))
    assert recipe.tuned_in(path) == tuned

    def values(*overrides: str) -> list[Any]:
        config = configure.resolve(["task=both", *overrides], tmp_path)
        optimizer = config.optimizer
        return [optimizer.lr, optimizer.nesterov, config.max_steps, config.tuning.trials]

    assert values() == [0.5, False, 200, 8]
    assert values("task.data=two") == [0.2, True, 9, 4]
    assert values("task.data=three") == values("recipe=null") == [0.05, False, 200, 0]
    assert configure.resolve(["task=both", "task.data=three"], tmp_path).tuning.source == "defaults"


TUNED = [
    path for path in sorted((conftest.TESTS.parent / "conf" / "recipe").glob("*.yaml")) if "tuned:" in path.read_text()
]


@pytest.mark.sample(10)
@pytest.mark.parametrize("path", TUNED, ids=lambda path: path.stem)
def test_recipes_of_the_suite_agree_with_their_evidence(path: Path) -> None:
    """Each source's values are its best trial's and reach a run; other sources get what stands in the YAML files."""
    task, optimizer, scale = path.stem.split("-")
    words = [f"task={task}", f"optimizer={optimizer}", f"scale={scale}"]
    for source, found in recipe.tuned_in(path).items():
        config = configure.resolve([*words, f"task.data={source}"])
        values = flatten_values(found["values"])
        assert {key: recipe.value_at(config, key) for key in values} == values
        tuning = {"source": path.stem, "trials": found["trials"], "converged": found.get("converged")}
        assert {"converged": None} | config.tuning.plain() == tuning
        assert found["trials"] == len(found["tried"])
        [best] = [line for line in found["tried"] if all(line[key] == values[key] for key in line.keys() & values)]
        if "converged" not in found:  # chosen by the rule before, by the worst seed
            continue
        ladder = [record.name_target(target) for target in describe_task(config)[0].targets]
        whole = [line for line in found["tried"] if len(line.get("seeds", ())) == len(best["seeds"])]

        def score(line: dict[str, Any], last: str = ladder[-1], most: int = config.max_steps) -> tuple[int, float]:
            steps = [run["steps"] if run["reached"] == last else 2 * most for run in line["seeds"]]
            return -sum(run["reached"] == last for run in line["seeds"]), sum(steps)

        assert score(best) == min(map(score, whole))
    others = set(configure.compose_nodes([f"task={task}"])["task"]["sources"]) - set(recipe.tuned_in(path))
    for other in (f"task.data={source}" for source in others):
        assert configure.resolve([*words, other]) == configure.resolve([*words, "recipe=null", other])
