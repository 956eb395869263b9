"""`suite tune`, and the recipes that it wrote."""

import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import conftest
import pytest
import yaml
from faulty import Faulty
from tiny_runs import TINY, Call

from suite.contract import UserError
from suite.launch import execution, local_ranks
from suite.record import record
from suite.settings import configure
from suite.settings.overrides import flatten_values
from suite.settings.run import Run
from suite.tuning import recipe, session
from suite.tuning.points import Range, find_ranges, propose_points
from suite.tuning.session import Session
from suite.tuning.trials import make_table, measure_shortfall, score_results, score_short_run
from suite.verbs import tune

SGD = {"name": "sgd", "module": "suite.optimizers.sgd", "lr": 0.05, "momentum": 0.9}
ADAM = {"module": "suite.optimizers.adamw", "beta2": 0.99, "search": {"beta2": [0.9, 0.999, "linear"]}}
WIDE = SGD | {"search": {"lr": [0.01, 1.0, "log"]}}
PLANE = SGD | {"search": {"lr": [0.01, 1.0, "log"], "momentum": [0.5, 0.9, "linear"]}}
STEPS = 100  # of a whole run of the fake trials


def list_points(optimizer: dict[str, Any], count: int) -> list[dict[str, float]]:
    return propose_points(optimizer, find_ranges(optimizer, fixed=[]), count)


def test_the_list_is_frozen_and_starts_with_the_optimizers_own_values() -> None:
    points = list_points(WIDE, 8)
    assert [point["optimizer.lr"] for point in points] == [0.05, 0.1, 0.032, 0.32, 0.018, 0.18, 0.056, 0.56]
    assert list_points(WIDE, 3) == points[:3]
    whole = {"name": "shampoo", "module": "suite.optimizers.shampoo", "block_size": 128}
    whole["search"] = {"block_size": [0, 100, "linear"]}
    sizes = [point["optimizer.block_size"] for point in list_points(whole, 5)]
    assert sizes == [128, 50, 25, 75, 12] and all(isinstance(size, int) for size in sizes)
    assert list(find_ranges(PLANE, fixed=["optimizer.lr"])) == ["optimizer.momentum"]


@pytest.mark.parametrize(
    "search", [{}, {"lr": [1.0, 0.1, "log"]}, {"lr": [0, 1, "log"]}, {"lr": [0.1, 1]}, {"damping": [0.1, 1.0, "log"]}]
)
def test_ranges_that_are_not_understood_are_refused(search: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="search"):
        find_ranges(SGD | {"search": search}, fixed=[])


def test_a_value_further_out_ends_at_the_bounds_of_the_setting() -> None:
    ranges = find_ranges(PLANE, fixed=[])
    rate, momentum = ranges["optimizer.lr"], ranges["optimizer.momentum"]
    assert (rate.step_out(0.56, 1), rate.step_out(0.01, -1)) == (1.8, 0.0032)
    assert (momentum.step_out(0.85, 1), momentum.step_out(0.95, 1)) == (0.95, 1.0)
    assert momentum.step_out(1.0, 1) is None and momentum.step_out(0.0, -1) is None
    assert Range(1, 2, "linear", whole=True).step_out(1, 1) == 2
    beta = find_ranges(SGD | ADAM, fixed=[])["optimizer.beta2"]
    assert (beta.scaled(0.99), beta.step_out(0.998, 1), beta.step_out(0.9, -1)) == (0.998, None, 0.8753)
    assert rate.step_out(0.0, -1) is None, "a hyper-parameter that is switched off has no smaller value"


def make_result(*steps: int | None, spent: int = STEPS, top1: tuple[float | None, ...] = ()) -> dict[str, Any]:
    goal = {"metric": "top1", "value": 72, "higher_is_better": True}
    targets = [goal | {"reached": s is not None, "step": s, "label": f"top1_{i}"} for i, s in enumerate(steps)]
    curve = [{"metrics": {"top1": value}} for value in top1]
    return {"targets": targets, "curve": curve, "outcome": {"kind": "exhausted"}, "steps": spent}


def test_more_seeds_that_reach_win_then_fewer_steps_then_the_smaller_distance() -> None:
    """Two old faults do not return: a trial with fewer seeds won, and dead seeds were compared by noise."""
    best_first = [
        [make_result(10, 50), make_result(10, 70)],
        [make_result(10, 40), make_result(10, 90)],
        [make_result(10, 20), make_result(10, None)],
        [make_result(5, None), make_result(6, None)],
        [make_result(5, None), make_result(None, None, top1=(70,))],
        [make_result(None, None, top1=(60, None)), make_result(None, None, top1=(61,))],
        [make_result(None, None, top1=(60,)), make_result(None, None, top1=(59,))],
        [make_result(None, None, top1=(71,)), None],
    ]
    scores = [score_results(results, STEPS) for results in best_first]
    assert scores == sorted(scores) and len(set(scores)) == len(scores)
    assert score_results([None, None], STEPS) > max(scores)


def test_a_short_run_is_ranked_by_its_distance_from_the_next_target() -> None:
    best_first = [
        make_result(20, 40),
        make_result(10, 50),
        make_result(20, None, top1=(70, 71)),
        make_result(5, None, top1=(70.5, None)),
        make_result(10, None, top1=(70.5, 70)),
        make_result(None, None, top1=(71.5,)),
        None,
    ]
    further = make_result(5, None, top1=(70.5,))
    further["targets"][1]["value"] = 80
    assert measure_shortfall(further) == 9.5
    scores = [score_short_run(result) for result in best_first]
    assert scores == sorted(scores) and len(set(scores)) == len(scores)


class Laboratory:
    """Trials that need `steps(values, seed)` steps, in place of processes."""

    def __init__(self, patch: pytest.MonkeyPatch, steps: Callable[[dict[str, float], int], float]):
        self.steps, self.ran = steps, []
        patch.setattr(session, "run_trial", self.run_trial)

    def run_trial(self, overrides: list[str], directory: Path | None) -> tuple[dict[str, Any], int]:
        words = dict(word.split("=") for word in overrides)
        budget, seed = int(words["max_steps"]), int(words.get("seed", 0))
        values = {key: float(value) for key, value in words.items() if key.startswith("optimizer.")}
        self.ran.append((values, seed, budget, words.get("schedule.end")))
        needed = self.steps(values, seed)
        reached = round(needed) if needed <= budget else None
        made = reached or budget
        return make_result(reached, spent=made, top1=(72 - max(0.0, needed - made) / 100,)), made

    @cached_property
    def run(self) -> Run:
        return configure.resolve_training(["task=resnet50", "optimizer=sgd", f"max_steps={STEPS}", "eval_every=5"])

    def tune(self, optimizer: dict[str, Any], *, runs: float = 12, trials: int = 16, words: Any = ()) -> Session:
        ranges = find_ranges(optimizer, fixed=[])
        made = Session(self.run, [f"max_steps={STEPS}", *words], ranges, 3, runs)
        made.search(propose_points(optimizer, ranges, trials))
        return made


def test_short_runs_choose_whole_runs_and_these_the_finalists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finalists run with all seeds; the second of the two wins, because it reaches the target more often."""

    def steps(values: dict[str, float], seed: int) -> float:
        rate = values["optimizer.lr"]
        return {0.1: 30 if seed == 0 else 500, 0.13: 40, 0.075: 50}.get(rate, 60 + 100 * abs(math.log10(rate / 0.1)))

    lab = Laboratory(monkeypatch, steps)
    made = lab.tune(WIDE)
    short = [run for run in lab.ran if run[2] == 25]
    assert len(short) == 16 and {run[3] for run in short} == {str(STEPS)}, "the schedule is a whole run's"
    whole = [(run[0]["optimizer.lr"], run[1]) for run in lab.ran if run[2] == STEPS]
    assert whole == [(0.1, 0), (0.13, 0), (0.075, 0), (0.056, 0), (0.1, 1), (0.1, 2), (0.13, 1), (0.13, 2)]
    assert made.tried[0].values == {"optimizer.lr": 0.13} and made.converged
    assert made.runs_spent == (16 * 25 + 30 + 40 + 50 + 85 + 280) / STEPS
    line = recipe._line(made.tried[0])
    assert line["seeds"] == [{"reached": "top1_0", "steps": 40}] * 3 and line["screened"]["at"] == 25
    assert "top1_0 40, top1_0 40, top1_0 40" in make_table(made.tried)


def test_the_search_goes_beyond_the_outermost_value_while_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Laboratory(monkeypatch, lambda values, seed: 20 + 20 * abs(math.log10(values["optimizer.lr"] / 6)))
    made = lab.tune(WIDE)
    assert [trial.values["optimizer.lr"] for trial in list(made.trials.values())[16:]] == [2.4, 7.6, 24.0]
    assert made.tried[0].values == {"optimizer.lr": 7.6} and made.converged and made.runs_spent <= 12


def test_a_search_that_is_still_at_an_end_has_not_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Laboratory(monkeypatch, lambda values, seed: 90 - 9 * math.log10(values["optimizer.lr"]))
    made = lab.tune(WIDE)
    assert not made.converged and made.runs_spent <= 12
    assert "not converged" in tune._summarize(made) and "optimizer.lr beyond" in tune._summarize(made)
    assert not lab.tune(WIDE, runs=5).converged, "no trial ran with all seeds"


def test_a_better_trial_that_lacks_seeds_keeps_a_search_from_converging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search with such a trial has not converged: its leader is not outermost, but the budget is spent."""
    lab = Laboratory(monkeypatch, lambda values, seed: 90 - 9 * math.log10(values["optimizer.lr"]))
    for runs in range(6, 12):
        made = lab.tune(WIDE, runs=runs)
        beyond = [trial for trial in made.trials.values() if trial.results and trial not in made.tried[:1]]
        best, *others = (trial.results[0]["targets"][0]["step"] or math.inf for trial in [made.tried[0], *beyond])
        better = [steps for steps in others if steps < best]
        assert not (made.converged and better) and made.runs_spent <= runs


def test_a_setting_that_is_off_is_no_lowest_value(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = {
        "name": "kfac",
        "module": "suite.optimizers.kfac",
        "kl_clip": 0.0,
        "search": {"kl_clip": [1e-4, 1.0, "log"]},
    }

    def steps(values: dict[str, float], seed: int) -> float:
        kappa = values["optimizer.kl_clip"]
        return 90 if kappa == 0 else 50 + 10 * math.log10(kappa / 1e-5)

    made = Laboratory(monkeypatch, steps).tune(clip)
    assert made.tried[0].values["optimizer.kl_clip"] < 1e-4, "the search went below the lowest value of the list"


def test_a_natural_bound_is_no_open_end(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = PLANE | {"search": {"momentum": [0.5, 1.0, "linear"]}}
    lab = Laboratory(monkeypatch, lambda values, seed: 80 - 50 * values["optimizer.momentum"])
    made = lab.tune(plane)
    assert made.tried[0].values == {"optimizer.momentum": 1.0} and made.converged


def test_the_budget_holds_for_every_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing reaches a target; and short runs of one seed are all that a small budget buys."""
    lab = Laboratory(monkeypatch, lambda values, seed: 1000.0)
    assert lab.tune(PLANE).runs_spent == 12
    small = lab.tune(PLANE, runs=2)
    assert len(small.trials) == 4 and [len(trial.results) for trial in small.tried] == [1, 0, 0, 0]
    assert small.runs_spent == 2


def test_a_schedule_that_cannot_be_stretched_runs_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Laboratory(monkeypatch, lambda values, seed: 50.0)
    ranges = find_ranges(WIDE, fixed=[])
    words = [
        "task=resnet50",
        "optimizer=sgd",
        f"max_steps={STEPS}",
        "schedule.shape=exponential",
        "schedule.factor=0.1",
    ]
    made = Session(configure.resolve_training(words), [f"max_steps={STEPS}"], ranges, 2, 12)
    made.search(propose_points(WIDE, ranges, 4))
    assert {run[2] for run in lab.ran} == {STEPS} and [run[1] for run in lab.ran][:4] == [0, 0, 0, 0]
    assert len({(run[0]["optimizer.lr"], run[1]) for run in lab.ran}) == len(lab.ran), "no run is made twice"


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
    code, text = suite("tune", *TINY, "max_steps=1", "trials=1", "--out", "never.yaml")
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
        provenance = {key: found[key] for key in ("trials", "converged") if key in found}
        assert config.tuning.plain() == {"source": path.stem, **provenance}
        assert found["trials"] == len(found["tried"])
        [best] = [line for line in found["tried"] if all(line[key] == values[key] for key in line.keys() & values)]
        if "converged" not in found:  # chosen by the rule before, by the worst seed
            continue
        ladder = [record.name_target(target) for target in execution.make_task(config).targets]
        whole = [line for line in found["tried"] if len(line.get("seeds", ())) == len(best["seeds"])]

        def score(line: dict[str, Any], last: str = ladder[-1], most: int = config.max_steps) -> tuple[int, float]:
            steps = [run["steps"] if run["reached"] == last else 2 * most for run in line["seeds"]]
            return -sum(run["reached"] == last for run in line["seeds"]), sum(steps)

        assert score(best) == min(map(score, whole))
    others = set(configure.compose_nodes([f"task={task}"])["task"]["sources"]) - set(recipe.tuned_in(path))
    for other in (f"task.data={source}" for source in others):
        assert configure.resolve([*words, other]) == configure.resolve([*words, "recipe=null", other])
