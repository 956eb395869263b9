"""When a benchmark counts as slower, and how often that is wrong."""

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from calibration import processes, regressions

from suite.regress import rule
from suite.regress.benchmarks import Benchmark
from suite.regress.rule import Look, judge_ratios, look_at
from suite.regress.session import Limits, Outcome, Session
from suite.regress.sides import Side
from suite.statistics.sequential import decide

A, B = (Side(name, Path("python"), Path()) for name in "AB")


def compare(values: Iterator[float], effect: float, limits: Limits | None = None) -> tuple[Outcome, Limits]:
    """A comparison whose measurements are given."""
    chosen = limits or Limits()

    def measure(sides: Sequence[Side], *_: object) -> list[float]:
        return [next(values) * (effect if side is B else 1.0) for side in sides]

    [outcome] = Session((A, B), [Benchmark("step", ())], chosen, measure=measure).run()
    return outcome, chosen


def noise(seed: int, spread: float) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    return (math.exp(spread * rng.standard_normal()) for _ in itertools.count())


def test_a_slow_side_needs_a_second_look() -> None:
    outcome, limits = compare(noise(0, 0.01), 1.1)
    decision = outcome.verdict(limits, 1)
    assert decision and decision.state == "slower" and outcome.second
    assert decision.shown.rounds == len(outcome.second) and decision.rounds == len(outcome.first) + len(outcome.second)
    assert 1.05 < decision.shown.ratio < 1.15  # of the second look alone


def test_an_alarm_that_is_not_repeated_is_no_regression() -> None:
    """B is slower only in the first four rounds."""
    rng = np.random.default_rng(1)
    calls = itertools.count()

    def measure(sides: Sequence[Side], *_: object) -> list[float]:
        slow = [1.1 if side is B and next(calls) < 4 else 1.0 for side in sides]
        return [factor * math.exp(0.005 * rng.standard_normal()) for factor in slow]

    limits = Limits()
    [outcome] = Session((A, B), [Benchmark("step", ())], limits, measure=measure).run()
    decision = outcome.verdict(limits, 1)
    assert decision and decision.state == "not slower" and decision.reason == "a first alarm could not be repeated"


def test_equal_sides_are_not_slower_and_noisy_ones_undecided() -> None:
    outcome, limits = compare(noise(2, 0.01), 1.0)
    decision = outcome.verdict(limits, 1)
    assert decision and decision.state == "not slower" and not outcome.second
    outcome, limits = compare(noise(3, 0.3), 1.0)
    decision = outcome.verdict(limits, 1)
    assert decision and decision.state == "undecided" and decision.rounds == limits.rounds


@pytest.mark.parametrize("ratios", [[1.2, 1.201, 1.199], [1.01, 1.02] * 4], ids=["few", "small"])
def test_few_rounds_and_small_differences_are_no_alarm(ratios: list[float]) -> None:
    assert look_at(ratios).state == "undecided"


def test_late_processes_do_not_hide_a_slow_side() -> None:
    """In one round of ten, the process of side A took three times as long; the median decides."""
    ratios = [1.1, 1.101, 1.099, 1.102, 1.1, 1.1 / 3, 1.1, 1.098, 1.1, 1.103] * 2
    shown = look_at(ratios)
    assert shown.state == "slower" and shown.statistic == "median"


def test_statistics_that_contradict_each_other_decide_nothing() -> None:
    """Four rounds of five are 3 % slower, and the fifth is 10 % faster: the median says slower, the mean not slower."""
    ratios = [1.03, 1.03, 1.03, 1.03, 0.9] * 60
    states = {look_at(ratios[:count]).state for count in range(200, 301)}
    assert rule._look(ratios, 0.02, 0.05, "median").state == "slower"
    assert rule._look(ratios, 0.02, 0.05, "mean").state == "not slower"
    assert states == {"undecided"}


def test_an_alarm_that_was_not_checked_is_undecided() -> None:
    assert judge_ratios(Look("slower", "mean", 1.1, 1.05, 1.15, 5, 0), None).state == "undecided"


@pytest.mark.quick
def test_mean_and_median_share_the_error_rate() -> None:
    ratios = [1.0, 1.1, 0.95, 1.02, 1.04]
    shown = look_at(ratios)
    expected = decide(ratios, None, 1 + rule.MARGIN, shown.statistic, rule.ALPHA / 4, log=True)
    assert shown.state == "undecided" and (shown.low, shown.high) == (expected.low, expected.high)


def test_two_rounds_have_both_orders_of_the_sides() -> None:
    """Which order comes first is random. A process that is slower because it starts second shifts no ratio."""
    order: list[bool] = []

    def measure(sides: Sequence[Side], *_: object) -> list[float]:
        order.append(sides[0] is A)
        return [1.0 + 0.3 * (len(order) % 3), 1.01]

    [outcome] = Session((A, B), [Benchmark("step", ())], Limits(rounds=20), measure=measure).run()
    pairs = list(zip(order[::2], order[1::2], strict=True))
    assert len(outcome.first) == 20 and set(pairs) == {(True, False), (False, True)}


def test_several_benchmarks_share_the_error_rate() -> None:
    outcome, limits = compare(noise(4, 0.02), 1.03, Limits(rounds=10))
    alone, among = outcome.looks(limits, 1), outcome.looks(limits, 20)
    assert alone and among and among[0].high - among[0].low > alone[0].high - alone[0].low


def test_a_limit_of_time_starts_no_further_round() -> None:
    outcome, limits = compare(noise(5, 0.3), 1.0, Limits(seconds=0.0))
    assert not outcome.first and outcome.verdict(limits, 1) is None


def test_the_committed_table_is_that_of_the_code() -> None:
    rows = regressions.read()
    assert [(row.noise, row.effect) for row in rows] == list(itertools.product(regressions.NOISES, regressions.EFFECTS))
    assert all(row.slower <= 0.01 for row in rows if row.effect == 1.0)
    assert regressions.markdown(rows) in regressions.PAGE.read_text()
    again = regressions.simulate("normal, 1 %", 1.1, simulations=20)
    assert again == regressions.simulate("normal, 1 %", 1.1, simulations=20) and again.slower == 1.0


@pytest.mark.quick
def test_comparisons_are_replayed_from_records(tmp_path: Path) -> None:
    """With a spread of 1 %, a side is not slower than itself, and a slow-down of 10 % is found."""
    path, values = tmp_path / "processes.csv", noise(6, 0.007)
    lines = [f"sgd-jax,idle,turns,{next(values):.6g},{next(values):.6g}\n" for _ in range(100)]
    path.write_text("benchmark,load,design,first,second\n" + "".join(lines))
    kind = processes.Kind("sgd-jax", "idle", "turns")
    rounds = processes.read_rounds(kind, path)
    assert len(rounds) == 100 and 0.005 < processes.spread(rounds) < 0.015
    same, slow = (processes.replay_comparisons(kind, rounds, effect) for effect in (1.0, 1.1))
    assert same.states["slower"] == 0 and same.states["not slower"] >= 90
    assert slow.states["slower"] == 100 and slow.rounds >= 8


@pytest.mark.slow
def test_the_committed_replays_are_those_of_the_code() -> None:
    rows = processes.rows()
    assert processes.markdown(rows) in processes.PAGE.read_text()
    assert all(row.states["slower"] <= 5 for row in rows if row.effect == 1.0)


def test_an_undecided_answer_says_how_many_rounds_would_decide_or_why_nobody_knows() -> None:
    wide = look_at([0.849, 1.194, 0.9, 1.1, 1.05, 0.95, 1.12, 0.88, 1.02, 0.97, 1.15, 0.86, 1.01])
    reason = judge_ratios(wide, None).reason
    assert wide.state == "undecided" and ("rounds more would decide" in reason or "below 200 further" in reason)
    alarm = look_at([1.3, 1.31, 1.29, 1.3, 1.3, 1.31, 1.29, 1.3] * 2)
    unclear = judge_ratios(alarm, wide)
    assert alarm.state == "slower" and unclear.state == "undecided"
    assert unclear.reason == f"a first alarm is neither confirmed nor refuted; {reason}"
