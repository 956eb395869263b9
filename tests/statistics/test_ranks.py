"""Study of ranks: its table is reproduced, and the page says what the table says."""

import conftest
import numpy as np
import pytest
from calibration import ranks
from calibration.ranks_ladders import Ladder, draw_values, list_nulls

from suite.statistics.registered import find_least_looks

ROOT = conftest.TESTS.parent
PAGE = (ROOT / "docs" / "statistics.md").read_text()
TABLE = ranks.read_table()
RULES = (ranks.ONE_LOOK, ranks.TWO_LOOKS, ranks.OPEN)


def cells(start: str) -> list[list[str]]:
    """Return the rows of the page's table whose header starts with a text."""
    block = PAGE[PAGE.index(f"| {start} |") :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]


def test_a_ladder_is_what_its_description_says():
    rng = np.random.default_rng(0)
    values = draw_values(Ladder((1.0, 2.0, float("inf")), spread=0.1, evaluations=40), 4000, rng)
    assert np.exp(values[:, 1] - values[:, 0]).mean() == pytest.approx(2, rel=0.03)
    assert (values[:, 2] == np.log(4 * 40 + 1)).all()
    late = draw_values(Ladder((1.0, 1.0), spread=0.1, evaluations=40, late=0.2), 4000, rng)
    assert late[:, 0].mean() == pytest.approx(late[:, 1].mean(), abs=0.01)
    assert (late[:, 0] > late[:, 0].mean() + 0.2).mean() == pytest.approx(0.2, abs=0.03)


def test_committed_errors_are_reproduced():
    name = "all equal, bimodal"
    committed = [row for row in TABLE if (row.study, row.scenario, row.rows) == ("null", name, 3)]
    assert list(ranks.count_errors("null", name, list_nulls(3)[name], ranks.NULLS[3])) == committed


@pytest.mark.slow
def test_committed_power_is_reproduced():
    committed = [row for row in TABLE if row.scenario == "spread 0.12, ratio 1.25"]
    assert list(ranks.measure_power(0.12, 1.25)) == committed


def test_no_rule_errs_more_often_than_it_says():
    for rows, simulations in ranks.NULLS.items():
        for rule in RULES:
            worst = ranks.find_worst(TABLE, "null", rule, rows)
            assert worst.share <= 0.05 + 2 * (0.05 * 0.95 / simulations) ** 0.5, worst


def test_one_look_at_ten_seeds_finds_a_leader():
    found = {(row.scenario, row.rule, row.seeds): row.share for row in TABLE if row.study == "power"}
    assert found["spread 0.12, ratio 1.25", ranks.ONE_LOOK, 10] >= 0.8


def test_page_prints_errors_and_power():
    printed = cells("rule")
    studies = [(study, rule) for study in ("null", "late") for rule in RULES]
    for row, (study, rule) in zip(printed, studies, strict=True):
        assert row[1:] == [f"{100 * ranks.find_worst(TABLE, study, rule, k).share:.1f}" for k in ranks.NULLS]
    found = {(row.scenario, row.rule, row.seeds): row.share for row in TABLE if row.study == "power"}
    columns = [(ranks.ONE_LOOK, n) for n in (10, 15, 20)] + [(ranks.TWO_LOOKS, n) for n in (5, 10)]
    columns += [(ranks.OPEN, n) for n in (10, 15, 20)]
    for row, (spread, ratio) in zip(cells("spread, ratio"), ranks.EFFECTS, strict=True):
        scenario = f"spread {spread:g}, ratio {ratio:g}"
        assert row == [f"{spread:g}, {ratio:g}", *(f"{100 * found[scenario, *column]:.0f}" for column in columns)]


def test_page_prints_the_fewest_seeds():
    (one, two), header = cells("k"), PAGE[PAGE.index("| k |") :].splitlines()[0]
    rows = [int(cell) for cell in header.strip("|").split("|")[1:]]
    assert one[1:] == [str(find_least_looks(k)[0]) for k in rows]
    assert two[1:] == [" and ".join(map(str, find_least_looks(k, 2))) for k in rows]
