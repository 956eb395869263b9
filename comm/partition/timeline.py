"""Predicted time of one step of a pipeline, from the times of its stages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suite.comm.partition.orders import Pass, Schedule, order_passes


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
class Run:
    """A pass on a device.

    Attributes:
        stage: of the device.
        replica: of the stage.
        job: the pass.
        start: seconds since the step began.
        end: seconds since the step began.
    """

    stage: int
    replica: int
    job: Pass
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A simulated step.

    Attributes:
        seconds: of the whole step.
        busy: seconds that the devices of each stage compute, the longest of its replicas.
        runs: all passes; those of one device in their order.
    """

    seconds: float
    busy: tuple[float, ...]
    runs: tuple[Run, ...] = ()

    @property
    def bubble(self) -> float:
        """Share of the step in which an average device of the pipeline does not compute."""
        return 1 - sum(self.busy) / (len(self.busy) * self.seconds) if self.seconds else 0.0


def bound_step(stages: Sequence[StageTimes], micro_batches: int) -> float:
    """Seconds that no simulated step falls short of.

    The first device of a stage waits for the first micro-batch to pass the stages before it. After its own passes, its
    last micro-batch goes back through these stages, or its gradients are averaged.

    Args:
        stages: of one pipeline, in order.
        micro_batches: of the pipeline.
    """
    longest = there = back = 0.0
    for number, times in enumerate(stages):
        own = -(-micro_batches // times.replicas)
        there += times.receive if number else 0.0
        done = there + own * (times.forward + times.backward)
        longest = max(longest, done + max(back, times.all_reduce))
        there += times.forward
        back += times.backward + times.receive_back
    return longest


def simulate_step(stages: Sequence[StageTimes], schedule: Schedule, micro_batches: int) -> Timeline:
    """Simulate one step.

    A pass starts when its device is free and its input has arrived. Messages travel while devices compute; the messages
    that a device receives in one direction follow each other.

    Args:
        stages: of one pipeline, in order.
        schedule: the order of passes on each device.
        micro_batches: of the pipeline.
    """
    queues = {
        (stage, replica): list(order_passes(schedule, stage, len(stages), replica, times.replicas, micro_batches))
        for stage, times in enumerate(stages)
        for replica in range(min(times.replicas, micro_batches))
    }
    free = dict.fromkeys(queues, 0.0)
    received = {(device, kind): 0.0 for device in queues for kind in ("forward", "backward")}
    busy = dict.fromkeys(queues, 0.0)
    ends: dict[tuple[str, int, int], float] = {}
    runs: list[Run] = []
    waiting = list(queues)
    while waiting:
        progress = False
        for device in waiting:
            stage, times = device[0], stages[device[0]]
            while queues[device]:
                job = queues[device][0]
                sent, travel = _sent(ends.get, times, job, stage, len(stages))
                if sent is None:
                    break
                arrival = received[device, job.kind] = max(received[device, job.kind], sent) + travel
                seconds = times.forward if job.kind == "forward" else times.backward
                start = max(free[device], arrival)
                free[device] = ends[job.kind, stage, job.micro_batch] = start + seconds
                runs.append(Run(*device, job, start, start + seconds))
                busy[device] += seconds
                queues[device].pop(0)
                progress = True
        waiting = [device for device in waiting if queues[device]]
        if waiting and not progress:
            raise RuntimeError(f"the schedule {schedule} stops: devices {waiting} wait for each other")
    last = max(free[device] + stages[device[0]].all_reduce for device in queues)
    longest = (max(busy[device] for device in busy if device[0] == stage) for stage in range(len(stages)))
    return Timeline(last, tuple(longest), tuple(runs))


def _sent(
    end: Callable[[tuple[str, int, int]], float | None], times: StageTimes, job: Pass, stage: int, stages: int
) -> tuple[float | None, float]:
    """Return the time at which a pass's input is sent, None if that is not known yet; and how long it travels."""
    if job.kind == "forward":
        return (end(("forward", stage - 1, job.micro_batch)), times.receive) if stage else (0.0, 0.0)
    if stage == stages - 1:
        return end(("forward", stage, job.micro_batch)), 0.0
    return end(("backward", stage + 1, job.micro_batch)), times.receive_back
