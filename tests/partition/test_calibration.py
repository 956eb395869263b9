"""Plans corrected by the measured times of whole stages: their arithmetic, and that measuring changes nothing."""

import json
from dataclasses import asdict

import jax
import numpy as np
import pytest
import torch_ranks
from graphs import chain
from hypothesis import given
from hypothesis import strategies as st
from jax_cuts import planned, traced
from jax_models import CASES, Draw

from suite.comm.partition.calibration import Passes, calibrate_plan, check_steps
from suite.comm.partition.device import ONE_HOST, Device
from suite.comm.partition.jax.pipeline import Pipeline
from suite.comm.partition.meetings import meet_ranks
from suite.comm.partition.orders import Schedule
from suite.comm.partition.plan import Plan
from suite.comm.partition.planner.request import Request
from suite.comm.partition.planning import plan
from suite.comm.partition.timeline import StageTimes, simulate_step
from suite.contract import UserError

JOB = {"stages": 2, "micro_batches": 4, "schedule": "1f1b", "steps": 2, "calibrate": True}


def two_stages(devices: int = 2) -> Plan:
    return plan(chain([1.0] * 4), Request(devices, 4, Device(2**40, 1.0, 1.0), ONE_HOST, 2, 4, "gpipe"))


def test_a_step_follows_from_the_measured_passes() -> None:
    made = two_stages()
    assert made.pipelines == 1
    passes = {0: Passes([1.0, 2.0, 90.0], [3.0]), 1: Passes([2.0], [3.0, 3.0])}  # medians: 2 and 3 in both stages
    measured = calibrate_plan(made, passes)
    travel = sum(stage.receive + stage.receive_back for stage in made.stages)
    assert measured.seconds == pytest.approx((4 + 1) * (2 + 3) + travel)  # GPipe: micro-batches + stages - 1 turns
    assert measured.busy == (20.0, 20.0) and measured.balance == 1.0
    assert [(stage.forward, stage.backward) for stage in measured.stages] == [(2.0, 3.0)] * 2
    assert [stage.nodes for stage in measured.stages] == [stage.nodes for stage in made.stages]


def test_replicas_of_a_stage_count_together_and_idle_ranks_do_not() -> None:
    made = two_stages(4)
    assert made.grid.world == 4
    groups = [made.grid.group(stage) for stage in range(2)]
    passes = {rank: Passes([1.0], [1.0]) for rank in groups[0]} | {groups[1][0]: Passes([5.0], [7.0])}
    measured = calibrate_plan(made, passes)
    assert [(stage.forward, stage.backward) for stage in measured.stages] == [(1.0, 1.0), (5.0, 7.0)]


def test_a_message_of_meeting_processes_waits_for_both() -> None:
    """One micro-batch meets nobody else's; with several, a message waits until the receiver has begun its pass."""
    first, second = StageTimes(2.0, 3.0, receive_back=0.25), StageTimes(1.0, 5.0, receive=0.5)
    assert meet_ranks((first, second), "gpipe", 1).seconds == 2.0 + 0.5 + 1.0 + 5.0 + 0.25 + 3.0
    slow = StageTimes(10.0, 10.0, receive=1.0)
    runs = meet_ranks((first, slow), "gpipe", 3).runs
    forward = [run.start for run in runs if run.stage == 1 and run.job.kind == "forward"]
    assert forward == [3.0, 13.0, 23.0]
    backward = [run.start for run in runs if run.stage == 0 and run.job.kind == "backward"]
    assert backward == [43.25, 53.25, 63.25]


seconds = st.floats(0.0, 10.0)
# without replicas, for which `simulate` orders messages otherwise
stage = st.builds(StageTimes, seconds, seconds, seconds, seconds, seconds)


@given(st.lists(stage, min_size=1, max_size=4), st.sampled_from(["gpipe", "1f1b"]), st.integers(3, 8))
def test_meeting_is_never_faster_than_messages_that_travel_alone(
    stages: list[StageTimes], schedule: Schedule, micro_batches: int
) -> None:
    met, alone = meet_ranks(stages, schedule, micro_batches), simulate_step(stages, schedule, micro_batches)
    assert met.seconds >= alone.seconds * (1 - 1e-12) and met.busy == pytest.approx(alone.busy)


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", ["normalized", "encoder"])  # buffers that change, random numbers
def test_measuring_in_torch_changes_no_bit(case: str) -> None:
    for rank in (ranks := torch_ranks.start(2, **JOB, case=case)):
        assert rank["different"] == []
        assert [mine for mine, _ in rank["losses"]] == [plain for _, plain in rank["losses"]]
        assert rank["measured"] == ranks[0]["measured"], "one prediction for all ranks"
        assert min(rank["measured"]) > 0 and rank["predicted"] > max(rank["measured"])


def test_measuring_in_torch_counts_no_bytes() -> None:
    first, second = torch_ranks.start(2, **JOB, case="skipping")
    assert first["sent"] == {"values": 8 * first["received"][1]}
    assert second["sent"] == {"gradients": 8 * second["returned"][0]}


def test_measuring_in_jax_changes_no_bit_and_counts_no_bytes() -> None:
    case = CASES["dropout"](Draw())
    made = traced(case)
    one, other = (
        Pipeline(made, planned(made.graph, 2, False, devices=3), case.params, jax.local_devices()[:3]) for _ in range(2)
    )
    measured = other.calibrate(*case.inputs, steps=1)
    assert all(stage.forward > 0 and stage.backward > 0 for stage in measured.stages)
    assert measured.seconds >= max(measured.busy) > 0 and other.gradients == {} and other.steps == 0
    for _ in range(2):
        other.calibrate(*case.inputs, steps=1)
        assert float(one.step(*case.inputs)) == float(other.step(*case.inputs))
        for name, grad in one.gradients.items():
            np.testing.assert_array_equal(np.asarray(grad), np.asarray(other.gradients[name]), err_msg=name)
        other.calibrate(*case.inputs, steps=1)
        assert other.gradients.keys() == one.gradients.keys(), "an update may follow"
    assert one.ledger.sent == other.ledger.sent


def test_at_least_one_step_is_measured() -> None:
    with pytest.raises(UserError, match="steps=0: measure at least one step"):
        check_steps(0)


def test_a_plan_is_read_from_its_json() -> None:
    made = two_stages()
    assert Plan.from_dict(json.loads(json.dumps(asdict(made)))) == made == Plan.from_dict(asdict(made))


def test_a_plan_by_other_rules_is_not_measured() -> None:
    request = Request(2, 4, Device(2**40, 1.0, 1.0), ONE_HOST, 2, 4, "gpipe", rannc_compat=True)
    with pytest.raises(UserError, match="can be read but not trained"):
        calibrate_plan(plan(chain([1.0] * 4), request), {})
