"""Pictures of the leaderboard, as SVG."""

import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from boards import rank, result
from hypothesis import given
from hypothesis import strategies as st

from suite import svg
from suite.board.contest import Competitor, Contest, Setting
from suite.board.sections import make_sections
from suite.board.site import curves, profile, strip, text
from suite.board.site.dots import Dots, draw_dots
from suite.board.site.strip import draw_strip
from suite.statistics.flips import Ratio
from suite.statistics.summary import Observation, summarize_seeds


def parsed(picture):
    return ElementTree.fromstring(picture)


def line(optimizer, *spent, backend="torch", reached=True, easier=()):
    seeds = {seed: Observation(value, reached) for seed, value in enumerate(spent)}
    return Dots(optimizer, backend, summarize_seeds(seeds.values()), seeds, easier)


def marks(picture, name, attribute):
    return [float(element.get(attribute)) for element in parsed(picture).iter() if element.get("class") == name]


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_round_and_within_the_range(low, width):
    high = low + width
    values = svg.list_ticks(low, high)
    slack = 1e-9 * max(abs(low), abs(high), width)
    assert all(low - slack <= value <= high + slack for value in values) and len(values) <= 7


def test_ticks_of_a_known_range():
    assert svg.list_ticks(0, 520) == [0, 200, 400]
    assert svg.list_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert svg.list_ticks(3, 3) == [3] and svg.list_ticks(0, float("inf")) == [0]


def test_a_scale_maps_its_ends_and_keeps_outliers_inside():
    scale = svg.Scale(0, 10, 100, 200)
    assert [scale(value) for value in (-5, 0, 5, 10, 99)] == [100, 100, 150, 200, 200]
    assert svg.Scale(1, 1, 7, 9)(1) == 7


def test_coordinates_are_short():
    assert [svg.format_coordinate(value) for value in (-0.01, 0.04, 1.0, 2.25, -3.14)] == ["0", "0", "1", "2.2", "-3.1"]


def test_a_median_stands_in_proportion_with_its_interval_and_seeds():
    picture = draw_dots([line("kfac", 100, 150, 200, easier=(50,)), line("sgd", 400)], "steps", "label")
    (kfac, sgd) = marks(picture, "mark", "cx")
    assert (kfac - 110) / (sgd - 110) == pytest.approx(150 / 400, abs=0.01)  # the axis begins at 110
    assert len(marks(picture, "seed", "x1")) == 4 and len(marks(picture, "easier", "cx")) == 1
    (low,), (high,) = marks(picture, "bar", "x1"), marks(picture, "bar", "x2")
    assert low < kfac < high


def test_a_row_that_misses_has_an_arrow_instead_of_a_mark():
    picture = draw_dots([line("kfac", 100), line("sgd", 400, reached=False)], "steps", "label")
    assert len(marks(picture, "mark", "cx")) == 1 and picture.count('class="arrow"') == 1
    assert "&gt; 400" in picture


def test_frameworks_differ_in_shape_too():
    picture = draw_dots([line("kfac", 100), line("kfac", 100, backend="jax")], "steps", "label")
    assert (
        len(re.findall(r'<circle class="mark"', picture)) == 1 and len(re.findall(r'<path class="mark"', picture)) == 1
    )


def test_labels_from_outside_are_escaped_and_shortened():
    picture = draw_dots([line('<script>"&', 1), line("x" * 500, 2)], "<b>", '"><script>')
    assert "<script" not in picture and "x" * 16 not in picture
    assert parsed(picture).get("aria-label") == '"><script>'


def contest(*ratios, tiers=None):
    rows = rank([result(optimizer=name, seed=0) for name in "abcdefghijkl"]).groups[0].entries
    placed = [
        Competitor((row,), "may lead", 1, len(ratios), tier, ratio=ratio)
        for row, ratio, tier in zip(rows, ratios, tiers or [1] * len(ratios), strict=False)
    ]
    return Contest(Setting("float32", 1, 10), tuple(placed), ())


def spans(picture, name):
    return [
        tuple(float(element.get(key)) for key in ("x1", "x2"))
        for element in parsed(picture).iter()
        if element.get("class") == name
    ]


def test_a_strip_places_ratios_on_a_logarithmic_axis():
    picture = draw_strip(contest(None, Ratio(2.0, 1.0, 4.0, 0.95, 8), Ratio(4.0, 2.0, 8.0, 0.95, 8)))
    one, two = [float(element.get("cx")) for element in parsed(picture).iter() if element.tag.endswith("circle")]
    (low, high), (lower, higher) = spans(picture, "bar")
    steps = [one - low, high - one, two - lower, higher - two, two - one]
    assert steps == pytest.approx([two - one] * 5, abs=0.2) and two > one
    assert spans(picture, "one")[0][0] == pytest.approx(low, abs=0.1)
    assert 'class="arrow"' not in picture
    assert [element.text for element in parsed(picture).iter() if element.get("class") == "value"] == ["1 to 3"] * 3


@pytest.mark.parametrize(
    ("ratio", "arrows"),
    [
        (Ratio(None, 3.0, math.inf, 0.95, 8), 1),
        (Ratio(None, 0.0, 1.3, 0.75, 3), 1),
        (Ratio(None, 0.0, math.inf, 0.0, 0), 2),
        (Ratio(None, math.inf, math.inf, 0.95, 8), 1),  # it never reached the target
        (Ratio(None, 0.0, 0.0, 0.95, 8), 1),
        (Ratio(1000.0, 900.0, 1100.0, 0.95, 8), 1),  # beyond the axis
    ],
)
def test_an_arrow_says_that_a_ratio_goes_on(ratio, arrows):
    picture = draw_strip(contest(None, ratio))
    assert picture.count('class="arrow"') == arrows
    ((start, end),) = spans(picture, "bar")
    assert strip.LEFT <= start < end <= strip.WIDTH - strip.RIGHT


def test_tiers_are_apart_and_a_strip_is_short():
    ratio = Ratio(2.0, 1.5, 4.0, 0.95, 8)
    assert draw_strip(contest(None, ratio)).count('class="tier"') == 0
    assert draw_strip(contest(None, ratio, ratio, ratio, tiers=[1, 1, 2, 3])).count('class="tier"') == 2
    assert draw_strip(contest(None, *[ratio] * 11)).count('class="bar"') == strip.MOST_LINES - 1
    assert draw_strip(contest(None)) == draw_strip(contest()) == ""


TARGET = {"metric": "top1", "value": 85.0, "higher_is_better": True}


def curve(optimizer, *seeds, backend="torch"):
    return curves.Curve(optimizer, backend, tuple([(float(step), value) for step, value in seed] for seed in seeds))


def test_a_band_covers_the_steps_that_every_seed_has():
    some = curve("kfac", [(10, 1.0), (20, 2.0), (30, 3.0)], [(10, 5.0), (20, 4.0)], [(10, 2.0), (20, 9.0)])
    assert some.band() == [(10, 1.0, 2.0, 5.0), (20, 2.0, 4.0, 9.0)]


def test_each_optimizer_has_a_panel_with_both_frameworks():
    some = [curve("kfac", [(10, 40.0), (20, 85.0)]), curve("kfac", [(10, 41.0), (20, 85.0)], backend="jax")]
    panels = curves.draw_panels([*some, curve("sgd", [(10, 20.0), (40, 85.0)])], TARGET, "c1")
    assert [name for name, _ in panels] == ["kfac", "sgd"]
    assert panels[0][1].count('class="middle"') == 2 and panels[1][1].count('class="middle"') == 1
    assert all(parsed(picture) is not None for _, picture in panels)
    assert panels[0][1].count('id="c1-all"') == 1 and panels[1][1].count('href="#c1-all"') == 1
    assert curves.draw_panels([curve("kfac")], TARGET, "c1") == []


def test_long_curves_are_thinned_and_keep_their_end():
    points = [(float(step), 1.0) for step in range(1, 100_001)]
    kept = curves.thin_points(points)
    assert len(kept) <= curves.MOST_POINTS + 1 and kept[0] == points[0] and kept[-1] == points[-1]
    (panel,) = curves.draw_panels([curves.Curve("kfac", "torch", (points,))], TARGET, "c1")
    assert len(panel[1]) < 10_000


def test_a_loss_that_explodes_does_not_flatten_the_others():
    down = {"metric": "loss", "value": 0.1, "higher_is_better": False}
    steps = [(step, 1.0 - step / 100) for step in range(1, 91)]
    (panel,) = curves.draw_panels([curve("kfac", [*steps, (91, 1e30)])], down, "c1")
    labels = [element.text for element in parsed(panel[1]).iter() if element.get("class") == "tick small"]
    assert "0.5" in labels or "0.4" in labels


def ladder(width, **steps):
    return [result(optimizer=name, step=step, task={"width": width}) for name, step in steps.items()]


def test_the_profile_compares_optimizers_over_ladders():
    results = [
        *ladder(1, kfac=100, sgd=200),
        *ladder(2, kfac=300, sgd=100),
        *ladder(3, kfac=100, sgd=100, lamb=50),
    ]
    overview = profile.make_overview(make_sections(rank(results).groups))
    assert overview is not None and overview.backend == "torch" and len(overview.ladders) == 3
    assert list(overview.profiles) == ["sgd", "kfac"] and overview.left_out == ("lamb",)
    assert sorted(overview.profiles["kfac"].ratios.values()) == [1, 2, 3]
    picture = profile.draw_profiles(overview)
    assert "sgd (3/3)" in picture and parsed(picture) is not None


def test_few_ladders_make_no_profile():
    assert profile.make_overview(make_sections(rank([*ladder(1, kfac=100, sgd=200)]).groups)) is None
    alone = [some for width in (1, 2, 3) for some in ladder(width, kfac=100)]
    assert profile.make_overview(make_sections(rank(alone).groups)) is None
    assert profile.make_overview([]) is None


def test_labels_of_a_profile_never_cover_each_other():
    placed = sorted(profile._spread([50.0] * 8))
    assert all(b - a >= profile.LABEL_HEIGHT - 1e-9 for a, b in itertools.pairwise(placed))
    assert max(profile._spread([224.0] * 8)) <= profile.HEIGHT - profile.FOOT + 1e-9


def test_numbers_as_text():
    assert [text.format_number(value) for value in (None, "?", 1234.0, 0.123456, 99.5, float("inf"))] == [
        "", "?", "1,234", "0.1235", "99.5", "∞"
    ]  # fmt: skip
    assert [text.format_size(value) for value in (None, 0, 999.7, 1000, 2.5e9, 3e15)] == [
        "–", "0 B", "1 kB", "1 kB", "2.5 GB", "3,000 TB"
    ]  # fmt: skip
    assert text.format_ratio(Ratio(1.5, 1.2, 1.8, 0.95, 8)) == "1.5 × (1.2 to 1.8)"
    assert text.format_ratio(Ratio(None, 1.2, math.inf, 0.95, 8)) == "at least 1.2 ×"
    assert text.format_ratio(Ratio(None, 0.0, 1.8, 0.95, 8)) == "at most 1.8 ×"
    assert text.format_ratio(Ratio(None, 0.0, math.inf, 0.95, 8)) == "no ratio: a target was missed"
    for one in (Ratio(None, math.inf, math.inf, 0.95, 10), Ratio(None, 0.0, 0.0, 0.95, 10)):
        assert text.format_ratio(one) == "no ratio: the target was missed too often"
    assert text.format_ratio(Ratio(None, 0.0, 1.8, 0.75, 3)) == "at most 1.8 × (covers 75 %)"
    assert text.format_ratio(Ratio(1.5, 1.2, 1.8, 0.75, 3)) == "1.5 × (1.2 to 1.8; covers 75 %)"
    assert text.format_ratio(Ratio(1.5, 1.2, 1.8, 0.0, 1)) == "1.5 × (one seed)"
    assert text.format_ratio(Ratio(None, 0.0, math.inf, 0.0, 0)) == "no common seed"
