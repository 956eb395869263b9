"""A step as jobs on two lines, the device and one ordered channel, and when each of them ends.

A schedule of `comm/schedules` that stands here under its own name has a time. Forward is taken for a third of what
forward and backward need together: backward multiplies twice where forward multiplies once (the products for the
inputs' and for the weights' gradients).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FORWARD = 1 / 3


@dataclass(frozen=True)
class Job:
    """Something that occupies a line for some seconds, once all that stands in `after` has ended."""

    name: str
    line: str
    seconds: float
    after: tuple[str, ...] = ()


def ends(jobs: Iterable[Job]) -> dict[str, float]:
    """When each job ends. A line takes its jobs in the order given; `after` names jobs that stand before."""
    free: dict[str, float] = {}
    ended: dict[str, float] = {}
    for job in jobs:
        start = max([free.get(job.line, 0.0), *(ended[name] for name in job.after)])
        free[job.line] = ended[job.name] = start + job.seconds
    return ended


@dataclass(frozen=True)
class Bucket:
    """What backward yields together: seconds of backward that fill it, seconds that it travels."""

    backward: float
    travel: float


@dataclass(frozen=True)
class Refresh:
    """One bucket of a curvature method: seconds to the owners, of the busiest owner's work, and of the way back."""

    to_owners: float
    work: float
    gather: float


@dataclass(frozen=True)
class Step:
    """Seconds of the parts of one step on one device; refreshes come after the gradients, one after another."""

    forward: float
    buckets: Sequence[Bucket]
    refreshes: Sequence[Refresh] = ()

    @property
    def compute(self) -> float:
        """Forward, backward and this device's share of the refreshes."""
        return self.forward + sum(bucket.backward for bucket in self.buckets) + sum(one.work for one in self.refreshes)

    @property
    def travel(self) -> float:
        """All communication."""
        return sum(bucket.travel for bucket in self.buckets) + self.exchanged

    @property
    def exchanged(self) -> float:
        """Communication of the refreshes."""
        return sum(one.to_owners + one.gather for one in self.refreshes)


def step(compute: float, shares: Sequence[float], travel: Sequence[float], refreshes: Sequence[Refresh] = ()) -> Step:
    """A step from the seconds of forward and backward, and each bucket's share of backward (their sum is 1)."""
    backward = (1 - FORWARD) * compute
    buckets = [Bucket(backward * share, seconds) for share, seconds in zip(shares, travel, strict=True)]
    return Step(FORWARD * compute, buckets, refreshes)


def sync(one: Step) -> float:
    """Nothing at the same time."""
    return one.compute + one.travel


def overlap(one: Step) -> float:
    """Each bucket travels as soon as backward has filled it and the one before has arrived."""
    jobs = [Job("forward", "device", one.forward)]
    for number, bucket in enumerate(one.buckets):
        jobs.append(Job(f"backward/{number}", "device", bucket.backward))
        jobs.append(Job(f"travel/{number}", "channel", bucket.travel, (f"backward/{number}",)))
    last = tuple(job.name for job in jobs)
    for number, item in enumerate(one.refreshes):
        jobs.append(Job(f"owners/{number}", "channel", item.to_owners, last))
        jobs.append(Job(f"work/{number}", "device", item.work, (f"owners/{number}",)))
        jobs.append(Job(f"gather/{number}", "channel", item.gather, (f"work/{number}",)))
        last = (f"gather/{number}",)
    return max(ends(jobs).values())


def stale(one: Step) -> float:
    """Gradients travel during the whole of the next step's forward and backward; refreshes wait for both."""
    travel = sum(bucket.travel for bucket in one.buckets)
    refresh = one.exchanged + sum(item.work for item in one.refreshes)
    return max(one.compute - sum(item.work for item in one.refreshes), travel) + refresh
