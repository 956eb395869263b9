"""Pipelines over processes: the bits of the unmodified model, replicas, and a rank that dies."""

from typing import Any

import pytest
import torch_ranks

from suite.comm.partition.placement import ranks_per_host
from suite.contract import UserError

ROUNDING = 5e-7  # of the global gradient's norm: float32 sums in another order


def trained(world: int, case: str, stages: int, **job: Any) -> list[dict[str, Any]]:
    """Return what each rank saw in two steps."""
    usual = {"micro_batches": 4, "schedule": "1f1b", "steps": 2}
    return torch_ranks.start(world, **{**usual, "case": case, "stages": stages, **job})


@pytest.mark.sample(1, keep=("tied",))
@pytest.mark.parametrize(
    "case, world, schedule",
    [("tied", 3, "gpipe"), ("encoder", 3, "1f1b"), ("skipping", 3, "gpipe"), ("normalized", 2, "1f1b")],
)
def test_a_pipeline_trains_with_the_bits_of_the_model(case: str, world: int, schedule: str) -> None:
    ranks = trained(world, case, world, schedule=schedule)
    assert [rank["place"] for rank in ranks] == [[0, stage, 0] for stage in range(world)]
    for rank in ranks:
        assert rank["different"] == []
        last = rank["place"][1] == world - 1
        assert rank["outputs"] == ([True] * 8 if last else [])  # two steps of four micro-batches
        assert [mine for mine, _ in rank["losses"]] == [plain for _, plain in rank["losses"]]
        assert set(rank["buffers"].values()) <= {0.0}
    names = [name for rank in ranks for name in rank["parameters"]]
    assert len(names) == len(set(names)) > 0, "each parameter has one owner"


@pytest.mark.parametrize("world, micro_batches", [(2, 4), (3, 4), (3, 1)])
def test_buffers_are_the_means_over_micro_batches(world: int, micro_batches: int) -> None:
    """With three ranks, a stage has two replicas; with one micro-batch, one of them has nothing to add."""
    ranks = trained(world, "normalized", 2, average_buffers=True, micro_batches=micro_batches, calibrate=True)
    buffers = [rank["buffers"] for rank in ranks if not rank["place"][2]]
    assert sorted(name for part in buffers for name in part)[:3] == [
        f"blocks.0.1.{name}" for name in ("num_batches_tracked", "running_mean", "running_var")
    ]
    rounding = ROUNDING if world > 2 else 0.0
    assert max(difference for rank in ranks for difference in rank["buffers"].values()) <= rounding


@pytest.mark.slow
def test_replicas_of_whole_pipelines_average_their_gradients() -> None:
    ranks = trained(4, "encoder", 2)
    pipelines = {tuple(rank["place"])[0::2] for rank in ranks}
    assert len(pipelines) == 2, "two pipelines, or two replicas of each stage"
    assert 0 < max(rank["furthest"] for rank in ranks) < ROUNDING


def test_an_uneven_world_gives_one_stage_two_replicas() -> None:
    ranks = trained(3, "fork_join", 2)
    assert sorted(ranks[0]["replicas"]) == [1, 2]
    assert max(rank["furthest"] for rank in ranks) < ROUNDING


def test_the_ranks_that_stay_name_the_stage_that_died() -> None:
    ranks = trained(3, "skipping", 3, die=[1, 1])
    survivors = [ranks[0]["error"], ranks[2]["error"]]
    assert all("PeerLost" in error and "rank 1 (stage 1" in error for error in survivors), survivors


def test_bytes_on_the_cuts_are_those_of_the_plan() -> None:
    """Two steps of four micro-batches; every value has 128 bytes, so that none is padded."""
    first, second = trained(2, "skipping", 2)
    assert first["sent"] == {"values": 8 * first["received"][1]}
    assert second["sent"] == {"gradients": 8 * second["returned"][0]}
    assert first["received"][1] > 0 < second["returned"][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "codec, most, more",
    [
        ("float21", 2e-4, {}),
        ("minifloat", 0.15, {"topology": "two_level", "ranks_per_host": 2}),
        ("onebit", 1.5, {"feedback": True}),
    ],
)
def test_replicas_average_in_any_communication_mode(codec: str, most: float, more: dict[str, Any]) -> None:
    ranks = trained(4, "encoder", 2, steps=1, comm={"codec": codec, "algorithm": "all_to_all", **more})
    for stage in range(2):
        first, second = [rank for rank in ranks if rank["place"][1] == stage]
        assert first["gradients"] == second["gradients"]
        assert ROUNDING < first["furthest"] < most
        assert bool(first["residuals"]) == (codec == "onebit")


def test_a_mode_with_two_levels_needs_equally_many_ranks_on_each_host() -> None:
    assert ranks_per_host([[0, 1], [2, 3, 4, 5]], 2) == [2, 2]
    with pytest.raises(UserError, match=r"stage 1 has 1 and 2 ranks on hosts of 2 ranks; .*topologies\.flat"):
        ranks_per_host([[0], [1, 2, 3]], 2)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "codec, most, share", [("float32", 0.0, 1.0), ("float16", 1e-3, 0.5), ("minifloat", 0.2, 0.25)]
)
def test_a_codec_encodes_what_crosses_a_cut(codec: str, most: float, share: float) -> None:
    """A mask and the state of dropout cross the cut as well, and keep their bits."""
    ranks = trained(2, "encoder", 2, steps=1, activations={"module": f"suite.comm.codecs.{codec}"})
    furthest = max(rank["furthest"] for rank in ranks)
    assert furthest == most == 0 or 0 < furthest < most
    assert ranks[1]["sent"]["gradients"] == pytest.approx(share * 4 * ranks[1]["returned"][0], rel=0.1)
