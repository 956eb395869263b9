"""From measured values to verdicts."""

import json
import math

import pytest

from suite.claims.claim import Check, Claim, Paper, Region
from suite.claims.evidence import Evidence, list_missing_seeds
from suite.claims.measure import Bounds
from suite.claims.verdict import judge_check, judge_claim
from suite.statistics.share import find_least_share_seeds

pytestmark = pytest.mark.quick


def check(holds=None, **more):
    more = {"name": "a", "scale": "published", "quantity": "q", "study": "some", "minutes": 1} | more
    return Check(holds=Region(**(holds or {"below": 1.0})), **more)


def evidence(*values, resolution=0.0):
    bounds = [value if isinstance(value, Bounds) else Bounds(value, value, resolution) for value in values]
    return [Evidence(seed, one, (f"runs/{seed}.json",)) for seed, one in enumerate(bounds)]


def state(item, values, alpha=0.05):
    return judge_check(item, values, alpha=alpha).state


def test_a_check_holds_if_its_interval_lies_in_the_region_and_fails_if_it_lies_outside():
    assert state(check(), evidence(0.5, 0.51, 0.49)) == "holds"
    assert state(check(), evidence(1.5, 1.51, 1.49)) == "fails"
    assert state(check(), evidence(0.5, 0.9, 1.4)) == "undecided"
    assert state(check({"above": 0.4, "below": 0.6}), evidence(0.5, 0.501, 0.499)) == "holds"


def test_an_undecided_check_says_how_many_seeds_would_decide():
    item = judge_check(check(), evidence(0.8, 0.9, 0.7), alpha=0.05)
    assert item.state == "undecided" and item.seeds_needed and 1 <= item.seeds_needed <= 20


def test_an_undecided_share_says_how_many_seeds_would_decide_if_any_number_does():
    rare = check({"below": 0.05}, statistic="share")
    half = judge_check(rare, evidence(1.0, 0.0, 1.0, 0.0), alpha=0.025)
    assert half.state == "undecided" and half.seeds_needed == 2
    assert state(rare, evidence(*[1.0, 0.0, 0.0, 1.0, 0.0]), 0.025) == "undecided"
    assert state(rare, evidence(*[1.0, 0.0] * 3), 0.025) == "fails"
    on_the_bound = judge_check(rare, evidence(1.0, *[0.0] * 19), alpha=0.025)
    assert on_the_bound.seeds_needed is None and "200 seeds more would not decide" in on_the_bound.reason


def test_a_mean_on_its_bound_says_that_seeds_would_not_decide():
    item = judge_check(check(), evidence(0.9, 1.1, 1.0), alpha=0.05)
    assert item.seeds_needed is None and "200 seeds more would not decide" in item.reason


def test_a_ratio_whose_second_run_missed_the_target_is_judged_by_the_median():
    runs = {"small": "+task=resnet50", "large": "+task=resnet50"}
    item = check({"above": 0.67, "below": 1.5}, study=None, runs=runs, measure={"steps_to": "last"}, compare="ratio")
    assert state(item, evidence(*[1.0] * 12, Bounds(0.0, 1.2))) == "holds"  # at worst one ratio is 0
    assert state(item, evidence(*[Bounds(0.0, 0.5)] * 12)) == "fails"
    assert "no logarithm" in judge_check(item, evidence(1.0, 0.0, 1.0), alpha=0.05).reason


def test_nothing_measured_is_not_run_or_out_of_reach():
    assert state(check(), []) == "not run"
    assert state(check(needs="ImageNet"), []) == "out of reach"


def test_an_undefined_value_leaves_a_check_undecided_and_names_the_seed():
    item = judge_check(check(), evidence(0.5, math.nan, 0.5), alpha=0.05)
    assert item.state == "undecided" and "seed 1" in item.reason


def test_a_missed_target_is_judged_by_the_median_and_never_counts_for_the_statement():
    runs = {"kfac": "+task=resnet50", "sgd": "+task=resnet50"}
    item = check(study=None, runs=runs, measure={"steps_to": "last"}, compare="ratio")
    missed = judge_check(item, evidence(*[0.5] * 7, Bounds(1.2, math.inf)), alpha=0.05)
    assert "median" in missed.reason
    assert state(item, evidence(*[Bounds(0.0, 0.7)] * 8)) == "holds"  # the other method missed: the ratio is below 0.7
    assert state(item, evidence(*[Bounds(0.3, math.inf)] * 8)) == "undecided"  # its budget was too small to tell
    assert state(item, evidence(*[Bounds(1.3, math.inf)] * 8)) == "fails"


def test_equal_rounded_values_decide_by_their_resolution_only():
    assert state(check(), evidence(0.5, 0.5, 0.5)) == "undecided"  # no spread: nothing is known about it
    assert state(check(), evidence(0.5, 0.5, 0.5, resolution=0.02)) == "holds"


def test_a_share_is_judged_by_its_own_interval():
    share = check({"below": 0.5}, statistic="share")
    assert state(share, evidence(*[0.0] * 12)) == "holds"
    assert state(share, evidence(*[1.0] * 12)) == "fails"
    # the evidence against 1/2 or more is twice the share of Jeffreys' prior below 1/2 times 2⁷·B(½, 7½)/π = 26.8
    assert state(share, evidence(*[0.0] * 6)) == "holds"  # 28.8
    assert state(share, evidence(*[0.0] * 5)) == "undecided"  # 15.4
    assert find_least_share_seeds(-math.inf, 0.5) == 6
    assert state(share, evidence(0.0, 1.0, 0.0)) == "undecided"


def test_a_ratio_and_its_inverse_weigh_the_same():
    runs = {"kfac": "+task=resnet50", "sgd": "+task=resnet50"}
    item = check(study=None, runs=runs, measure={"steps_to": "last"}, compare="ratio")
    assert judge_check(item, evidence(0.25, 4.0), alpha=0.05).estimate == pytest.approx(1.0)


def test_an_exact_value_is_compared_without_statistics():
    assert state(check(statistic="exact"), evidence(0.999)) == "holds"
    assert state(check(statistic="exact"), evidence(1.0)) == "fails"  # the bound is not in the region


class Stored:
    """No results; studies are read from files, which these tests do not have."""

    def of(self, overrides, check):
        return {}


def verdicts(monkeypatch, values, **more):
    """Verdict and pattern of a claim with one check for each value; None means that nothing was measured."""
    from suite.claims import verdict

    checks = []
    for number, (scale, _) in enumerate(values):
        stand_in = {"stands_for": "x"} if scale == "stand-in" else {}
        checks.append(check(name=f"c{number}", scale=scale, statistic="exact", **stand_in, **more))
    found = {f"c{number}": [] if value is None else evidence(value) for number, (_, value) in enumerate(values)}
    monkeypatch.setattr(verdict, "collect_evidence", lambda claim, check, results: found[check.name])
    claim = Claim(id="a", statement="b", place="c", checks=tuple(checks))
    one = judge_claim(claim, "paper", Paper(citation="P", claims=(claim,)), Stored())
    return one.verdict, one.pattern


@pytest.mark.parametrize(
    "values, verdict, pattern",
    [
        ([("published", 0.5)], "reproduced", None),
        ([("published", 0.5), ("published", 2.0)], "contradicted", None),
        ([("published", 0.5), ("published", None)], "not run", None),
        ([("stand-in", 0.5)], None, "pattern seen"),
        ([("stand-in", 2.0)], None, "pattern not seen"),
        ([("published", None), ("stand-in", 2.0)], "not run", "pattern not seen"),
    ],
)
def test_only_the_published_size_gives_a_verdict(monkeypatch, values, verdict, pattern):
    assert verdicts(monkeypatch, values) == (verdict, pattern)


def test_what_a_laptop_lacks_is_out_of_reach(monkeypatch):
    assert verdicts(monkeypatch, [("published", None)], needs="ImageNet") == ("out of reach here", None)


@pytest.mark.parametrize("count, verdict", [(1, "reproduced"), (20, "undecided")])
def test_checks_of_a_claim_share_the_error_rate(monkeypatch, count, verdict):
    """With one check these values decide; with twenty they do not."""
    from suite.claims import verdict as module

    monkeypatch.setattr(module, "collect_evidence", lambda claim, check, results: evidence(0.80, 0.84, 0.76, 0.82))
    checks = tuple(check(name=f"c{number}") for number in range(count))
    claim = Claim(id="a", statement="b", place="c", checks=checks)
    assert judge_claim(claim, "paper", Paper(citation="P", claims=(claim,)), Stored()).verdict == verdict


def test_missing_seeds_are_new_ones_and_tuned_runs_skip_the_seeds_of_the_tuning():
    study, runs = check(), check(study=None, runs={"a": "+task=bert"}, measure={"metric": "loss"})
    assert list_missing_seeds(study, [], 3) == [0, 1, 2]
    assert list_missing_seeds(study, evidence(1.0), 3) == [1, 2]
    assert list_missing_seeds(runs, [], 3) == [3, 4, 5]
    assert list_missing_seeds(study, evidence(1.0, 2.0, 3.0), 3) == []


def test_a_run_names_the_claims_that_it_bears_on_whatever_its_seed():
    import conftest

    from suite.claims.standings import list_bearing
    from suite.record.record import make_result

    folder = conftest.TESTS.parent / "results" / "runs" / "resnet50"
    results = (json.loads(file.read_text()) for file in folder.glob("shapes-kfac-torch-s24-*.json"))
    result = next(result for result in results if result["spec"]["config"]["stop_at_target"])
    assert "osawa2020-fewer-steps" in list_bearing(make_result(result))
    other = result | {"command": result["command"] + " max_steps=8"}
    assert list_bearing(make_result(other)) == []
    config = result["spec"]["config"]
    changed = result | {"spec": result["spec"] | {"config": config | {"max_steps": 8}}}
    assert list_bearing(make_result(changed)) == []
