"""The search of `suite tune`: its points, its ranking, its budget, with trials that are no processes."""

import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import boards
import pytest

from suite.contract import UserError
from suite.record.result import Result
from suite.settings import configure
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


def make_result(
    *steps: int | None, spent: int = STEPS, top1: tuple[float | None, ...] = (), goals: tuple[float, ...] = (72, 72)
) -> Result:
    targets = [
        {"metric": "top1", "value": goal, "higher_is_better": True, "reached": s is not None, "step": s}
        | {"train_seconds": None if s is None else 1.0, "label": f"top1_{i}"}
        for i, (s, goal) in enumerate(zip(steps, goals, strict=False))
    ]
    curve = [{"step": 1 + index, "metrics": {"top1": value}} for index, value in enumerate(top1)]
    return boards.made(targets=targets, curve=curve, outcome={"kind": "exhausted"}, steps=spent)


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
    further = make_result(5, None, top1=(70.5,), goals=(72, 80))
    assert measure_shortfall(further) == 9.5
    scores = [score_short_run(result) for result in best_first]
    assert scores == sorted(scores) and len(set(scores)) == len(scores)


class Laboratory:
    """Trials that need `steps(values, seed)` steps, in place of processes."""

    def __init__(self, patch: pytest.MonkeyPatch, steps: Callable[[dict[str, float], int], float]):
        self.steps, self.ran = steps, []
        patch.setattr(session, "run_trial", self.run_trial)

    def run_trial(self, overrides: list[str], directory: Path | None) -> tuple[Result, int]:
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


def test_a_search_that_reached_no_target_has_not_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Laboratory(monkeypatch, lambda values, seed: 10 * STEPS).tune(WIDE)
    assert all(len(trial.results) in (0, 1, 3) for trial in made.tried) and not made.converged
    assert "not converged" in tune._summarize(made) and "reached a target" in tune._summarize(made)


def test_a_better_trial_that_lacks_seeds_keeps_a_search_from_converging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search with such a trial has not converged: its leader is not outermost, but the budget is spent."""
    lab = Laboratory(monkeypatch, lambda values, seed: 90 - 9 * math.log10(values["optimizer.lr"]))
    for runs in range(6, 12):
        made = lab.tune(WIDE, runs=runs)
        beyond = [trial for trial in made.trials.values() if trial.results and trial not in made.tried[:1]]
        best, *others = (trial.results[0].targets[0].step or math.inf for trial in [made.tried[0], *beyond])
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
