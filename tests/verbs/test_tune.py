"""`suite tune`, and the recipes that it wrote."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import conftest
import pytest
import yaml
from faulty import Faulty
from tiny_runs import TINY, Call

from suite.contract import UserError
from suite.launch import execution, local
from suite.record import record
from suite.settings import configure
from suite.settings.overrides import flatten_values
from suite.tuning import recipe, session
from suite.tuning.trials import Trial, make_table, propose_trials

SGD = {"name": "sgd", "lr": 0.05, "block_size": 128, "search": {"lr": [0.01, 1.0, "log"]}}


def test_the_list_is_frozen() -> None:
    points = propose_trials(SGD, fixed=[], trials=8)
    expected = [0.1, 0.032, 0.32, 0.018, 0.18, 0.056, 0.56, 0.013]
    assert [point["optimizer.lr"] for point in points] == expected
    assert propose_trials(SGD, fixed=[], trials=3) == points[:3]
    plane = SGD | {"search": SGD["search"] | {"block_size": [0, 100, "linear"]}}
    sizes = [point["optimizer.block_size"] for point in propose_trials(plane, fixed=[], trials=4)]
    assert sizes == [33, 67, 11, 44] and all(isinstance(size, int) for size in sizes)
    assert list(propose_trials(plane, fixed=["optimizer.lr"], trials=1)[0]) == ["optimizer.block_size"]


@pytest.mark.parametrize(
    "search", [{}, {"lr": [1.0, 0.1, "log"]}, {"lr": [0, 1, "log"]}, {"lr": [0.1, 1]}, {"damping": [0.1, 1.0, "log"]}]
)
def test_ranges_that_are_not_understood_are_refused(search: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="search"):
        propose_trials(SGD | {"search": search}, fixed=[], trials=2)


def trial(number: int, *steps: int | None, top1: tuple[float, ...] = ()) -> Trial:
    goal = {"metric": "top1", "value": 72, "higher_is_better": True}
    targets = [goal | {"reached": s is not None, "step": s, "label": f"top1_{i}"} for i, s in enumerate(steps)]
    curve = [{"metrics": {"top1": value}} for value in top1]
    result = {"targets": targets, "curve": curve, "outcome": {"kind": "exhausted"}}
    return Trial(number, {"optimizer.lr": 0.1}, result)


def test_more_targets_win_then_fewer_steps_then_the_earlier_trial() -> None:
    trials = [
        Trial(1, {"optimizer.lr": 1.0}, None),
        trial(2, None, None),
        trial(3, 10, None),
        trial(4, 90, 300),
        trial(5, 80, 200),
        trial(6, 70, 200),
        trial(7, None, None, top1=(60, 50)),
        trial(8, None, None, top1=(55, 65, math.nan)),
    ]
    assert [one.number for one in sorted(trials, key=lambda one: one.place)] == [5, 6, 4, 3, 8, 7, 1, 2]
    assert trials[0].outcome == "failed"


def test_the_best_is_so_with_the_worst_of_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever leads runs with the next seed, until one leads with all: as if every trial had run with all of them."""
    steps = {1: (80, None, 10), 2: (85, 95, 80), 3: (85, 90, 92), 4: (91, 93, 20), 5: (99, 1, 1)}
    ran = []

    def attempt(overrides: list[str], directory: Path | None) -> Any:
        words = dict(word.split("=") for word in overrides)
        ran.append((int(words["optimizer.lr"]), int(words["seed"])))
        return trial(0, steps[ran[-1][0]][ran[-1][1] - 3]).result

    monkeypatch.setattr(session, "_run_trial", attempt)
    done = [dataclasses.replace(trial(n, first[0]), values={"optimizer.lr": n}) for n, first in steps.items()]
    ranked = session.rank_trials(done, ["task=tiny", "seed=3"], seed=3, seeds=3, directory=None)
    assert ran == [(1, 4), (2, 4), (3, 4), (3, 5), (4, 4)]
    assert [one.number for one in ranked] == [3, 4, 2, 5, 1]
    assert min(steps, key=lambda n: max(step or 1e9 for step in steps[n])) == 3
    lines = [recipe._line(one) for one in ranked]
    assert lines[0]["again"] == [{"reached": "top1_0", "steps": 90}, {"reached": "top1_0", "steps": 92}]
    assert lines[-1]["again"] == [{"reached": None, "steps": None}] and "again" not in recipe._line(ranked[-2])
    assert "top1_0 90, top1_0 92" in make_table(ranked)


def test_one_seed_and_trials_that_reach_nothing_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_run_trial", lambda *given: pytest.fail("ran again"))
    lost, best = [trial(1, None), trial(2, None)], [trial(1, 80), trial(2, 90), trial(3, 90)]
    assert session.rank_trials(lost, [], seed=0, seeds=3, directory=None) == lost
    assert session.rank_trials(best, [], seed=0, seeds=1, directory=None) == best


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
    assert [line["optimizer.lr"] for line in found["tried"]] == [0.1, 0.071] and found["trials"] == 2
    best = min(found["tried"], key=lambda line: max(came["steps"] for came in (line, *line.get("again", []))))
    assert len(best["again"]) == 2
    assert found["values"] == {
        "optimizer": {"lr": best["optimizer.lr"]},
        "schedule": {"warmup": 2},
        "max_steps": 30,
    }
    assert found["command"].startswith("suite tune +task=tiny max_steps=30") and found["commit"] and found["machine"]

    config = configure.resolve(["task=tiny"], conf)
    assert (config.optimizer.lr, config.max_steps) == (best["optimizer.lr"], 30)
    assert (config.schedule.shape, config.schedule.warmup) == ("linear", 2)
    assert config.tuning.plain() == {"source": "tiny-sgd-laptop", "trials": 2}
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
        disk = Faulty(patch, path.parent, at=3)  # after mkdir and open
        code, text = suite("tune", *TINY, "max_steps=1", "trials=1", "seeds=1", "--misses", "--out", str(path))
    assert disk.failed.startswith("write ") and code == 2 and f"{path}: " in text, text
    assert list(path.parent.iterdir()) == [path] and path.read_text() == "tuned: {}\n"


def test_a_killed_trial_says_nothing_about_its_values(suite: Call, tmp_path: Path) -> None:
    """Ranked as failed, it would leave the recipe to another trial; the same command runs it."""

    def kill(children: list[Any]) -> None:
        children[0].kill()
        children[0].wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_await", kill)
        code, text = suite("tune", *TINY, "max_steps=1", "trials=1", "--out", "never.yaml")
    assert code == 2 and "killed by SIGKILL" in text and "the trial ended without a result" in text, text
    assert "The same command continues" in text and not (tmp_path / "never.yaml").exists()


def test_tune_without_a_target_writes_nothing(suite: Call, tmp_path: Path) -> None:
    code, text = suite("tune", *TINY, "max_steps=1", "trials=1", "--out", "never.yaml")
    assert code == 1 and "no trial reached a target" in text and not (tmp_path / "never.yaml").exists()


@pytest.mark.slow
def test_tune_writes_the_closest_trial_when_asked(suite: Call, tmp_path: Path) -> None:
    ranges = "optimizer.search={lr: [0.0001, 1.0, log]}"  # so wide that the trials differ after six steps
    code, text = suite("tune", *TINY, "max_steps=6", "trials=3", ranges, "--misses", "--out", "never.yaml")
    assert code == 1 and "written: never.yaml (no trial reached a target)" in text
    evidence = yaml.safe_load((tmp_path / "never.yaml").read_text())["tuned"]["all"]
    assert [line["reached"] for line in evidence["tried"]] == [None, None, None]

    distances = {}
    for path in (tmp_path / "runs").rglob("result.json"):
        result = json.loads(path.read_text())
        target = result["targets"][0]
        value = result["curve"][-1]["metrics"][target["metric"]]
        distance = target["value"] - value if target["higher_is_better"] else value - target["value"]
        distances[result["spec"]["config"]["optimizer"]["lr"]] = distance
    chosen = evidence["values"]["optimizer"]["lr"]
    assert distances[chosen] == min(distances.values()) < max(distances.values())


@pytest.mark.parametrize(
    "words, says",
    [
        (["+task=resnet50", "recipe=goyal-8k"], "tuning starts from the defaults"),
        (["+task=resnet50", "+optimizer.power=2"], "a recipe can only replace values"),
        (["+task=resnet50", "trials=none"], "trials=none"),
        (["+task=resnet50", "seeds=0"], "seeds=0"),
        (["+task=resnet50", "optimizer.lr=0.1"], "no ranges to search"),
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
        assert config.tuning.plain() == {"source": path.stem, "trials": found["trials"]} and found["trials"] == len(
            found["tried"]
        )
        rungs = [None, *(record.name_target(target) for target in execution.make_task(config).targets)]

        def score(line: dict[str, Any], unknown: float, rungs: list[Any] = rungs) -> tuple[int, int, float]:
            """Of the worst seed. Older recipes do not have `short` for further seeds: it is `unknown`."""
            runs = (line | {"short": line.get("short", math.inf)}, *line.get("again", []))
            return min((rungs.index(r["reached"]), -(r["steps"] or 0), -r.get("short", unknown)) for r in runs)

        [best] = [line for line in found["tried"] if all(line[key] == values[key] for key in line.keys() & values)]
        assert score(best, 0.0) >= max(score(line, math.inf) for line in found["tried"])
    others = set(configure.compose_nodes([f"task={task}"])["task"]["sources"]) - set(recipe.tuned_in(path))
    for other in (f"task.data={source}" for source in others):
        assert configure.resolve([*words, other]) == configure.resolve([*words, "recipe=null", other])
