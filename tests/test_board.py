import json
import math
from pathlib import Path

import pytest
from boards import MIXED, TARGET, page, rank, result

from suite.board import groups
from suite.entries.condition import read_condition
from suite.record.record import make_result
from suite.settings import overrides
from suite.settings.overrides import parse_values
from suite.statistics.summary import Summary

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]


def steps(entry) -> Summary:
    assert entry.steps is not None
    return entry.steps


def test_rows_are_ranked_by_the_median_of_steps():
    group = next(group for group in rank(MIXED).groups if group.tuned and len(group.entries) > 1)
    ranks = [(entry.rank, entry.optimizer, entry.settings["optimizer.lr"]) for entry in group.entries]
    assert ranks == [(1, "kfac", 0.1), (2, "sgd", 0.1), (None, "sgd", 0.5)]
    kfac, sgd, _ = group.entries
    assert (steps(kfac).median, steps(kfac).n, kfac.timings[0].seconds.median) == (120, 5, 240.0)
    assert (steps(sgd).median, steps(sgd).n, steps(sgd).hits) == (215, 4, 3)  # of 200, 210, 220 and never


def test_equal_medians_share_a_rank_in_a_fixed_order():
    results = [result(), result(optimizer="sgd"), result(optimizer="adamw", step=300)]
    for some in (results, results[::-1]):
        (group,) = rank(some).groups
        assert [(entry.rank, entry.optimizer) for entry in group.entries] == [(1, "kfac"), (1, "sgd"), (3, "adamw")]


def test_rows_whose_median_misses_come_last_by_hit_rate():
    misses = [result(seed=seed, optimizer=name, kind="exhausted") for name in ("adamw", "sgd") for seed in (1, 2)]
    (group,) = rank([*misses, result(optimizer="sgd"), result(step=300)]).groups
    assert [(entry.rank, entry.optimizer) for entry in group.entries] == [(1, "kfac"), (None, "sgd"), (None, "adamw")]


def test_the_median_ranks_before_the_hit_rate():
    half = [result(seed=1, step=50), result(seed=2, step=60), result(seed=3, kind="diverged")]
    (group,) = rank([*half, result(optimizer="sgd")]).groups
    assert [entry.optimizer for entry in group.entries] == ["kfac", "sgd"]


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (result(trials=0), "tuned"),
        (result(version="2"), "task_version"),
        (result(scale="gpu"), "scale"),
        ({**result(), "data": {**result()["data"], "identity": "other"}}, "data"),
        ({**result(), "spec": {**result()["spec"], "batch_size": 128}}, "batch_size"),
        ({**result(), "spec": {**result()["spec"], "variant": "big"}}, "variant"),
        (result(targets=[{**result()["targets"][0], "value": 90.0}]), "target"),
    ],
)
def test_unlike_conditions_never_rank_together(other, differs):
    groups = rank([result(), other]).groups
    assert len(groups) == 2
    assert getattr(groups[0], differs) != getattr(groups[1], differs)
    assert all(len(group.entries) == 1 for group in groups)


def test_the_same_number_written_in_two_ways_is_one_condition(tmp_path):
    whole = result(seed=1, targets=[{**result()["targets"][0], "value": 85}])
    results = [result(), whole]
    (group,) = rank(results).groups
    assert len(group.entries[0].results) == 2
    assert page(results, tmp_path).count('class="ladder"') == 1


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (result(step=50, task={"data": "shapes"}), "data shapes"),
        (result(step=50, samples={"train": 1437, "valid": 100}), "valid samples 100"),
        (result(step=50, task={"width": 32}, parameters=1650), "parameters 1,650"),
        (result(step=50, task={"source": {"size": 16}}), "source.size 16"),
    ],
)
def test_another_split_size_or_network_has_a_group_of_its_own(other, told, tmp_path):
    groups = rank([result(), other]).groups
    assert [len(group.entries) for group in groups] == [1, 1]
    assert all(group.entries[0].rank == 1 for group in groups)
    assert sum(told in group.title for group in groups) == 1
    text = page([result(), other], tmp_path)
    assert text.count('class="ladder"') == 2 and told in text


def started(result, weights, place):
    """Return a result that started from weights of this sha256, which lay in `place`; None: older than that entry."""
    spec = result["spec"]
    digest = {"initial_weights": weights} if weights else {}
    config = {**spec["config"], "init_from": place}
    environment = {**result["environment"], **digest}
    return {**result, "spec": {**spec, "config": config}, "environment": environment}


def test_runs_from_weights_have_a_group_of_their_own_wherever_these_lay(tmp_path):
    plain = [result(), started(result(seed=1), None, None)]
    first = [started(result(seed=seed, step=5), "a" * 64, f"{place}/run") for seed, place in enumerate("xy")]
    groups = rank([*plain, *first, started(result(step=6), "b" * 64, "x/run")]).groups
    assert sorted(len(group.entries[0].results) for group in groups) == [1, 2, 2]
    assert {group.initial_weights for group in groups} == {None, "a" * 64, "b" * 64}
    assert all(len(group.entries) == 1 and "init_from" not in group.entries[0].settings for group in groups)
    text = page([*plain, *first], tmp_path)
    assert text.count('class="ladder"') == 2
    assert "initial weights aaaaaaaaaaaa " in text and "initial weights drawn by the seed" in text
    assert len(rank([plain[0], started(result(), None, "x/run")]).groups) == 2


def test_generated_data_with_and_without_its_sizes_in_the_identity_is_the_same():
    samples = {"train": 800, "valid": 100}
    old, new = (
        {**result()["data"], "kind": "generated", "identity": name, "samples": samples} for name in ("v1", "v1/800-100")
    )
    results = [{**result(seed=seed), "data": data} for seed, data in enumerate((old, new))]
    (group,) = rank(results).groups
    assert group.data["identity"] == "v1/800-100" and len(group.entries[0].results) == 2
    other = {**old, "samples": {"train": 900, "valid": 100}}
    assert len(rank([results[0], {**result(), "data": other}]).groups) == 2
    real = {**old, "kind": "real"}
    assert rank([{**result(), "data": real}]).groups[0].data["identity"] == "v1"


def test_settings_of_training_and_of_the_machine_share_a_group():
    free = {"eval_batch_size": 120, "smoothing": 0.1, "mixup": 0.4, "source": {"size": 32, "data_dir": "/elsewhere"}}
    (group,) = rank([result(), result(lr=0.2, task=free)]).groups
    assert len(group.entries) == 2 and not group.special


def test_committed_results_keep_their_groups():
    files = sorted((ROOT / "results" / "runs").rglob("*.json"))
    results = [json.loads(file.read_text()) for file in files]
    if not results:
        pytest.skip("there are no committed results")

    def coarse(group):
        kind = group.task, group.task_version, group.variant, group.scale, group.label
        words = {word for entry in group.entries for word in entry.command.split() if word.startswith("task.")}
        set_by_user = frozenset(word for word in words if not word.startswith("task.data="))
        return *kind, group.batch_size, group.tuned, group.goal, set_by_user

    groups = [coarse(group) for group in rank(results).groups]
    assert len(groups) == len(set(groups))


def test_seconds_that_are_too_low_are_marked_and_left_out(tmp_path):
    results = [result(), result(seed=1, step=10, busy_pauses=3)]
    (entry,) = rank(results).groups[0].entries
    assert (entry.timings[0].seconds.n, entry.timings[0].seconds.median) == (1, 200)
    assert (steps(entry).n, entry.unbilled) == (2, 1)  # steps are counted, not timed
    assert "‡ 1 of 2 left out: seconds too low" in page(results, tmp_path)
    assert rank([result(busy_pauses=1)]).groups[0].entries[0].timings == ()
    assert rank([result(busy_pauses=0)]).groups[0].entries[0].unbilled == 0


def test_each_rung_of_the_ladder_is_a_group():
    ladder = [{**TARGET, "value": 80.0, "reached": True, "step": 50, "train_seconds": 100.0}, *result()["targets"]]
    groups = rank([result(targets=ladder)]).groups
    assert [(group.target, steps(group.entries[0]).median) for group in groups] == [
        ({**TARGET, "value": 80.0}, 50),
        (TARGET, 100),
    ]


def test_a_result_is_read_once_however_many_rungs_its_ladder_has(monkeypatch):
    read = []
    monkeypatch.setattr(groups, "read_condition", lambda result: read.append(result) or read_condition(result))
    ladder = [{**TARGET, "value": value, "reached": True, "step": 50, "train_seconds": 100.0} for value in (70.0, 80.0)]
    assert len(rank([result(targets=ladder), result(targets=ladder, seed=1)]).groups) == 2
    assert len(read) == 2


def test_words_of_commands_are_parsed_once_and_their_values_are_not_shared():
    first, second = (parse_values(["task.shown=[1,2]", "seed=3"]) for _ in range(2))
    first["task.shown"].append(3)
    assert second == parse_values(["task.shown=[1,2]", "seed=3"]) == {"task.shown": [1, 2], "seed": 3}
    assert overrides._parse("seed=3") is overrides._parse("seed=3")


def test_diverged_and_failed_runs_are_shown_and_count(tmp_path):
    failed = result(seed=2, kind="failed", targets=[])
    results = [result(), result(seed=1, kind="diverged"), failed]
    (group,) = rank(results).groups
    (entry,) = group.entries
    assert entry.misses == {"diverged": 1, "failed": 1}
    assert (entry.rank, steps(entry).hits, steps(entry).n, steps(entry).median) == (None, 1, 3, None)
    assert steps(entry).beyond is None  # what they spent before says nothing
    text = page(results, tmp_path)
    assert "1 diverged" in text and "1 failed" in text and "never" in text


def test_only_failures_still_make_a_row():
    (group,) = rank([result(kind="failed", targets=[])]).groups
    assert group.target is None and "no target" in group.title
    assert group.entries[0].misses == {"failed": 1}


def test_a_miss_is_more_than_its_budget(tmp_path):
    text = page([result(kind="exhausted", budget=1400)], tmp_path)
    assert "&gt; 1,400" in text and "0/1" in text


def test_interrupted_runs_are_shown_but_tell_nothing(tmp_path):
    (group,) = rank([result(), result(seed=1, kind="interrupted")]).groups
    assert (steps(group.entries[0]).n, group.entries[0].misses) == (1, {"interrupted": 1})
    (group,) = rank([result(kind="interrupted")]).groups
    assert group.entries[0].steps is None
    text = page([result(kind="interrupted")], tmp_path)
    assert "no finished run" in text and "1 interrupted" in text


def test_the_remark_on_the_data_is_that_of_most_results():
    def noted(seed: int, note: str):
        return {**result(seed=seed), "data": {**result()["data"], "note": note}}

    loud = noted(9, "  these results reproduce ImageNet")
    (group,) = rank([noted(0, "few images"), noted(1, "few images"), loud]).groups
    assert group.note == "few images"


def test_repeats_of_a_seed_are_one_seed():
    repeats = [result(step=step, execution=str(step)) for step in (90, 100, 500)]
    entry = rank([*repeats, result(seed=1, step=300)]).groups[0].entries[0]
    assert (steps(entry).n, steps(entry).median, len(entry.results)) == (2, 200, 4)


def test_the_better_of_two_executions_is_not_their_median():
    pair = [result(step=step, execution=str(step), every=step // 10) for step in (90, 110)]
    (entry,) = rank(pair).groups[0].entries
    assert (steps(entry).n, steps(entry).median) == (1, 100)
    (seed,) = entry.seeds.values()
    assert (seed.spent, seed.earliest) == (100, 91)  # the means of 90 and 110, and of 82 and 100
    for miss in (result(kind="exhausted", budget=400, execution="b"), result(kind="diverged", execution="b")):
        (entry,) = rank([pair[0], miss]).groups[0].entries
        assert (steps(entry).n, steps(entry).hits) == (1, 0)
        (seed,) = entry.seeds.values()
        assert seed.spent == (245 if miss["outcome"]["kind"] == "exhausted" else math.inf)  # the mean of 90 and 400


def test_a_row_names_only_the_settings_that_set_it_apart():
    plain, fast = result(optimizer="lars"), result(optimizer="sgd", lr=0.5)
    (group,) = rank([plain, fast]).groups
    assert [entry.settings for entry in group.entries] == [
        {"optimizer.lr": 0.1},
        {"optimizer.lr": 0.5},
    ]
    assert rank([plain]).groups[0].entries[0].settings == {}


def test_a_run_resumed_elsewhere_says_so():
    segments = [(0, "cpu"), (5, "H200"), (7, "cpu")]
    started = [{"step": step, "resumed": step > 0, "device": device} for step, device in segments]
    entry = rank([{**result(), "segments": started}]).groups[0].entries[0]
    assert entry.timings[0].machine == "cpu then H200 · Some CPU · 2 threads"


def test_a_result_without_a_commit_is_marked():
    unknown = result()
    unknown["environment"] |= {"commit": None, "dirty": None}
    assert rank([unknown]).groups[0].entries[0].dirty
    assert not rank([result()]).groups[0].entries[0].dirty


def test_seconds_are_kept_apart_by_kind_of_processor():
    """Cloud processors of one name differ in speed."""
    other = result(seed=1)
    other["environment"] = {**other["environment"], "cpu_kind": "family 26, model 2, avx512"}
    timings = rank([result(), other]).groups[0].entries[0].timings
    assert {timing.machine.split(" · ")[1] for timing in timings} == {
        "Some CPU",
        "Some CPU (family 26, model 2, avx512)",
    }


def test_seconds_are_kept_apart_by_machine():
    entry = rank([result(), result(seed=1, step=300, device="H200")]).groups[0].entries[0]
    assert steps(entry).median == 200
    assert {timing.machine.split(" · ")[0]: timing.seconds.median for timing in entry.timings} == {
        "cpu": 200,
        "H200": 600,
    }


@pytest.mark.parametrize("setting", [{"prefetch": 4}, {"threads": 4}, {"log_every": 50}, {"run_dir": "runs/elsewhere"}])
def test_what_changes_no_number_separates_no_rows(setting: dict[str, object]) -> None:
    """Settings of time alone, and places, are seeds of one row."""
    other = result(seed=1)
    other["spec"]["config"] |= setting
    ((entry,),) = (group.entries for group in rank([result(), other]).groups)
    assert len(entry.results) == 2 and entry.settings == {}


def test_a_tuned_result_with_a_seed_of_its_tuning_counts_only_without_others():
    """Seed -3 of the fixture is 0, a seed of `suite tune`, which chose the settings by it."""
    own, other = result(seed=-3, step=50), result(seed=0, step=100)
    untuned = result(seed=-3, step=50, trials=0)
    jax = result(seed=-3, step=50)
    jax["spec"]["backend"] = "jax"
    assert list(rank([own]).results.values()) == [make_result(own)]
    assert list(rank([own, other]).results.values()) == [make_result(other)]
    assert len(rank([untuned, other, jax]).results) == 3
