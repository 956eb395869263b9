"""Pipeline schedules: order, memory, no deadlock; the simulated step against closed forms; places of ranks."""

import itertools
import random
from typing import get_args

import pytest

from suite.comm.partition.orders import Pass, Schedule, in_flight, order_passes
from suite.comm.partition.placement import Grid, Place, place_passes
from suite.comm.partition.timeline import StageTimes, bound_step, simulate_step

pytestmark = pytest.mark.quick

LAYOUTS = [r for count in (1, 2, 3, 4) for r in itertools.product((1, 2, 3), repeat=count)]
both = pytest.mark.parametrize("schedule", get_args(Schedule))


def written(passes: tuple[Pass, ...]) -> str:
    """Passes as in the papers' figures: F0 B0 …"""
    return " ".join(f"{one.kind[0].upper()}{one.micro_batch}" for one in passes)


def test_the_orders_of_the_papers() -> None:
    assert written(order_passes("gpipe", 0, 3, 0, 1, 3)) == "F0 F1 F2 B0 B1 B2"
    assert written(order_passes("1f1b", 0, 3, 0, 1, 5)) == "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"
    assert written(order_passes("1f1b", 1, 3, 0, 1, 5)) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"
    assert written(order_passes("1f1b", 2, 3, 0, 1, 3)) == "F0 B0 F1 B1 F2 B2"
    assert written(order_passes("1f1b", 0, 2, 1, 2, 6)) == "F1 B1 F3 B3 F5 B5"


@both
def test_every_pass_runs_once_and_no_device_waits_forever(schedule: Schedule) -> None:
    for replicas in LAYOUTS:
        check_passes(schedule, replicas)


def check_passes(schedule: Schedule, replicas: tuple[int, ...]) -> None:
    """Play a layout's events."""
    for micro_batches in (1, 2, 5, 8):
        done: set[tuple[str, int, int]] = set()
        moved: set[tuple[str, int, int]] = set()
        held = dict.fromkeys(((s, r) for s, n in enumerate(replicas) for r in range(n)), 0)
        for event in place_passes(replicas, schedule, micro_batches):
            stage, micro, kind = event.stage, event.job.micro_batch, event.job.kind
            if event.kind == "transfer":
                assert (kind, stage, micro) in done
                moved.add((kind, stage, micro))
                continue
            if kind == "forward":
                assert stage == 0 or ("forward", stage - 1, micro) in moved
            else:
                assert ("forward", stage, micro) in done
                assert stage == len(replicas) - 1 or ("backward", stage + 1, micro) in moved
            assert (kind, stage, micro) not in done
            done.add((kind, stage, micro))
            device = stage, micro % replicas[stage]
            held[device] += 1 if kind == "forward" else -1
            limit = in_flight(schedule, len(replicas) - stage, replicas[stage], micro_batches)
            assert held[device] <= limit
        assert len(done) == 2 * len(replicas) * micro_batches
        times = [StageTimes(1.0, 2.0, 0.1, 0.1, replicas=count) for count in replicas]
        assert simulate_step(times, schedule, micro_batches).seconds > 0


@both
@pytest.mark.parametrize("stages, micro_batches", [(1, 1), (2, 4), (4, 8), (3, 2)])
def test_equal_stages_take_the_closed_form(schedule: Schedule, stages: int, micro_batches: int) -> None:
    """(M + K - 1) (f + b): Huang et al. 2019, section 2.3; 1F1B has the same bubble."""
    timeline = simulate_step([StageTimes(1.0, 2.0)] * stages, schedule, micro_batches)
    assert timeline.seconds == pytest.approx((micro_batches + stages - 1) * 3.0)
    assert timeline.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@both
def test_no_step_is_shorter_than_the_bound(schedule: Schedule) -> None:
    """A step takes at least its bound; the planner leaves out stages whose bound is longer than the best step."""
    for replicas in LAYOUTS:
        draw = random.Random(sum(replicas))
        for micro_batches in (1, 2, 5, 8):
            times = [StageTimes(*(draw.random() for _ in range(5)), replicas=count) for count in replicas]
            least, taken = bound_step(times, micro_batches), simulate_step(times, schedule, micro_batches).seconds
            assert least <= taken * (1 + 1e-12), (replicas, micro_batches)


@pytest.mark.parametrize("stages, micro_batches", [(1, 1), (2, 4), (4, 8), (3, 2)])
def test_the_bound_of_equal_stages_is_their_step(stages: int, micro_batches: int) -> None:
    times = [StageTimes(1.0, 2.0, receive=0.25, receive_back=0.5, all_reduce=0.1)] * stages
    alone = (micro_batches + stages - 1) * 3.0
    assert bound_step(times, micro_batches) == pytest.approx(alone + (stages - 1) * 0.75 + (0.1 if stages == 1 else 0))


def test_two_stages_by_hand() -> None:
    """F0 and F1 take 0 to 1 and 1 to 2; their values arrive at 1.5 and 2.5; then 2 s of backward, and 0.5 s back."""
    times = [StageTimes(1.0, 1.0, receive_back=0.5, all_reduce=3.0), StageTimes(1.0, 2.0, receive=0.5)]
    # stage 1: F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5; stage 0: B0 5-6, B1 8-9, then the all-reduce
    timeline = simulate_step(times, "1f1b", 2)
    assert timeline.seconds == pytest.approx(12.0) and timeline.busy == (4.0, 6.0)


def test_messages_in_one_direction_follow_each_other() -> None:
    """Four micro-batches whose values take 10 s each: the last arrives at 0.1 + 40 s."""
    timeline = simulate_step([StageTimes(0.1, 0.0), StageTimes(0.0, 0.0, receive=10.0)], "gpipe", 4)
    assert timeline.seconds == pytest.approx(40.1)


@pytest.mark.parametrize("replicas, pipelines", [((1,), 1), ((1, 2), 3), ((2, 1, 3), 2)])
def test_places_and_ranks(replicas: tuple[int, ...], pipelines: int) -> None:
    grid = Grid(replicas, pipelines, 4, "1f1b")
    assert [grid.rank(grid.place(rank)) for rank in range(grid.world)] == list(range(grid.world))
    groups = [grid.group(stage) for stage in range(len(replicas))]
    assert sorted(itertools.chain(*groups)) == list(range(grid.world))
    assert [len(group) for group in groups] == [count * pipelines for count in replicas]
    last = len(replicas) - 1
    peer = grid.place(grid.peer(Place(pipelines - 1, 0, 0), last, 3))
    assert peer == Place(pipelines - 1, last, 3 % replicas[last])
