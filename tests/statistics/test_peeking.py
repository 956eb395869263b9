"""Study of peeking: its rules are the suite's, its table is reproduced, and the page says what the table says."""

import doctest
import re

import conftest
import numpy as np
import pytest
from calibration import peeking, peeking_rules

from suite.statistics.sequential import decide, mean_interval

ROOT = conftest.TESTS.parent
PAGE = (ROOT / "docs" / "statistics.md").read_text()
TABLE = peeking.read(ROOT / "results" / "peeking.csv")
SHARES = {(row.study, row.scenario, row.rule, row.seeds): row.share for row in TABLE}
NAIVE, MEAN, MEDIAN = "t-test until p < .05", "sequential mean", "sequential median"


# -------------------------------------------------------------------------------------------------------------- rules
@pytest.mark.parametrize("scenario", ["normal", "lognormal, spread 50 %", peeking.ROUNDED])
def test_vectorised_rules_decide_as_the_suite_does(scenario):
    """Scaled, so that many of the simulations are decided."""
    values = peeking.DISTRIBUTIONS[scenario].draw(np.random.default_rng(0), (60, 12)) - 1.5
    t = peeking_rules.t_statistics(values)
    below = {
        "mean": t < -peeking_rules.critical_ts(12, 0.05),
        "median": peeking_rules.sufficient(values < 0, 0.05)[:, 1:],
    }
    low, high = peeking_rules.rounded_bounds(values, 0.5, 0.05)
    for simulation, seeds in np.ndindex(60, 11):
        first = values[simulation, : seeds + 2].tolist()
        for statistic, flags in below.items():
            assert flags[simulation, seeds] == (decide(first, None, 0.0, statistic).state == "inside")
        interval = mean_interval(first, 0.1, resolution=0.5)
        assert (low[simulation, seeds], high[simulation, seeds]) == pytest.approx((interval.low, interval.high))
    assert all(0.01 < flags.mean() < 0.99 for flags in below.values())


# -------------------------------------------------------------------------------------------------------------- table
@pytest.mark.parametrize("scenario", ["normal", "one seed in five is late", peeking.ROUNDED])
def test_committed_false_claims_are_reproduced(scenario):
    for row in peeking.false_claims(scenario):
        assert row.share == pytest.approx(SHARES["claim", scenario, row.rule, row.seeds], abs=2e-4)


def test_bounds_hold_where_the_assumptions_do():
    dependent, rounded = "autocorrelated (0.3)", peeking.ROUNDED
    for scenario in peeking.DISTRIBUTIONS:
        if scenario not in (dependent, rounded):
            assert SHARES["claim", scenario, MEDIAN, 30] <= 0.05, scenario
        assert SHARES["claim", scenario, NAIVE, 30] > 0.2, scenario
    for scenario in ("normal", "lognormal, spread 10 %"):
        assert SHARES["claim", scenario, MEAN, 30] <= 0.05, scenario
    for rule in (MEAN, MEDIAN):
        assert SHARES["claim", rounded, f"{rule}, resolution stated", 30] <= 0.05


def test_table_survives_writing_and_reading(tmp_path):
    peeking.write(TABLE, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (ROOT / "results" / "peeking.csv").read_bytes()


def test_figure_is_a_function_of_the_table(tmp_path):
    for name in ("first.svg", "second.svg"):
        peeking.draw(TABLE, tmp_path / name)
    drawn = (tmp_path / "first.svg").read_bytes()
    assert drawn == (tmp_path / "second.svg").read_bytes()
    halved = [row if row.rule != NAIVE else peeking.Share(**{**vars(row), "share": row.share / 2}) for row in TABLE]
    peeking.draw(halved, tmp_path / "third.svg")
    assert drawn != (tmp_path / "third.svg").read_bytes()


# --------------------------------------------------------------------------------------------------------------- page
def cells(start: str) -> list[list[str]]:
    """Return the rows of the page's table whose header starts with a text."""
    block = PAGE[PAGE.index(f"| {start} |") :].split("\n\n")[0]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}" + (" %" if digits else "")


def test_page_prints_the_shares_of_false_claims():
    rows = cells("seeds are")
    assert [row[0] for row in rows] == list(peeking.DISTRIBUTIONS)
    for scenario, *printed in rows:
        assert printed == [percent(SHARES["claim", scenario, rule, 30]) for rule in (NAIVE, MEAN, MEDIAN)]
    for line in PAGE[PAGE.index("| seeds are |") :].split("\n\n")[0].splitlines()[2:]:
        for number, bold in re.findall(r"\| (\*\*)?([\d.]+) %", line.partition(" % |")[2]):
            assert bool(number) == (float(bold) > 5)


def test_example_of_the_page_runs():
    failures, examples = doctest.testfile(str(ROOT / "docs" / "statistics.md"), module_relative=False)
    assert examples >= 4 and not failures
