"""Where the stages of a plan run: the ranks of each stage, and the order of everything that happens in a step."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from suite.comm.partition.orders import Pass, Schedule, order_passes
from suite.contract import UserError


@dataclass(frozen=True)
class Place:
    """Place of one rank.

    Attributes:
        pipeline: number of its pipeline.
        stage: number of its stage.
        replica: its number among the replicas of its stage in its pipeline.
    """

    pipeline: int
    stage: int
    replica: int


@dataclass(frozen=True)
class Grid:
    """Ranks of all pipelines: pipeline by pipeline, in each stage by stage, in each replica by replica.

    Attributes:
        replicas: of each stage in one pipeline.
        pipelines: number of equal pipelines.
        micro_batches: of each pipeline. Pipeline p trains the micro-batches p · M to (p + 1) · M - 1 of a step.
        schedule: order of passes.
    """

    replicas: tuple[int, ...]
    pipelines: int
    micro_batches: int
    schedule: Schedule

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.pipelines * sum(self.replicas)

    def rank(self, place: Place) -> int:
        """Return the rank at a place."""
        return place.pipeline * sum(self.replicas) + sum(self.replicas[: place.stage]) + place.replica

    def place(self, rank: int) -> Place:
        """Return the place of a rank."""
        pipeline, rest = divmod(rank, sum(self.replicas))
        stage = 0
        while rest >= self.replicas[stage]:
            rest -= self.replicas[stage]
            stage += 1
        return Place(pipeline, stage, rest)

    def words(self, rank: int) -> str:
        """Return the place of a rank in words, for errors."""
        place = self.place(rank)
        return f"rank {rank} (stage {place.stage}, replica {place.replica}, pipeline {place.pipeline})"

    def peer(self, place: Place, stage: int, micro_batch: int) -> int:
        """Return the rank that runs a micro-batch of a place's pipeline at another stage."""
        return self.rank(Place(place.pipeline, stage, micro_batch % self.replicas[stage]))

    def group(self, stage: int) -> list[int]:
        """All ranks of a stage, over all pipelines: they hold the same parameters and average their gradients."""
        return [
            self.rank(Place(pipeline, stage, replica))
            for pipeline in range(self.pipelines)
            for replica in range(self.replicas[stage])
        ]

    def passes(self, place: Place) -> tuple[Pass, ...]:
        """Return the passes of one rank in one step."""
        stages = len(self.replicas)
        replicas = self.replicas[place.stage]
        return order_passes(self.schedule, place.stage, stages, place.replica, replicas, self.micro_batches)


@dataclass(frozen=True)
class Event:
    """A pass at a stage, or the transfer of its result: of values to the next stage, or of gradients to the one before.

    Attributes:
        kind: `pass` or `transfer`.
        job: the pass, or the pass whose result is sent.
        stage: of the pass, or the sending stage.
    """

    kind: Literal["pass", "transfer"]
    job: Pass
    stage: int


def place_passes(replicas: Sequence[int], schedule: Schedule, micro_batches: int) -> Iterator[Event]:
    """All events of one pipeline in one step, in an order in which each comes after what it needs.

    If every rank joins its own events in this order, and sender and receiver meet at each transfer, no rank waits
    forever.
    """
    queues = {
        (stage, replica): list(order_passes(schedule, stage, len(replicas), replica, count, micro_batches))
        for stage, count in enumerate(replicas)
        for replica in range(count)
    }
    arrived = {("forward", 0, micro) for micro in range(micro_batches)}
    while any(queues.values()):
        ready = [
            (stage, replica)
            for (stage, replica), queue in queues.items()
            if queue and (queue[0].kind, stage, queue[0].micro_batch) in arrived
        ]
        if not ready:
            raise RuntimeError(f"the schedule {schedule} stops: {queues}")
        for stage, replica in ready:
            job = queues[stage, replica].pop(0)
            yield Event("pass", job, stage)
            after = stage + (1 if job.kind == "forward" else -1)
            if job.kind == "forward" and after == len(replicas):
                arrived.add(("backward", stage, job.micro_batch))
            elif after >= 0:
                arrived.add((job.kind, after, job.micro_batch))
                yield Event("transfer", job, stage)


def ranks_per_host(groups: Sequence[Sequence[int]], locals: int) -> list[int]:
    """How many of each stage's ranks are on one host.

    Args:
        groups: ranks of each stage, ascending.
        locals: ranks of one host.

    Raises:
        UserError: if a stage has different numbers of ranks on its hosts.
    """
    numbers = []
    for stage, ranks in enumerate(groups):
        counts = [len(list(members)) for _, members in itertools.groupby(ranks, lambda rank: rank // locals)]
        if len(set(counts)) > 1:
            raise UserError(
                f"stage {stage} has {' and '.join(map(str, counts))} ranks on hosts of {locals} ranks; a mode with two "
                "levels needs equally many; set comm.topology.module=suite.comm.topologies.flat"
            )
        numbers.append(counts[0])
    return numbers
