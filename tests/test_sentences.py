"""Every share, limit, interval and count of the page of settings has a test that was worked out from its sentence."""

import fnmatch
import re
from pathlib import Path
from typing import Any, get_args

import engines
import pytest
from engines import BACKENDS, config, engine

from suite.comm import setup
from suite.comm.partition.graph import Graph, Node, Parameter, Value
from suite.comm.settings import CommSettings, FactorSettings
from suite.declared import Declared
from suite.engine.pipeline import describe_device
from suite.load import find_members
from suite.nodes import load_settings
from suite.settings.presets import list_rows
from suite.settings.run import PartitionSettings, Run
from suite.settings.schedule import ScheduleSettings

pytestmark = pytest.mark.quick

# the settings that a test is about, as `member.name` or a pattern; those of a run have no member
TESTS = {
    "test_run.py::test_a_finished_run_is_found_again": "repeat",
    "test_run.py::test_a_dead_rank_ends_the_run": "world",
    "test_threads.py::test_threads_are_as_many_as_the_quota_allows": "threads",
    "test_projection.py::test_plan_projects": "compute_seconds",
    "test_projection.py::test_shared_inverses_may_beat_one_device": "inverse_seconds",
    "test_sentences.py::test_a_step_has_so_many_micro_batches": "accumulate",
    "test_sentences.py::test_a_device_is_what_the_settings_say": "partition.memory_gib partition.tflops"
    " partition.bandwidth_gb partition.overhead_us",
    "test_sentences.py::test_so_many_ranks_share_a_host": "comm.ranks_per_host",
    "test_loop.py::test_evaluations_come_after_every_so_many_steps_and_after_the_last": "max_steps eval_every",
    "test_loop.py::test_checkpoints_and_log_entries_come_when_the_settings_page_says": "checkpoint_every log_every",
    "test_loop.py::test_evaluations_that_meet_the_targets_must_follow_each_other": "target_evaluations",
    "test_loop.py::test_so_many_batches_are_prepared_in_advance_for_training_and_evaluation": "prefetch",
    "test_loop.py::test_a_run_begins_with_the_statistics_of_so_many_batches": "*.warm_start",
    "test_schedule.py::test_a_warmup_below_one_is_a_share_of_the_run": "schedule.warmup",
    "test_schedule.py::test_goyal_staircase": "schedule.warmup_start schedule.boundaries schedule.factor",
    "test_schedule.py::test_boundaries_are_shares_of_the_run_whatever_the_warm_up": "schedule.boundaries",
    "test_schedule.py::test_spngd_decay_and_momentum": "schedule.begin schedule.end schedule.power",
    "test_schedule.py::test_quadratic_warmup_and_floor": "schedule.warmup_power",
    "test_schedule.py::test_the_floor_is_the_smallest_factor_after_the_warm_up": "schedule.floor",
    "partition/test_planner.py::test_stages_and_micro_batches_are_those_asked_for": "partition.stages"
    " partition.micro_batches",
    "partition/test_planner.py::test_a_plan_never_exceeds_its_memory": "partition.memory_gib",
    "comm/test_reduce.py::test_buckets_follow_backward": "comm.bucket_mib",
    "comm/test_pieces.py::test_pieces_have_about_the_size_that_the_settings_page_says": "comm.piece_kib"
    " comm.factors.piece_kib",
    "conformance/test_tasks.py::test_a_batch_is_a_pure_function_and_its_shares_make_the_whole": "*batch_size",
    "conformance/test_optimizers.py::test_a_clipped_gradient_has_the_largest_norm_allowed": "clip_norm",
    "tasks/test_shares.py::test_smoothing_spreads_its_share_over_all_classes_in_training_only": "*.smoothing",
    "tasks/test_shares.py::test_dropout_drops_its_share_at_its_places_in_training_only": "*.dropout",
    "tasks/test_shares.py::test_a_record_hides_its_share_of_tokens_up_to_its_limit": "bert.pr*",
    "tasks/test_shares.py::test_an_alarm_is_missed_in_the_last_30_ms_and_early_before_the_last_250": "frnn.warning"
    " frnn.deadline",
    "tasks/test_frnn.py::test_only_training_cuts_the_ends_of_shots": "frnn.deadline",
    "tasks/test_shares.py::test_there_are_no_alarms_in_the_ignored_start": "frnn.ignore",
    "tasks/test_shares.py::test_so_many_shots_of_the_second_machine_are_trained_on": "frnn.glimpse",
    "tasks/test_shares.py::test_a_table_has_at_most_so_many_rows_and_ids_are_taken_modulo_them": "dlrm.limit",
    "tasks/test_shares.py::test_consecutive_images_are_normalised_by_their_groups_own_statistics": "*.bn_group",
    "tasks/test_shares.py::test_running_mixup_draws_from_the_beta_distribution": "*.mixup",
    "tasks/test_shares.py::test_a_translation_exceeds_the_longest_source_by_so_many_words": "transformer.beam"
    " transformer.extra",
    "tasks/test_transformer_search.py::test_ambiguity_lowers_the_ceiling_by_known_words": "transformer.ambiguity",
    "tasks/test_images.py::test_erasing_zeroes_one_rectangle_of_the_asked_area": "resnet50.erase",
    "tasks/test_caffenet.py::test_a_head_of_1000_outputs_on_any_classes": "caffenet.head",
    "test_recipes.py::test_the_plan_warns_where_a_recipes_epochs_are_others": "caffenet.published_classes",
    "conformance/test_reference.py::test_both_backends_follow_the_reference": "kbfgs.momentum kbfgs.*_decay"
    " kfac.momentum vogn.momentum vogn.beta2 vogn.draws",
    "optimizers/test_first_order.py::test_backends_equal_the_reference": "sgd.momentum",
    "optimizers/test_adagrad.py::test_momentum_equals_optax": "adagrad.momentum",
    "optimizers/test_adamw.py::test_torch_equals_torch": "adamw.beta?",
    "optimizers/test_lamb.py::test_jax_equals_optax": "lamb.beta?",
    "optimizers/test_lamb.py::test_bounds_hold_the_ratio": "lamb.least_ratio lamb.largest_ratio",
    "optimizers/test_lars.py::test_jax_equals_optax_without_decay": "lars.momentum",
    "optimizers/test_rmsprop.py::test_torch_equals_torch": "rmsprop.momentum rmsprop.beta2",
    "optimizers/test_sm3.py::test_jax_equals_optax": "sm3.momentum",
    "optimizers/test_muon.py::test_matrices_equal_torch": "muon.momentum",
    "optimizers/test_muon.py::test_an_edit_takes_effect_at_once": "muon.fallback_beta?",
    "optimizers/test_muon.py::test_each_iteration_applies_its_polynomial_once": "muon.iterations",
    "optimizers/test_soap.py::test_with_identity_bases_it_is_adamw": "soap.beta? soap.max_size",
    "optimizers/test_soap.py::test_sides": "soap.max_size",
    "optimizers/test_soap.py::test_schedule": "soap.precondition_frequency soap.start_preconditioning",
    "optimizers/test_shampoo.py::test_before_the_first_refresh_it_is_the_grafted_method": "shampoo.beta2",
    "optimizers/test_shampoo.py::test_backends_equal_the_reference": "shampoo.momentum",
    "optimizers/test_shampoo_shapes.py::test_blocks": "shampoo.block_size",
    "optimizers/test_shampoo_shapes.py::test_which_sides_have_factors": "shampoo.m*_size",
    "optimizers/test_shampoo_refresh.py::test_schedule": "shampoo.inverse_interval shampoo.start_preconditioning",
    "optimizers/test_shampoo_refresh.py::test_schedule_with_a_lag": "shampoo.lag",
    "optimizers/test_kfac_factors.py::test_factors_and_inverses_are_due_when_the_settings_page_says": "kfac.*_interval"
    " kfac.inverse_warmup",
    "optimizers/test_kfac_factors.py::test_a_change_counts_from_alpha_on": "kfac.stale_alpha",
    "optimizers/test_kfac_factors.py::test_prepared_statistics_count_as_if_they_had_always_been_there": "kfac.f*_decay",
    "optimizers/test_kfac.py::test_a_bound_on_a_steps_length_counts_each_groups_rate": "kfac.kl_clip",
    "optimizers/test_kfac_fallback.py::test_what_has_no_factors_takes_adamws_step": "kfac.fallback_beta?",
    "optimizers/test_passes.py::test_a_warm_start_is_the_mean_over_so_many_batches": "*.warm_start",
    "optimizers/test_passes.py::test_vogn_passes_as_often_as_it_draws_each_time_with_other_weights": "vogn.draws",
    "optimizers/test_passes.py::test_tempering_rises_from_its_start_in_so_many_steps": "vogn.tempering*",
    "optimizers/test_vogn.py::test_the_noise_has_the_stated_variance": "vogn.augmentation",
    "optimizers/test_vogn.py::test_what_no_layer_describes_follows_adam": "vogn.fallback_beta?",
}
# names of the other numbers: sizes of networks and data, rates, constants of a formula, goals and seeds
OTHER = """
blocks bottom conv_layers cross_layers cross_rank dense depth feed_forward filters heads hidden hots image_size
intermediate kernel_size layers length lstm_layers pool positions published_rows samples sequence top width widths
damping epsilon exponent fallback_epsilon fallback_ratio initial_accumulator lr prior_precision trust weight_decay
alpha l2 penalty seed targets
"""
GROUPS: dict[str, type[Declared]] = {"": Run, "schedule.": ScheduleSettings, "partition.": PartitionSettings}
GROUPS |= {"comm.": CommSettings, "comm.factors.": FactorSettings}


def is_number(kind: Any) -> bool:
    return kind in (int, float) or any(is_number(part) for part in get_args(kind))


def list_numbers() -> set[str]:
    """The settings of the page that are numbers, as `member.name`."""
    groups = dict(GROUPS)
    for group in ("tasks", "optimizers"):
        for member in find_members(group):
            if settings := load_settings(f"suite.{group}.{member}"):
                groups[f"{member}."] = settings
    return {
        f"{prefix}{name}"
        for prefix, settings in groups.items()
        for name, _, _ in list_rows(settings)
        if is_number(settings.model_fields[name].annotation)
    }


def test_every_share_limit_interval_and_count_has_a_test() -> None:
    """And the table names tests and settings that there are."""
    numbers, other = list_numbers(), set(OTHER.split())
    patterns = [pattern for names in TESTS.values() for pattern in names.split()]
    unknown = [pattern for pattern in patterns if not fnmatch.filter(numbers, pattern)]
    assert not unknown and other <= {number.rpartition(".")[2] for number in numbers}
    named = {number for pattern in patterns for number in fnmatch.filter(numbers, pattern)}
    missing = sorted(number for number in numbers - named if number.rpartition(".")[2] not in other)
    assert not missing, "write a test from the sentence of each, and name it in TESTS"
    for place in TESTS:
        file, _, test = place.partition("::")
        assert re.search(rf"^def {test}\(", (Path(__file__).parent / file).read_text(), re.MULTILINE), place


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_has_so_many_micro_batches(backend: str, accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal ones, of the 16 samples of a batch; jax traces one of them, and repeats it."""
    made, sizes = engine(config("sgd", backend, accumulate=accumulate)), list[int]()
    model = made.model if backend == "torch" else made.maths.model
    name = "forward" if backend == "torch" else "apply"
    whole = getattr(type(model), name)

    def watch(self: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(len(arguments[0 if backend == "torch" else 3]["label"]))
        return whole(self, *arguments, **options)

    monkeypatch.setattr(type(model), name, watch)
    made.losses([made.step(0, made.task.batch("train", 0, 0), {})])
    assert sizes == [16 // accumulate] * accumulate if backend == "torch" else set(sizes) == {16 // accumulate}


def test_a_device_is_what_the_settings_say() -> None:
    """3 · 10¹² operations a second, 5 · 10⁹ bytes a second, 7 µs to start, 2 GiB: two operations by hand."""
    values = {"name": "auto", "memory_gib": 2.0, "tflops": 3.0, "bandwidth_gb": 5.0, "overhead_us": 7.0}
    device = describe_device(PartitionSettings.given(values))
    assert device and device.memory == 2_147_483_648
    computing = Node("a", "op", inputs=("x",), outputs=("y",), flops=6e12, traffic=5e9)
    reading = Node("b", "op", inputs=("y",), outputs=("z",), parameters=("w",), flops=3e12, traffic=10e9)
    arrays = {name: Value(8, differentiable=True) for name in "xyz"}
    graph = Graph(2, (computing, reading), arrays, ("x",), ("z",), {"w": Parameter(5 * 10**9)})
    assert device.seconds(graph, computing, 2)[0] == pytest.approx(2.0 + 7e-6, abs=1e-9)
    assert device.seconds(graph, computing, 4)[0] == pytest.approx(4.0 + 7e-6, abs=1e-9)
    assert device.seconds(graph, reading, 2)[0] == pytest.approx(3.0 + 7e-6, abs=1e-9)  # weights are read as well


@pytest.mark.parametrize("asked, launched, ranks", [("auto", None, 8), ("auto", "2", 2), (4, "2", 4), (1, None, 1)])
def test_so_many_ranks_share_a_host(
    asked: int | str, launched: str | None, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto`: torchrun's value, else all ranks; here of eight."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if launched:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", launched)
    comm = engines.comm(topology="two_level", ranks_per_host=asked)
    assert setup.make_channels(comm, engines.tiny(), 8).locals == ranks
