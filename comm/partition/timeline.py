"""The predicted time of one step of a pipeline, from the times of its stages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suite.comm.partition.orders import Schedule, order


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one stage.

    Attributes:
        forward: of one micro-batch.
        backward: of one micro-batch, with recomputation if the stage recomputes.
        receive: of the values of one micro-batch from the previous stage.
        receive_back: of their gradients from the next stage.
        all_reduce: of the stage's gradients, once in a step.
        replicas: devices that share the stage's micro-batches.
    """

    forward: float
    backward: float
    receive: float = 0.0
    receive_back: float = 0.0
    all_reduce: float = 0.0
    replicas: int = 1


@dataclass(frozen=True)
class Timeline:
    """A simulated step.

    Attributes:
        seconds: of the whole step.
        busy: seconds that the devices of each stage compute, the longest of its replicas.
    """

    seconds: float
    busy: tuple[float, ...]

    @property
    def bubble(self) -> float:
        """The share of the step in which an average device of the pipeline does not compute."""
        return 1 - sum(self.busy) / (len(self.busy) * self.seconds) if self.seconds else 0.0


def simulate(stages: Sequence[StageTimes], schedule: Schedule, micro_batches: int) -> Timeline:
    """Simulate one step.

    A pass starts when its device is free and its input has arrived. Sending occupies no device, because sends run in
    the background; what a device waits for shows as idle time.

    Args:
        stages: of one pipeline, in order.
        schedule: the order of passes on each device.
        micro_batches: of the pipeline.
    """
    queues = {
        (stage, replica): list(order(schedule, stage, len(stages), replica, times.replicas, micro_batches))
        for stage, times in enumerate(stages)
        for replica in range(min(times.replicas, micro_batches))
    }
    free = dict.fromkeys(queues, 0.0)
    busy = dict.fromkeys(queues, 0.0)
    ends: dict[tuple[str, int, int], float] = {}
    waiting = list(queues)
    while waiting:
        progress = False
        for device in waiting:
            stage, times = device[0], stages[device[0]]
            while queues[device]:
                job = queues[device][0]
                arrival = _arrival(ends.get, times, job.kind, stage, len(stages), job.micro_batch)
                if arrival is None:
                    break
                seconds = times.forward if job.kind == "forward" else times.backward
                free[device] = ends[job.kind, stage, job.micro_batch] = max(free[device], arrival) + seconds
                busy[device] += seconds
                queues[device].pop(0)
                progress = True
        waiting = [device for device in waiting if queues[device]]
        if waiting and not progress:
            raise RuntimeError(f"the schedule {schedule} stops: devices {waiting} wait for each other")
    last = max(free[device] + stages[device[0]].all_reduce for device in queues)
    longest = (max(busy[device] for device in busy if device[0] == stage) for stage in range(len(stages)))
    return Timeline(last, tuple(longest))


def _arrival(
    end: Callable[[tuple[str, int, int]], float | None],
    times: StageTimes,
    kind: str,
    stage: int,
    stages: int,
    micro: int,
) -> float | None:
    """The time at which a pass has its input; None if that is not known yet."""
    if kind == "forward":
        if stage == 0:
            return 0.0
        sent = end(("forward", stage - 1, micro))
        return None if sent is None else sent + times.receive
    if stage == stages - 1:
        return end(("forward", stage, micro))
    sent = end(("backward", stage + 1, micro))
    return None if sent is None else sent + times.receive_back
