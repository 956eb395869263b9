"""Pipeline schedules: the order of forward and backward passes on each device.

Micro-batch m of a pipeline goes to replica m mod r of a stage with r replicas. A stage runs the forward passes of its
micro-batches in order, and its backward passes in the same order, so that sums of gradients do not depend on the
schedule.
"""

import math
from dataclasses import dataclass
from typing import Literal

Schedule = Literal["gpipe", "1f1b"]


@dataclass(frozen=True)
class Pass:
    """Forward or backward pass of one micro-batch."""

    kind: Literal["forward", "backward"]
    micro_batch: int


def in_flight(schedule: Schedule, stages_left: int, replicas: int, micro_batches: int) -> int:
    """Return the number of micro-batches whose activations a device holds at once.

    Args:
        schedule: `gpipe` holds all of the device's micro-batches; `1f1b` as many as there are stages left.
        stages_left: stages from this one to the last, both included.
        replicas: of the stage.
        micro_batches: of the pipeline in one step.
    """
    own = math.ceil(micro_batches / replicas)
    return own if schedule == "gpipe" else min(own, math.ceil(stages_left / replicas))


def order_passes(
    schedule: Schedule, stage: int, stages: int, replica: int, replicas: int, micro_batches: int
) -> tuple[Pass, ...]:
    """Return the passes of one device in one step.

    `gpipe` (Huang et al. 2019, arXiv:1811.06965): all forward passes, then all backward passes. `1f1b` (Narayanan et
    al. 2019, doi:10.1145/3341301.3359646): a backward pass as soon as the device holds `in_flight` micro-batches.

    No device waits forever. A stage with r replicas and window w runs the forward pass of micro-batch x after the
    backward pass of x - w r. For that, the next stage needs at most the forward pass of x - w r + (w' - 1) r', an
    earlier one, because (w' - 1) r' < w r.
    """
    own = range(replica, micro_batches, replicas)
    window = in_flight(schedule, stages - stage, replicas, micro_batches)
    passes = [Pass("forward", micro) for micro in own[:window]]
    for index, micro in enumerate(own):
        passes.append(Pass("backward", micro))
        passes += [Pass("forward", later) for later in own[window + index : window + index + 1]]
    return tuple(passes)
