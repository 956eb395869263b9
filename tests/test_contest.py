"""Which optimizer leads a contest, and what a framework changes."""

import pytest
from boards import result

from suite.board.contest import compare_rows, framework_effects
from suite.board.groups import rank_results
from suite.board.sections import make_sections
from suite.board.site import text
from suite.statistics.leaders import find_leader

pytestmark = pytest.mark.quick


def seeds(optimizer, *spent, backend="torch", comm="exact", world=1, **more):
    some = [result(seed=seed, step=step, optimizer=optimizer, **more) for seed, step in enumerate(spent)]
    return [{**one, "spec": {**one["spec"], "backend": backend, "comm": comm, "world": world}} for one in some]


def only(results):
    (contest,) = compare_rows(rank_results(results).groups[0].entries)
    return contest


def kinds(results):
    contest = only(results)
    return {(row.optimizer, row.settings.get("optimizer.lr")): place.kind
            for row, place in zip(contest.rows, contest.places, strict=True)}  # fmt: skip


CLEAR = [*seeds("kfac", 100, 102, 101, 99), *seeds("sgd", 203, 199, 201, 202)]


def test_rows_that_intervals_separate_have_a_leader():
    assert kinds(CLEAR) == {("kfac", None): "leads", ("sgd", None): "slower"}
    assert only(CLEAR).leader.optimizer == "kfac" and only(CLEAR).not_separated == []


def test_rows_that_intervals_do_not_separate_have_none():
    near = [*seeds("kfac", 100, 150, 90), *seeds("sgd", 120, 110, 190)]
    assert kinds(near) == {("kfac", None): "first", ("sgd", None): "tied"}
    assert only(near).leader is None and only(near).not_separated == ["sgd"]


@pytest.mark.parametrize("spread", [1, 10, 60])
def test_with_one_row_an_optimizer_the_leader_is_that_of_the_statistics(spread):
    spent = {"kfac": (100, 100 + spread, 101), "sgd": (200, 203, 199 + spread), "lamb": (150 + spread, 148, 151)}
    contest = only([some for name, steps in spent.items() for some in seeds(name, *steps)])
    index = find_leader([row.seeds for row in contest.rows])
    assert (contest.leader and contest.leader.optimizer) == (None if index is None else contest.rows[index].optimizer)


def test_the_more_rows_there_are_the_more_evidence_each_needs():
    two = [*seeds("kfac", 100, 102, 101, 99), *seeds("sgd", 115, 111, 113, 114)]
    assert kinds(two)["sgd", None] == "slower"
    more = [some for name in ("lamb", "lars", "adamw") for some in seeds(name, 203, 199, 201, 202)]
    assert kinds([*two, *more])["sgd", None] == "tied"


def test_a_difference_of_less_than_the_steps_between_evaluations_is_none():
    def near(every):
        return [*seeds("kfac", 200, 202, 201, 199, every=every), *seeds("sgd", 220, 222, 223, 219, every=every)]

    assert kinds(near(1)) == {("kfac", None): "leads", ("sgd", None): "slower"}
    assert kinds(near(20)) == {("kfac", None): "first", ("sgd", None): "tied"}
    coarse, fine = (only(near(every)).places[1].against for every in (20, 1))
    assert coarse.low < 1 < fine.low and coarse.high > fine.high and coarse.ratio == fine.ratio
    far = [*seeds("kfac", 200, 202, 201, 199, every=20), *seeds("sgd", 440, 442, 443, 439, every=20)]
    assert kinds(far)["kfac", None] == "leads"


def test_equal_steps_have_bounds_because_the_distance_of_evaluations_is_known():
    equal = [*seeds("kfac", 200, 200, 200, 200, every=10), *seeds("sgd", 400, 400, 400, 400, every=10)]
    assert kinds(equal) == {("kfac", None): "leads", ("sgd", None): "slower"}


def test_the_first_evaluation_may_see_a_target_that_was_met_in_the_first_step():
    first = [*seeds("kfac", 50, 50, 50, 50, every=50), *seeds("sgd", 100, 100, 100, 100, every=50)]
    contest = only(first)
    assert [row.seeds[3].earliest for row in contest.rows] == [1, 51]
    assert contest.leader is None and contest.places[1].against.ratio == pytest.approx(2)


def test_two_settings_of_one_optimizer_do_not_keep_it_from_leading():
    similar = [*CLEAR, *seeds("kfac", 101, 100, 102, 99, lr=0.2)]
    assert sorted(kinds(similar).values()) == ["leads", "slower", "tied"]
    assert only(similar).leader.optimizer == "kfac"


def test_a_rival_that_missed_is_counted_among_the_rows_that_are_not_separated():
    missed = [*CLEAR, *seeds("lamb", 1, kind="exhausted")]
    assert kinds(missed)["lamb", None] == "missed"
    assert only(missed).leader is None and only(missed).not_separated == ["lamb"]


def test_a_row_without_a_finished_run_keeps_nobody_from_leading():
    interrupted = [*CLEAR, *seeds("lamb", 1, kind="interrupted")]
    assert kinds(interrupted) == {("kfac", None): "leads", ("sgd", None): "slower", ("lamb", None): "no runs"}


def test_an_optimizer_by_itself_leads_nobody():
    assert kinds(seeds("kfac", 100, 101)) == {("kfac", None): "alone"}


def test_each_framework_communication_mode_and_number_of_devices_is_a_contest_of_its_own():
    others = [*seeds("kfac", 300, backend="jax"), *seeds("kfac", 300, comm="fp8"), *seeds("sgd", 300, world=2)]
    compared = compare_rows(rank_results([*CLEAR, *others]).groups[0].entries)
    assert [str(contest.setting) for contest in compared] == [
        "torch, exact, 1 device",
        "jax, exact, 1 device",
        "torch, fp8, 1 device",
        "torch, exact, 2 devices",
    ]
    assert compared[0].leader.optimizer == "kfac"


def test_a_ladder_has_a_leader_only_if_every_framework_agrees():
    def led(*jax):
        (section,) = make_sections(rank_results([*CLEAR, *jax]).groups)
        return section.leader

    agree = [*seeds("kfac", 100, 101, 99, 102, backend="jax"), *seeds("sgd", 300, 301, 299, 302, backend="jax")]
    near = [*seeds("kfac", 100, 150, 90, backend="jax"), *seeds("sgd", 120, 110, 190, backend="jax")]
    assert led() == led(*agree) == led(*seeds("kfac", 500, backend="jax")) == "kfac"
    assert led(*near) is None


def test_pictures_show_the_row_with_the_most_seeds_of_each_optimizer():
    lucky = seeds("kfac", 50, lr=0.9)
    (section,) = make_sections(rank_results([*CLEAR, *lucky]).groups)
    assert [(row.optimizer, len(row.seeds)) for row in section.featured] == [("kfac", 4), ("sgd", 4)]


def test_the_effect_of_the_framework_pairs_equal_seeds():
    jax = seeds("kfac", 200, 204, 202, 198, backend="jax")
    (effect,) = framework_effects(rank_results([*CLEAR, *jax]).groups[0].entries)
    assert (effect.optimizer, effect.pairs) == ("kfac", 4)
    assert effect.steps.ratio == pytest.approx(2)
    assert effect.seconds.ratio == pytest.approx(2) and effect.seconds_pairs == 4 and "Some CPU" in effect.machine


def test_seconds_of_different_machines_are_not_compared():
    jax = seeds("kfac", 200, 204, 202, 198, backend="jax", device="H200")
    (effect,) = framework_effects(rank_results([*CLEAR, *jax]).groups[0].entries)
    assert effect.steps.ratio == pytest.approx(2) and effect.seconds is None


def test_rows_with_other_settings_are_no_pair():
    jax = seeds("kfac", 200, 204, backend="jax", lr=0.7)
    assert framework_effects(rank_results([*CLEAR, *jax]).groups[0].entries) == []


def test_two_seeds_give_no_bounds():
    jax = seeds("kfac", 110, 190, backend="jax")
    (effect,) = framework_effects(rank_results([*seeds("kfac", 100, 102), *jax]).groups[0].entries)
    assert (effect.steps.low, effect.steps.high) == (0, float("inf"))
    assert text.format_ratio(effect.steps).endswith("× (no bounds yet)")
