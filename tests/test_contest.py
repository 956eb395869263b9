"""Which optimizer leads a contest, and what a framework changes."""

import pytest
from boards import point, rank, result

from suite.board.contest import compare_rows, find_framework_effects
from suite.board.design import Design, find_design, list_designs, read_designs
from suite.board.sections import make_sections
from suite.board.site import text
from suite.board.site.strip import draw_strip
from suite.board.site.views import SectionView
from suite.contract import UserError

pytestmark = pytest.mark.quick


def seeds(optimizer, *spent, backend="torch", comm="float32", world=1, **more):
    some = [result(seed=seed, step=step, optimizer=optimizer, **more) for seed, step in enumerate(spent)]
    return [{**one, "spec": {**one["spec"], "backend": backend, "comm": comm, "world": world}} for one in some]


def only(results, design=None):
    (contest,) = compare_rows(rank(results).groups[0].entries, design)
    return contest


def kinds(results, design=None):
    contest = only(results, design)
    return {(one.optimizer, one.rows[0].settings.get("optimizer.lr")): one.kind for one in contest.competitors}


CLEAR = [*seeds("kfac", *range(100, 108)), *seeds("sgd", *range(200, 208))]
DESIGN = Design("resnet50", "digits", ("kfac", "sgd"), ("torch",), (3, 4, 5, 6, 7, 8, 9), (4, 7), 10)


def test_rows_that_differ_in_every_seed_have_a_leader():
    assert kinds(CLEAR) == {("kfac", None): "leads", ("sgd", None): "behind"}
    contest = only(CLEAR)
    assert contest.leader == "kfac" and contest.possible_leaders == ["kfac"]
    first, second = contest.competitors
    assert (first.rank_low, first.rank_high, first.tier, first.ratio) == (1, 1, 1, None)
    assert (second.rank_low, second.rank_high, second.tier) == (2, 2, 2)
    assert 1.9 < second.ratio.low < second.ratio.high < 2.1


def test_rows_that_do_not_differ_enough_have_none():
    near = [*seeds("kfac", 100, 150, 90, 120, 100, 130), *seeds("sgd", 120, 110, 190, 110, 130, 120)]
    assert set(kinds(near).values()) == {"may lead"}
    assert only(near).leader is None and only(near).possible_leaders == ["kfac", "sgd"]


def test_a_registered_design_decides_with_fewer_seeds_than_an_open_one():
    four = [*seeds("kfac", 100, 101, 102, 103), *seeds("sgd", 200, 201, 202, 203)]
    assert only(four).leader is None and only(four, DESIGN).leader == "kfac"
    assert only(four, DESIGN).looks == (4, 7) and only(four).looks == ()


def test_the_page_of_a_registered_ladder_says_after_how_many_seeds_it_is_compared(monkeypatch):
    monkeypatch.setattr("suite.board.groups.find_design", lambda *_, **__: DESIGN)
    leaderboard = rank(CLEAR)
    (section,) = make_sections(leaderboard.groups)
    assert SectionView(section, leaderboard).caption.endswith("; registered, compared after 4 and 7 seeds")
    assert section.leader == "kfac"


@pytest.mark.parametrize("name", ["digits", "disruptions"])  # that results give to the data of task.data=digits
def test_a_design_names_data_as_a_command_does(name, monkeypatch):
    monkeypatch.setattr("suite.board.design.list_designs", lambda: (DESIGN,))
    named = [{**one, "data": {**one["data"], "name": name}} for one in CLEAR]
    other = [result(task={"data": "shapes"}, seed=seed) for seed in range(2)]
    designs = {group.settings["data"]: group.design for group in rank([*named, *other]).groups}
    assert designs == {"digits": DESIGN, "shapes": None}


def test_a_registered_design_counts_its_own_seeds_only():
    chosen = [*seeds("kfac", *[300] * 7), *seeds("sgd", *range(100, 107))]
    moved = Design("resnet50", "digits", ("kfac", "sgd"), ("torch",), (23, 24, 25, 26, 27, 28, 29), (4, 7), 10)
    assert only(chosen, DESIGN).looks == (4, 7) and only(chosen, DESIGN).leader == "sgd"
    assert only(chosen, moved).looks == (), "without a registered seed, a row is exploratory"


def test_an_optimizer_without_runs_counts_as_registered():
    """One lost seed of eight has p = 2/256: enough for two rows, and too much for seven."""
    two = [*seeds("kfac", *[100] * 7, 160), *seeds("sgd", *[150] * 8)]
    alone, among = (
        Design("resnet50", "digits", names, ("torch",), tuple(range(3, 11)), (8,), 10)
        for names in (("kfac", "sgd"), ("kfac", "sgd", "a", "b", "c", "d", "e"))
    )
    assert only(two, alone).leader == "kfac" and only(two, among).leader is None


def test_a_registered_contest_comes_first():
    registered = [*seeds("kfac", 100, 101, 102, 103), *seeds("sgd", 200, 201, 202, 203)]
    finer = [*seeds("kfac", *range(100, 108), cadence=5), *seeds("sgd", *range(100, 108), cadence=5)]
    entries = rank([*registered, *finer]).groups[0].entries
    assert [contest.setting.eval_every for contest in compare_rows(entries, DESIGN)] == [10, 5]
    assert [contest.setting.eval_every for contest in compare_rows(entries)] == [5, 10]
    entries = rank([*registered, *finer, *seeds("lamb", 100, cadence=5)]).groups[0].entries
    assert [contest.setting.eval_every for contest in compare_rows(entries, DESIGN)] == [10, 5]


def test_rows_outside_of_a_design_are_a_contest_by_themselves_and_change_none():
    others = [*seeds("lamb", *range(50, 58)), *seeds("kfac", 20, lr=0.9)]
    registered, rest = compare_rows(rank([*CLEAR, *others]).groups[0].entries, DESIGN)
    places = [[(one.optimizer, one.rank_low, one.rank_high, one.ratio) for one in contest.competitors]
              for contest in (registered, only(CLEAR, DESIGN))]  # fmt: skip
    assert places[0] == places[1] and registered.leader == "kfac"
    assert [(one.optimizer, len(one.rows[0].seeds)) for one in rest.competitors] == [("lamb", 8), ("kfac", 1)]
    assert rest.looks == () and rest.leader is None and [one.optimizer for one in rest.ranked] == ["lamb"]


@pytest.mark.parametrize("spent", [(50,), (50, 60)])
def test_a_newcomer_with_few_seeds_is_not_ranked(spent):
    contest = only([*CLEAR, *seeds("lamb", *spent)])
    assert {one.optimizer: (one.rank_low, one.rank_high) for one in contest.ranked} == {"kfac": (1, 1), "sgd": (2, 2)}
    assert contest.leader == "kfac" and contest.seeds == [8, 8]
    assert text.tell_story(contest) == "kfac leads; sgd needs 1.97 × (1.95 to 1.99) the steps of kfac."
    place = text.describe_place(contest.competitors[-1], "kfac")
    assert place == f"not ranked: {len(spent)} seed{'s' * (len(spent) > 1)}, of the 3 that are needed"


def test_an_optimizer_that_never_reached_the_target_is_in_neither_sentence_nor_contest():
    """One run of an optimizer that failed cannot become a possible leader, and eight cannot either."""
    near = [*seeds("kfac", 100, 150, 90, 120), *seeds("sgd", 120, 110, 190, 110)]
    for count in (1, 3, 8):
        contest = only([*near, *seeds("lion", *[1] * count, kind="failed")])
        assert contest.possible_leaders == ["kfac", "sgd"] and "lion" not in text.tell_story(contest)
        lion = contest.competitors[-1]
        assert (lion.optimizer, lion.kind) == ("lion", "not ranked") and draw_strip(contest).count("lion") == 0
    assert text.describe_place(lion, "kfac") == "not ranked: none of 8 seeds reached the target"
    among = [*near, *seeds("lion", 1, 1, kind="failed"), *seeds("lion", 1, 1, 300)[2:]]
    assert "lion" in [one.optimizer for one in only(among).ranked], "one of three seeds reached it"


def test_a_ladder_with_one_ranked_optimizer_or_none_says_so():
    one = only([*seeds("kfac", *range(100, 108)), *seeds("lion", *[1] * 8, kind="diverged")])
    assert text.tell_story(one) == "Only kfac is ranked." and one.leader is None and draw_strip(one) == ""
    none = only([*seeds("kfac", 100, 101), *seeds("sgd", 200)])
    assert text.tell_story(none) == "Nobody is ranked: too few seeds." and text.has_few_seeds(none)


def test_no_diamond_where_no_median_seed_reached_the_target():
    rarely = [
        some for name in ("kfac", "sgd") for some in [*seeds(name, 100), *seeds(name, 1, 1, 1, 1, kind="exhausted")[1:]]
    ]
    contest = only(rarely)
    assert len(contest.ranked) == 2 and draw_strip(contest) == ""
    assert text.tell_story(contest) == "No median seed reached the target."


def test_a_short_run_of_another_method_hides_no_other_pair():
    clear = [*seeds("kfac", *range(100, 112)), *seeds("sgd", *range(200, 212))]
    short = [*clear, *seeds("lamb", *[1] * 12, kind="exhausted", budget=50)]
    entries = rank(short).groups[0].entries
    for design in (None, DESIGN):
        ranks = {one.optimizer: (one.rank_low, one.rank_high) for one in compare_rows(entries, design)[0].competitors}
        assert ranks["kfac"][1] < 3 and ranks["sgd"][0] == 2


def test_the_more_rows_there_are_the_more_evidence_each_needs():
    two = [*seeds("kfac", *range(100, 106)), *seeds("sgd", *range(200, 206))]
    assert kinds(two)["sgd", None] == "behind"
    more = [some for name in ("lamb", "lars", "adamw", "muon") for some in seeds(name, *range(150, 156))]
    assert set(kinds([*two, *more]).values()) == {"may lead"}


def test_the_ratio_allows_for_the_steps_between_evaluations():
    def second(every):
        results = [*seeds("kfac", *[200] * 6, every=every), *seeds("sgd", *[400] * 6, every=every)]
        return only(results).competitors[1].ratio

    assert (second(1).low, second(1).high) == pytest.approx((2, 2))
    assert (second(20).low, second(20).high) == pytest.approx((381 / 200, 400 / 181))


def test_the_first_evaluation_may_see_a_target_that_was_met_in_the_first_step():
    first = seeds("kfac", 50, 50, 50, 50, curve=[point(50, 50.0)])
    contest = only([*first, *seeds("sgd", 100, 100, 100, 100, every=50)])
    assert [one.rows[0].seeds[3].earliest for one in contest.competitors] == [1, 51]
    assert contest.leader is None and contest.competitors[1].ratio.estimate > 2


def test_two_settings_of_one_optimizer_do_not_keep_it_from_leading():
    similar = [*CLEAR, *seeds("kfac", 101, 100, 103, 102, 105, 104, 107, 106, lr=0.2)]
    assert sorted(kinds(similar).values()) == ["behind", "leads", "leads"]
    assert only(similar).leader == "kfac"


def test_the_ratio_of_a_row_shown_to_be_later_is_no_less_than_one():
    """Two late seeds move the leader's mean, and not the shown order."""
    late = [*seeds("kfac", *[100] * 18, 2000, 2000, budget=4000), *seeds("sgd", *[110] * 20, budget=4000)]
    contest = only(late)
    assert contest.leader == "kfac"
    ratio = contest.competitors[1].ratio
    assert 1 <= ratio.low <= ratio.estimate <= ratio.high


def test_misses_count_as_the_evaluation_after_the_budget():
    missed = [*CLEAR, *seeds("lamb", *[1] * 8, kind="exhausted")[:7], seeds("lamb", *[390] * 8)[7]]
    assert kinds(missed)["lamb", None] == "behind" and only(missed).leader == "kfac"
    lamb = only(missed).competitors[-1]
    assert lamb.irregular and lamb.rank_low == 3 and lamb.ratio.low == pytest.approx(4, rel=0.1)
    assert text.describe_place(lamb, "kfac") == (
        "median seed missed the target; rank 3; at least 3.75 × the steps of kfac; late seeds or misses"
    )


def test_the_smallest_budget_caps_all_rows():
    """A row with a larger budget must not look later because it was allowed to go on."""
    short, long = seeds("kfac", *[1] * 8, kind="exhausted", budget=300), seeds("sgd", *range(500, 508), budget=900)
    assert only([*short, *long]).leader is None


def test_a_row_without_a_finished_run_keeps_nobody_from_leading():
    interrupted = [*CLEAR, *seeds("lamb", 1, kind="interrupted")]
    assert kinds(interrupted) == {("kfac", None): "leads", ("sgd", None): "behind", ("lamb", None): "no runs"}


def test_a_method_that_misses_in_the_median_can_still_be_the_best():
    results = [*seeds("kfac", 100, 100, 100), *seeds("sgd", *[200] * 7)]
    results += [result(seed=seed, optimizer="kfac", kind="exhausted") for seed in range(3, 7)]
    contest = only([{**one, "spec": {**one["spec"], "comm": "float32"}} for one in results])
    assert contest.leader is None and contest.possible_leaders == ["sgd", "kfac"]
    assert text.tell_story(contest).startswith("sgd or kfac may lead; kfac needs ")
    missed = only([*seeds("kfac", 1, kind="exhausted"), *seeds("sgd", 1, kind="diverged")])
    assert text.tell_story(missed) == "No seed reached the target."


def test_an_optimizer_by_itself_leads_nobody():
    assert kinds(seeds("kfac", 100, 101, 102)) == {("kfac", None): "alone"}
    assert text.tell_story(only(seeds("kfac", 100, 101, 102))) == "Only kfac was run."


def test_frameworks_are_averaged_and_modes_devices_and_cadences_are_contests():
    others = [*seeds("kfac", 300, comm="fp8"), *seeds("sgd", 300, world=2), *seeds("sgd", 300, cadence=7)]
    compared = compare_rows(rank([*CLEAR, *seeds("kfac", 300, backend="jax"), *others]).groups[0].entries)
    assert [str(contest.setting) for contest in compared] == [
        "float32, 1 device, evaluated every 10 steps",
        "float32, 1 device, evaluated every 7 steps",
        "fp8, 1 device, evaluated every 10 steps",
        "float32, 2 devices, evaluated every 10 steps",
    ]
    assert [row.backend for row in compared[0].competitors[0].rows] == ["torch", "jax"]
    assert compared[0].leader == "kfac"


def test_a_framework_that_disagrees_keeps_an_optimizer_from_leading():
    def led(*jax):
        (section,) = make_sections(rank([*CLEAR, *jax]).groups)
        return section.leader

    agree = [*seeds("kfac", *range(100, 108), backend="jax"), *seeds("sgd", *range(300, 308), backend="jax")]
    disagree = [*seeds("kfac", *range(200, 208), backend="jax"), *seeds("sgd", *range(100, 108), backend="jax")]
    assert led() == led(*agree) == led(*seeds("kfac", 500, backend="jax")) == "kfac"
    assert led(*disagree) is None


def test_pictures_show_the_row_with_the_most_seeds_of_each_optimizer():
    lucky = seeds("kfac", 50, lr=0.9)
    (section,) = make_sections(rank([*CLEAR, *lucky]).groups)
    assert [(row.optimizer, len(row.seeds)) for row in section.featured] == [("kfac", 8), ("sgd", 8)]


# ------------------------------------------------------------------------------------------------------------- design
GRID = """
trials: 8
seeds: [3, 4, 5, 6, 7]
backends: [torch, jax]
optimizers:
- {task: dlrm, data: clicks, max_steps: 9, optimizers: [adamw, muon]}
- {task: bert, data: hmm, max_steps: 9, optimizers: [adamw, kfac, muon],
   seeds: [8, 9, 10, 11, 12, 13, 14, 15], looks: LOOKS, eval_every: 20}
"""


def test_a_design_is_a_ladder_with_looks():
    (design,) = read_designs(GRID.replace("LOOKS", "[5, 8]"))
    assert (design.task, design.seeds[:2], design.backends) == ("bert", (8, 9), ("torch", "jax"))
    assert design.covers("float32", 1, 20)
    assert not any(design.covers(*other) for other in (("fp8", 1, 20), ("float32", 2, 20), ("float32", 1, 25)))


@pytest.mark.parametrize(
    ("looks", "message"),
    [
        ("[5]", r"bert on hmm: looks: \[5\]: too few seeds to separate 3 rows; the fewest are looks: \[6\]"),
        ("[9]", "bert on hmm: the last look needs 9 different seeds"),
        ("[many]", "bert: Input should be a valid integer"),
    ],
)
def test_a_design_that_cannot_decide_is_refused_where_it_is_written(looks, message):
    with pytest.raises(UserError, match=f"results/grid.yaml: {message}"):
        read_designs(GRID.replace("LOOKS", looks))


def test_the_committed_designs_can_decide_and_hold_for_tuned_rows():
    for design in list_designs():
        assert find_design(design.task, design.data, tuned=True, scale="laptop") == design
        assert find_design(design.task, design.data, tuned=False, scale="laptop") is None
    assert find_design("resnet50", "nothing", tuned=True, scale="laptop") is None


# ---------------------------------------------------------------------------------------------------------- frameworks
def effects(results):
    return find_framework_effects(only(results))


def test_the_effect_of_the_framework_pairs_equal_seeds():
    (effect,) = effects([*CLEAR, *seeds("kfac", *range(200, 216, 2), backend="jax")])
    assert (effect.optimizer, effect.steps.pairs) == ("kfac", 8)
    assert effect.steps.estimate == pytest.approx(2) and effect.steps.differs
    assert effect.seconds.estimate == pytest.approx(2) and effect.seconds.pairs == 8 and "Some CPU" in effect.machine


def test_seconds_of_different_machines_are_not_compared():
    (effect,) = effects([*CLEAR, *seeds("kfac", *range(200, 216, 2), backend="jax", device="H200")])
    assert effect.steps.estimate == pytest.approx(2) and effect.seconds is None


def test_rows_with_other_settings_are_no_pair():
    assert effects([*CLEAR, *seeds("kfac", 200, 204, backend="jax", lr=0.7)]) == []


def test_two_seeds_state_how_little_their_range_covers():
    (effect,) = effects([*seeds("kfac", 100, 102), *seeds("kfac", 110, 190, backend="jax"), *seeds("sgd", 9)])
    assert effect.steps.coverage == 0.5 and not effect.steps.differs
