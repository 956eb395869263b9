"""Pipelines over processes: the bits of the unmodified model, replicas, and a rank that dies."""

from typing import Any

import pytest
import torch_ranks

ROUNDING = 5e-7  # of the global gradient's norm: float32 sums in another order


def trained(world: int, case: str, stages: int, **job: Any) -> list[dict[str, Any]]:
    """What each rank saw in two steps."""
    usual = {"micro_batches": 4, "schedule": "1f1b", "steps": 2}
    return torch_ranks.start(world, **{**usual, "case": case, "stages": stages, **job})


@pytest.mark.parametrize(
    "case, world, schedule",
    [("tied", 2, "gpipe"), ("encoder", 3, "1f1b"), ("skipping", 3, "gpipe"), ("normalized", 2, "1f1b")],
)
def test_a_pipeline_trains_with_the_bits_of_the_model(case: str, world: int, schedule: str) -> None:
    ranks = trained(world, case, world, schedule=schedule)
    assert [rank["place"] for rank in ranks] == [[0, stage, 0] for stage in range(world)]
    for rank in ranks:
        assert rank["different"] == []
        assert [mine for mine, _ in rank["losses"]] == [plain for _, plain in rank["losses"]]
    names = [name for rank in ranks for name in rank["parameters"]]
    assert len(names) == len(set(names)) > 0, "each parameter has one owner"


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
    """What a stage sends in two steps: the values that the plan says, each padded to 16 bytes."""
    first, second = trained(2, "skipping", 2)
    assert first["sent"].keys() == {"values"} and second["sent"].keys() == {"gradients"}
    assert first["sent"]["values"] >= 2 * 4 * 1 and first["sent"]["values"] % 16 == 0
