"""Reading a check's number from results, and what a missed target leaves unknown."""

import math

import boards
import pytest

from suite.claims.claim import Check, Measure, Region
from suite.claims.measure import Bounds, compute_quantity, read_number

pytestmark = pytest.mark.quick


def result(steps=(10, 20, 30), values=(50.0, 80.0, 97.5), *, targets=((90.0, 30), (97.0, 30)), kind="reached", **more):
    """A result with evaluations of top1, and a ladder of (value, step of the crossing or None)."""
    curve = [
        {"step": step, "train_seconds": step / 10, "metrics": {"top1": value}}
        for step, value in zip(steps, values, strict=True)
    ]
    ladder = [
        {
            "metric": "top1",
            "value": value,
            "higher_is_better": True,
            "reached": step is not None,
            "step": step,
            "train_seconds": None if step is None else step / 10,
        }
        for value, step in targets
    ]
    return boards.made(curve=curve, targets=ladder, outcome={"kind": kind}, **more)


MISSED = result(values=(50.0, 80.0, 89.0), targets=((90.0, None), (97.0, None)), kind="exhausted")
DIVERGED = result(values=(50.0, None, None), targets=((90.0, None), (97.0, None)), kind="diverged")


@pytest.mark.parametrize(
    "measure, number",
    [
        ({"steps_to": "last"}, 30),
        ({"steps_to": "top1>=90"}, 30),
        ({"steps_to": "top1>=75"}, 20),  # not a target of the ladder: the first evaluation that meets it
        ({"seconds_to": "top1>=97"}, 3.0),
        ({"metric": "top1"}, 97.5),
        ({"metric": "top1", "step": 20}, 80.0),
        ({"metric": "top1", "best": "max"}, 97.5),
        ({"metric": "top1", "best": "min"}, 50.0),
        ({"field": "bytes.sent"}, 7),
        ({"outcome": "reached"}, 1),
        ({"outcome": "diverged"}, 0),
    ],
)
def test_each_measure_reads_its_number(measure, number):
    bounds = read_number(Measure(**measure), result(bytes={"sent": 7, "by_name": {}}))
    assert (bounds.low, bounds.high) == (number, number)


@pytest.mark.parametrize("measure", [{"metric": "loss"}, {"metric": "top1", "step": 25}, {"field": "bytes.received"}])
def test_a_number_that_the_result_lacks_is_undefined(measure):
    assert math.isnan(read_number(Measure(**measure), result()).low)


def test_a_missed_target_lies_beyond_what_was_spent():
    assert read_number(Measure(steps_to="last"), MISSED) == Bounds(30, math.inf)
    assert read_number(Measure(seconds_to="top1>=90"), MISSED) == Bounds(3.0, math.inf)


def test_a_run_that_diverged_never_reaches_the_target_and_has_no_last_metric():
    assert read_number(Measure(steps_to="last"), DIVERGED) == Bounds(math.inf, math.inf)
    assert math.isnan(read_number(Measure(metric="top1"), DIVERGED).low)


def check(compare, holds):
    return Check(
        name="a",
        scale="published",
        quantity="q",
        runs={"first": "x", "second": "y"} if compare != "value" else {"first": "x"},
        compare=compare,
        measure=Measure(steps_to="last"),
        holds=Region(**holds),
    )


def test_a_ratio_with_a_missed_target_is_bounded_on_one_side():
    below = check("ratio", {"below": 1.0})
    reached = result(steps=(5, 10, 15), targets=((97.0, 15),))
    assert compute_quantity(below, {"first": reached, "second": MISSED}) == Bounds(0.0, 0.5, 5 / 15)
    assert compute_quantity(below, {"first": MISSED, "second": reached}) == Bounds(2.0, math.inf, 5 / 15)


@pytest.mark.parametrize(
    "bounds, region, worst, best",
    [
        (Bounds(2, 2), {"below": 1}, 2, 2),
        (Bounds(0, 0.5), {"below": 1}, 0.5, 0),
        (Bounds(0, 0.5), {"above": 1}, 0, 0.5),
        (Bounds(0, 4), {"below": 1}, 4, 0),
        (Bounds(2, math.inf), {"above": 1}, 2, None),
        (Bounds(2, math.inf), {"above": 1, "below": 3}, math.inf, 2),
        (Bounds(0, math.inf), {"above": 1, "below": 3}, 0, None),
    ],
)
def test_the_worst_possible_value_decides_that_a_statement_holds_and_the_best_that_it_fails(
    bounds, region, worst, best
):
    region = Region(**region)
    assert bounds.against(region) == worst
    value = bounds.in_favour(region)
    assert bounds.low <= value <= bounds.high
    assert region.contains(value) if best is None else value == best
