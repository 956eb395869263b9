"""Predicted time of a step where sender and receiver meet at each message, as processes of jax do."""

from collections.abc import Sequence

from suite.comm.partition.orders import Schedule
from suite.comm.partition.placement import place_passes
from suite.comm.partition.timeline import Run, StageTimes, Timeline


def meet_ranks(stages: Sequence[StageTimes], schedule: Schedule, micro_batches: int) -> Timeline:
    """Simulate one step of devices that are separate processes.

    All processes join their messages in the order of `place_passes`. A process joins a message when it has begun
    all its earlier passes in this order and has finished the last but one, and a thread exchanges one message
    after another: so a message waits for both processes, and for the messages that either has joined before.

    Args:
        stages: of one pipeline, in order.
        schedule: the order of passes on each device.
        micro_batches: of the pipeline.
    """
    replicas = [times.replicas for times in stages]
    devices = [(stage, replica) for stage, count in enumerate(replicas) for replica in range(count)]
    free, joined, thread, busy = (dict.fromkeys(devices, 0.0) for _ in range(4))
    arrived: dict[tuple[str, int, int], float] = {}  # by kind, stage and micro-batch
    runs: list[Run] = []
    for event in place_passes(replicas, schedule, micro_batches):
        job, times = event.job, stages[event.stage]
        device = event.stage, job.micro_batch % times.replicas
        if event.kind == "pass":
            seconds = times.forward if job.kind == "forward" else times.backward
            joined[device] = max(free[device], arrived.get((job.kind, event.stage, job.micro_batch), 0.0))
            free[device] = joined[device] + seconds
            busy[device] += seconds
            runs.append(Run(*device, job, joined[device], free[device]))
            continue
        after = event.stage + (1 if job.kind == "forward" else -1)
        other = after, job.micro_batch % stages[after].replicas
        travel = stages[after].receive if job.kind == "forward" else stages[after].receive_back
        begin = max(thread[device], thread[other], free[device], joined[other])
        thread[device] = thread[other] = arrived[job.kind, after, job.micro_batch] = begin + travel
    last = max(max(free[device], thread[device]) + stages[device[0]].all_reduce for device in devices)
    longest = (max(busy[device] for device in busy if device[0] == stage) for stage in range(len(stages)))
    return Timeline(last, tuple(longest), tuple(runs))
