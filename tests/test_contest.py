"""Which optimizer leads a contest, and what a framework changes."""

import pytest
from boards import result

from suite.report.board import rank
from suite.report.contest import contests, framework_effects
from suite.report.sections import sections
from suite.report.site import text
from suite.statistics.leaders import leader


def seeds(optimizer, *spent, backend="torch", comm="exact", world=1, **more):
    some = [result(seed=seed, step=step, optimizer=optimizer, **more) for seed, step in enumerate(spent)]
    return [{**one, "spec": {**one["spec"], "backend": backend, "comm": comm, "world": world}} for one in some]


def only(results):
    (contest,) = contests(rank(results).groups[0].entries)
    return contest


def kinds(results):
    contest = only(results)
    return {(row.optimizer, row.settings.get("optimizer.learning_rate")): place.kind
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
    index = leader([row.seeds for row in contest.rows])
    assert (contest.leader and contest.leader.optimizer) == (None if index is None else contest.rows[index].optimizer)


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
    compared = contests(rank([*CLEAR, *others]).groups[0].entries)
    assert [str(contest.setting) for contest in compared] == [
        "torch, exact, 1 device",
        "jax, exact, 1 device",
        "torch, fp8, 1 device",
        "torch, exact, 2 devices",
    ]
    assert compared[0].leader.optimizer == "kfac"


def test_a_ladder_has_a_leader_only_if_every_framework_agrees():
    def led(*jax):
        (section,) = sections(rank([*CLEAR, *jax]).groups)
        return section.leader

    agree = [*seeds("kfac", 100, 101, 99, 102, backend="jax"), *seeds("sgd", 300, 301, 299, 302, backend="jax")]
    near = [*seeds("kfac", 100, 150, 90, backend="jax"), *seeds("sgd", 120, 110, 190, backend="jax")]
    assert led() == led(*agree) == led(*seeds("kfac", 500, backend="jax")) == "kfac"
    assert led(*near) is None


def test_pictures_show_the_row_with_the_most_seeds_of_each_optimizer():
    lucky = seeds("kfac", 50, lr=0.9)
    (section,) = sections(rank([*CLEAR, *lucky]).groups)
    assert [(row.optimizer, len(row.seeds)) for row in section.featured] == [("kfac", 4), ("sgd", 4)]


def test_the_effect_of_the_framework_pairs_equal_seeds():
    jax = seeds("kfac", 200, 204, 202, 198, backend="jax")
    (effect,) = framework_effects(rank([*CLEAR, *jax]).groups[0].entries)
    assert (effect.optimizer, effect.pairs) == ("kfac", 4)
    assert effect.steps.ratio == pytest.approx(2)
    assert effect.seconds.ratio == pytest.approx(2) and effect.seconds_pairs == 4 and "Some CPU" in effect.machine


def test_seconds_of_different_machines_are_not_compared():
    jax = seeds("kfac", 200, 204, 202, 198, backend="jax", device="H200")
    (effect,) = framework_effects(rank([*CLEAR, *jax]).groups[0].entries)
    assert effect.steps.ratio == pytest.approx(2) and effect.seconds is None


def test_rows_with_other_settings_are_no_pair():
    jax = seeds("kfac", 200, 204, backend="jax", lr=0.7)
    assert framework_effects(rank([*CLEAR, *jax]).groups[0].entries) == []


def test_two_seeds_give_no_bounds():
    jax = seeds("kfac", 110, 190, backend="jax")
    (effect,) = framework_effects(rank([*seeds("kfac", 100, 102), *jax]).groups[0].entries)
    assert (effect.steps.low, effect.steps.high) == (0, float("inf"))
    assert text.ratio(effect.steps).endswith("× (no bounds yet)")
