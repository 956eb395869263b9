"""Policies: what they try leaves no trace but time and bytes, what they decide is kept, replayed and resumed."""

import json
import re
import time
from pathlib import Path
from typing import Any

import boards
import deciding
import numpy as np
import pool
import pytest
from deciding import STEPS
from engines import BACKENDS, advance, change, comm, config, engine, same, weights
from sampling import mostly_torch

from suite.comm.policies import adaprec, fastest
from suite.comm.policies._curves import CURVES, predict_score
from suite.comm.policies._policy import Commit, Measure, Point, Probe, Probed, Situation
from suite.contract import Decided, Evaluated, Finished, Step, UserError
from suite.record.record import make_result
from suite.track import picture
from suite.training.adaptation import read_decisions
from suite.training.loop import train

both = pytest.mark.parametrize("backend", BACKENDS)
MODES = deciding.candidates()
CURIOUS = {"module": "mylab.curious", "steps": 3, "order": ["float32", "lossy"]}


def run(backend: str, order: list[Any] | None = None, stop_after: int | None = None, **changes: Any) -> Any:
    """A short run on the tiny task: its engine, its events, and its last checkpoint's arguments."""
    world = 2 if backend == "jax" else 1
    node = comm(policy=CURIOUS | {"order": order}, candidates=MODES) if order else comm()
    settings = deciding.settings(backend, world, node)
    made, saved = engine(settings), []
    events = []

    def save(step: int, state: dict[str, Any], snapshot: Any) -> str:
        arrays, skeleton = snapshot
        saved.append(({"step": step, **state}, ({n: v.copy() for n, v in arrays.items()}, skeleton)))
        return ""

    for event in train(made.task, made, change(settings, changes.pop("settings", {})), save=save, **changes):
        events.append(event)
        if isinstance(event, Step) and event.step == stop_after:
            break
    return made, events, saved


def losses(events: list[Any]) -> list[float]:
    return [event.loss for event in events if isinstance(event, Step)]


def trial(backend: str, mode: str) -> tuple[int, int]:
    """Bytes of one step in a mode, and of one exchange of each kind."""
    world = 2 if backend == "jax" else 1
    made = engine(deciding.settings(backend, world, MODES[mode]))
    advance(made, range(1))
    step = made.facts()["bytes"]["sent"]
    for kind in sorted(set(made.kinds.values())):
        made.exchange(kind)
    return step, made.facts()["bytes"]["sent"] - step


@mostly_torch
def test_trying_changes_nothing(backend: str) -> None:
    """Every candidate is tried three times, and float32 is taken: the same bits as without a policy."""
    plain, expected, _ = run(backend)
    made, events, _ = run(backend, ["float32"])
    assert losses(events) == losses(expected) and same(weights(made), weights(plain))
    decisions = [event for event in events if isinstance(event, Decided)]
    assert [(one.step, one.mode, one.steps) for one in decisions] == [
        (0, "float32", 3),
        (3, "float32", 3),
        (6, "float32", 3),
    ]
    assert [one.why["seen"] for one in decisions] == [1, 2, 3] and all(one.seconds > 0 for one in decisions)
    assert [e.metrics for e in events if isinstance(e, Evaluated)] == [
        e.metrics for e in expected if isinstance(e, Evaluated)
    ]
    # each decision: two steps and two scores of each candidate, every kind exchanged twice, and one score before
    trials = sum(2 * sum(trial(backend, mode)) for mode in MODES)
    ran = expected[-1].facts["bytes"]
    scores = 5 * ran["by_name"].get("evaluation", 0) // 2  # of two in the run
    assert events[-1].facts["bytes"]["sent"] == ran["sent"] + len(decisions) * (trials + scores)
    assert (trials > 0) == (backend == "jax")  # two ranks there, and one in torch


@mostly_torch
def test_what_is_tried_is_on_the_clock(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe made slow on purpose is billed to training."""
    made = engine(config("sgd", backend))
    step = type(made).step
    monkeypatch.setattr(type(made), "step", lambda *a: (time.sleep(0.05), step(*a))[1])
    _, events, _ = run(backend, ["float32"])
    finished = events[-1]
    assert isinstance(finished, Finished)
    probes = sum(event.seconds for event in events if isinstance(event, Decided))
    assert probes >= 3 * 4 * 0.05  # three decisions, two candidates, two steps each
    assert finished.facts["train_seconds"] >= probes + STEPS * 0.05


@mostly_torch
def test_decisions_are_kept_resumed_and_replayed(backend: str, tmp_path: Path) -> None:
    order = ["float32", {"conv2d": "lossy", "linear": "float32", "batchnorm": "float32", "other": "float32"}, "lossy"]
    made, events, saved = run(backend, order)
    decisions = [event for event in events if isinstance(event, Decided)]
    assert [one.mode for one in decisions] == order
    state, snapshot = saved[0]
    assert state["step"] == 5 and [one["step"] for one in state["decisions"]] == [0, 3]
    again, later, _ = run(backend, order, restored=(json.loads(json.dumps(state)), snapshot))
    assert losses(later) == losses(events)[5:] and same(weights(again), weights(made))
    record = [{"event": "decided", **vars(one)} for one in decisions]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in record))
    replayed, lines, _ = run(backend, ["lossy"], settings={"decisions": str(path)})
    assert losses(lines) == losses(events) and same(weights(replayed), weights(made))
    assert all(one.replayed for one in lines if isinstance(one, Decided))
    if backend == "jax":  # two devices: a lossy step is another one
        assert losses(events) != losses(run(backend, ["float32"])[1])


def test_rank_0_decides_for_all() -> None:
    """Rank 1 is slower, and in another order, and its scores fall where rank 0's rise: alone it would decide otherwise.

    What a mode takes is what the slowest rank takes: less in the lossy mode, which rank 0's clock would not say.
    """
    first, second = pool.run("torch", 2, "deciding.decide")
    assert first == second
    [[step, mode, steps, why]] = first["fastest"]["decided"]
    assert (step, set(mode.values()), steps) == (0, {"lossy"}, None)
    each = {"float32": {"seconds": 30.0, "spread": 0.0}, "lossy": {"seconds": 2.5, "spread": 0.0}}
    assert list(why.values()) == [each] * len(mode)
    assert [one[0] for one in first["adaprec"]["decided"]] == [0, 4]
    assert first["adaprec"]["decided"][0][1] == "lossy"
    for *_, why in first["adaprec"]["decided"]:
        assert [why[mode]["seconds"] for mode in ("float32", "lossy")] == [30.0, 2.5]
        assert all(one["gain"] > 0 for one in why.values())


def test_decisions_are_drawn() -> None:
    """In both columns a line where each was taken, and what it was, on a line for each kind where kinds differ."""
    modes = ["float32", {"conv2d": "lossy", "other": "float32"}, "lossy"]
    taken = [{"step": 3 * n, "train_seconds": 0.5 + 4 * n, "mode": mode} for n, mode in enumerate(modes)]
    steps = [{"event": "step", "step": n, "train_seconds": 0.5 + 4 * n / 3, "loss": 2.0 + (-1) ** n} for n in range(9)]
    point = {"step": 8, "samples": 8, "train_seconds": 11.0, "wall_seconds": 11.0, "metrics": {"top1": 50.0}}
    result = boards.result(curve=[point], targets=[])
    decisions = [one | {"steps": 3, "why": None, "seconds": 0.0, "replayed": False} for one in taken]
    plain = picture.draw_curve(make_result(result), steps, title="").decode()
    drawn = picture.draw_curve(make_result(result | {"decisions": decisions}), steps, title="").decode()
    dashed = re.compile(r'd="M ([\d.]+) [\d.]+ \nL \1 [\d.]+ \n"[^>]*stroke-dasharray: 3.7')
    assert not dashed.findall(plain) and len(dashed.findall(drawn)) == 2 * len(taken)
    for text in ("float32", "conv2d: lossy", "other: float32", "lossy"):
        assert len(re.findall(f">{text}<", drawn)) == 2 and not re.findall(f">{text}<", plain), text
    [line, other] = re.findall(r'd="(M [^"]*(?:L [^"]*){8})"[^>]*stroke: #1f77b4', drawn)
    for vertices, lines in ((line, dashed.findall(drawn)[:3]), (other, dashed.findall(drawn)[3:])):
        at = re.findall(r"[ML] ([\d.]+)", vertices)
        assert lines == [at[one["step"]] for one in taken]


def test_a_record_without_decisions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    for path in ("result.json", "absent.json"):
        with pytest.raises(UserError, match="name a result"):
            read_decisions(str(tmp_path / path))


def test_candidates_that_remember_are_refused() -> None:
    for changes in ({"feedback": True, "codec": "bfloat16", "algorithm": "all_to_all"}, {"schedule": "stale"}):
        node = comm(policy=CURIOUS, candidates={"a": comm(**changes)})
        with pytest.raises(UserError, match="which no other mode can use"):
            engine(config("sgd", "torch", comm=node))


# ----------------------------------------------------------------------------------------------- the policies
def test_fastest_takes_the_fastest_for_each_kind() -> None:
    seconds = {("a", "conv2d"): 2.0, ("b", "conv2d"): 1.0, ("a", "other"): 1.0, ("b", "other"): 3.0}
    request = measured(lambda request, turn: seconds[request.mode, request.kind])
    assert request.mode == {"conv2d": "b", "other": "a"} and request.steps is None


def measured(seconds: Any) -> Commit:
    """Return the decision of `fastest`, given `seconds(request, turn)`."""
    deciding = fastest.decide(["a", "b"], ["conv2d", "other"], Situation(0, 10, [], 1.0), repeats=3)
    request, order = next(deciding), []
    while isinstance(request, Measure):
        order.append((request.kind, request.mode))
        request = deciding.send(seconds(request, order.count(order[-1]) - 1))
    assert order == [(kind, mode) for kind in ("conv2d", "other") for _ in range(3) for mode in "ab"]  # in turns
    return request


def test_fastest_keeps_the_first_candidate_within_the_noise() -> None:
    noise = (0.0, 0.1, -0.1)
    for apart, expected in ((0.05, "a"), (0.3, "b")):
        commit = measured(lambda request, turn, apart=apart: 1.0 + noise[turn] - apart * (request.mode == "b"))
        assert commit.mode == {"conv2d": expected, "other": expected}
        assert commit.why["other"]["a"] == {"seconds": 1.0, "spread": pytest.approx(0.1)}
    with pytest.raises(UserError, match="one measurement has no spread; set 2 or more"):
        next(fastest.decide(["a", "b"], ["other"], Situation(0, 10, [], 1.0), repeats=1))


def test_adaprec_takes_the_largest_gain_per_second() -> None:
    """`slow` gains most, `fast` most per second, `bad` is the fastest and loses."""
    rates = {"slow": (4.0, 0.004), "fast": (1.0, 0.003), "bad": (0.5, -0.006)}
    start = [Point(0, 0.1), Point(50, 0.3), Point(100, 0.4)]
    options = {"probe_steps": 10, "probe_scores": 2, "commit_steps": 50}
    deciding = adaprec.decide(list(rates), [], Situation(100, 1000, start, 1.0), **options)
    request = next(deciding)
    while isinstance(request, Probe):
        seconds, rate = rates[request.mode]
        request = deciding.send(Probed(seconds, [Point(105, 0.4 + 5 * rate), Point(110, 0.4 + 10 * rate)]))
    assert isinstance(request, Commit) and request.mode == "fast" and request.steps == 50
    why = request.why
    assert why["slow"]["predicted"] > why["fast"]["predicted"] > why["bad"]["predicted"]
    assert all(one["spread"] > 0 for one in why.values())


@pytest.mark.parametrize(
    "second, expected",
    [
        ((4.0, -0.004), "first"),  # nobody gains: the gain per second of the slowest is the largest
        ((1.0, -0.003), "first"),
        ((1.0, 0.004), "second"),
    ],
)
def test_adaprec_keeps_the_first_candidate_where_no_other_gains(second: Any, expected: str) -> None:
    rates = {"first": (1.0, -0.004), "second": second}
    start = [Point(0, 0.1), Point(50, 0.3), Point(100, 0.4)]
    options = {"probe_steps": 10, "probe_scores": 2, "commit_steps": 50}
    deciding = adaprec.decide(list(rates), [], Situation(100, 1000, start, 1.0), **options)
    request = next(deciding)
    while isinstance(request, Probe):
        seconds, rate = rates[request.mode]
        request = deciding.send(Probed(seconds, [Point(105, 0.4 + 5 * rate), Point(110, 0.4 + 10 * rate)]))
    assert isinstance(request, Commit) and request.mode == expected
    assert (request.why["second"]["gain"] > request.why["first"]["gain"]) or second[1] < 0


@pytest.mark.quick
@pytest.mark.parametrize(
    "now, bad, expected", [(0.4, "first", "second"), (0.4, "second", "first"), (-np.inf, "", "first")]
)
def test_adaprec_prefers_no_candidate_that_diverged(now: float, bad: str, expected: str) -> None:
    """Nor compares any, if the run itself has diverged."""
    options = {"probe_steps": 10, "probe_scores": 2, "commit_steps": 50}
    start = [Point(0, 0.1), Point(50, 0.3), Point(100, now)]
    policy = adaprec.decide(["first", "second"], [], Situation(100, 1000, start, 1.0), **options)
    request = next(policy)
    while isinstance(request, Probe):
        assert np.isfinite(now)
        last = -np.inf if request.mode == bad else 0.5
        request = policy.send(Probed(1.0, [Point(105, 0.45), Point(110, last)]))
    assert isinstance(request, Commit) and request.mode == expected


@pytest.mark.parametrize("curve", range(3))
def test_the_predictor_extrapolates(curve: int) -> None:
    """Of three curves that are none of the ensemble's, a third ahead, with noise: nearer than the last score is."""
    truth = [
        lambda s: 0.9 * (1 - 1 / (1 + s / 80)),
        lambda s: 0.2 + 0.6 * np.tanh(s / 150),
        lambda s: 0.8 * (1 - 0.5 ** (s / 70)),
    ][curve]
    noise = np.random.default_rng(curve)
    points = [(step, float(truth(step) + 0.003 * noise.normal())) for step in range(0, 201, 25)]
    value, spread = predict_score(points, 300, 1.0)
    assert abs(value - truth(300)) < 0.5 * abs(points[-1][1] - truth(300)) + 0.01
    assert abs(value - truth(300)) < 4 * spread
    assert predict_score(points, 300, 1.0) == (value, spread)


def test_the_predictor_survives_what_it_cannot_fit() -> None:
    for points in ([(0, 0.1)], [(0, 0.1), (10, 0.1)], [(0, 0.5), (10, 0.1), (20, 0.3)], [(0, -5.0), (9, -4.0)]):
        value, spread = predict_score(points, 50, 1.0 if points[0][1] > 0 else 0.0)
        assert np.isfinite([value, spread]).all() and spread > 0
    assert len({curve.name for curve in CURVES}) == 11
