"""Corrects a plan with the times that its stages take while all of them run.

A plan adds the times of operations that were measured one by one, with warm caches and an idle memory bus. Whole stages
that run side by side take longer, and handle messages.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from suite.comm.partition.orders import Schedule
from suite.comm.partition.plan import Plan
from suite.comm.partition.timeline import StageTimes, Timeline, simulate_step
from suite.contract import UserError

STEPS = 3  # that are measured
Simulation = Callable[[Sequence[StageTimes], Schedule, int], Timeline]


@dataclass
class Passes:
    """Seconds of the passes of one rank, without its waiting for messages.

    Attributes:
        forward: of each forward pass.
        backward: of each backward pass.
    """

    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)


def check_steps(steps: int) -> None:
    """Check the number of steps to measure.

    Raises:
        UserError: if it is less than 1.
    """
    if steps < 1:
        raise UserError(f"steps={steps}: measure at least one step")


def calibrate_plan(plan: Plan, passes: Mapping[int, Passes], step: Simulation = simulate_step) -> Plan:
    """Return the plan with measured times of its stages, and the step that follows from them.

    Args:
        plan: to correct.
        passes: of every rank that has micro-batches, by rank.
        step: simulates a step.
    """
    stages = []
    for number, stage in enumerate(plan.stages):
        own = [passes[rank] for rank in plan.grid.group(number) if rank in passes]
        forward = statistics.median(seconds for rank in own for seconds in rank.forward)
        backward = statistics.median(seconds for rank in own for seconds in rank.backward)
        stages.append(replace(stage, forward=forward, backward=backward))
    plan = replace(plan, stages=tuple(stages))
    timeline = step(plan.times, plan.schedule, plan.micro_batches)
    return replace(plan, seconds=timeline.seconds, busy=timeline.busy, bubble=timeline.bubble)
