"""Predicts exchanges for a policy, from the cost model and the measured speed of codecs on this machine.

The network is the one in the configuration (`network=1gbit`). Without it, the link is measured: latency and bandwidth
are fitted by least squares to a few exchanges without a codec.
"""

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from suite.comm import setup
from suite.comm.codecs._codec import Codec
from suite.comm.partition.placement import ranks_per_host
from suite.comm.policies._policy import Measure, Predict, Predicted
from suite.comm.projection import cost, fit
from suite.comm.projection import network as networks
from suite.comm.projection.network import Level, Network, Place
from suite.contract import Group, Task, UserError
from suite.projection import project
from suite.settings.run import Run

SAMPLE = 250_000  # values for a codec's error; with fewer, percentiles depend on the draw


class Model:
    """Cost model of one run.

    Args:
        run: the run.
        task: what is trained.
        engine: a backend's, with `use`, `code`, `groups` and `slowest`.
        measure: exchanges the gradients of one kind several times; returns the median seconds on the slowest rank.
        paused: context in which time is not billed, for compilation.
        settle: waits for the device; returns the training seconds so far.
    """

    def __init__(
        self,
        run: Run,
        task: Task,
        engine: Any,
        *,
        measure: Callable[[Measure], float],
        paused: Callable[[], Any],
        settle: Callable[[], float],
    ):
        self.run, self.task, self.engine = project.place_ranks(run), task, engine
        self.measure, self.paused, self.settle = measure, paused, settle
        comm = self.run.comm
        self.modes = comm.candidates
        locals, groups = setup.count_ranks_per_host(comm.ranks_per_host, run.world), engine.groups
        counts = ranks_per_host([group.ranks for group in groups], locals)
        self.places = [(group, Place(len(group.ranks), count)) for group, count in zip(groups, counts, strict=True)]
        self.itemsize = project.ITEMSIZE.get(run.precision, 4)
        self.network = networks.make_network(run.network) if run.network else None
        self.drawn: list[Network] = []  # one fit for each round of measurements, if the link was measured

    def answer(self, request: Predict) -> Predicted:
        """Predict what a policy requested; all ranks must call this together."""
        if self.network is None:
            self.network, self.drawn = self._link(request.repeats)
        group, place = self._largest(request.kind)
        run = self._with_mode(str(request.mode), place)
        sent = project.list_gradients(run, self.task, request.kind, group.names)
        codec = self._codec(run, request.kind)
        payload = sum(bucket.channel.codec.nbytes(bucket.count, self.itemsize) for bucket in sent)
        coded = [] if project.only_copies(codec, self.itemsize) else self._coding(request)

        def seconds(network: Network, coding: float) -> float:
            speed = 2 * payload / coding if coding else float("inf")  # bytes encoded and bytes decoded, in a second
            net = replace(network, codec=speed)
            return sum(project.travel_seconds(bucket, place, net, run) for bucket in sent)

        coding = statistics.median(coded) if coded else 0.0
        transfer = seconds(self.network, 0.0)
        by_network = [seconds(network, coding) for network in self.drawn]
        by_coding = [seconds(self.network, coding_seconds) for coding_seconds in coded]
        return Predicted(
            coding=seconds(self.network, coding) - transfer,
            transfer=transfer,
            sent=sum(item.sent for bucket in sent for item in bucket.entries),
            bits=8 * codec.nbytes(2**20, self.itemsize) / 2**20,
            error=declare_error(codec),
            network=self.network.name,
            spread=math.hypot(_deviation(by_network), _deviation(by_coding)),
        )

    def _largest(self, kind: str) -> tuple[Group, Place]:
        """Find the ranks that average the most gradients of one kind: those of a pipeline's stage, otherwise all."""
        shapes, kinds = self.task.shapes(), setup.find_kinds(self.task)

        def values(item: tuple[Group, Place]) -> tuple[bool, int]:
            group, place = item
            own = (math.prod(shapes[name].shape) for name in group.names if kinds[name] == kind)
            return place.world > 1, sum(own)

        return max(self.places, key=values)

    def _with_mode(self, mode: str, place: Place) -> Run:
        """Return the run with one candidate as its communication mode, for ranks in one place."""
        comm = self.modes[mode].model_copy(update={"ranks_per_host": place.locals})
        return self.run.model_copy(update={"world": place.world, "comm": comm})

    def _codec(self, run: Run, kind: str) -> Codec:
        channels = setup.make_channels(run.comm, self.task, run.world)
        return channels.kinds.get(kind, channels.default).codec

    def _coding(self, request: Predict) -> list[float]:
        """Seconds of encoding and decoding the gradients of one kind on the slowest rank, for each repeat."""
        self.engine.use(request.mode)
        with self.paused():
            self.engine.code(request.kind)
        seconds = []
        for _ in range(request.repeats):
            began = self.settle()
            self.engine.code(request.kind)
            seconds.append(self.settle() - began)
        return [self.engine.ranks.slowest(own_seconds) for own_seconds in seconds]

    def _link(self, repeats: int) -> tuple[Network, list[Network]]:
        """Measure the link: the network fitted to the medians, and one fitted to each round of measurements.

        Raises:
            UserError: if the network has two levels, which this cannot separate, or if every candidate has a codec.
        """
        kinds = sorted(set(self.engine.kinds.values()))
        plain = next((mode for mode in self.modes if all(self._copied(mode, kind) for kind in kinds)), None)
        if plain is None or any(min(place.hosts, place.locals) > 1 for _, place in self.places):
            reason = "there are several hosts with several ranks" if plain else "every candidate has a codec"
            raise UserError(
                f"comm.policy: cannot measure the link, because {reason}; describe the network, for example: set "
                "network=1gbit"
            )
        unit = Level(0.0, 1.0, shared=True)
        bare = Network("", unit, unit, None, "ring", float("inf"))
        rows = []
        for kind in kinds:
            group, place = self._largest(kind)
            sent = project.list_gradients(self._with_mode(plain, place), self.task, kind, group.names)
            costs = [cost.compute_cost(entry, place, bare) for bucket in sent for entry in bucket.entries]
            rows.append([sum(sum(item.messages) for item in costs), sum(max(item.bytes) for item in costs)])
        rounds = np.array([[self.measure(Measure(plain, kind, 1)) for kind in kinds] for _ in range(repeats)])
        design = np.array(rows, float)
        return _fitted(design, np.median(rounds, 0)), [_fitted(design, seconds) for seconds in rounds]

    def _copied(self, mode: str, kind: str) -> bool:
        _, place = self.places[0]
        return project.only_copies(self._codec(self._with_mode(mode, place), kind), self.itemsize)


@functools.cache
def declare_error(codec: Codec) -> float:
    """Compute a codec's declared relative error for normal numbers: RMS of its bound over RMS of the numbers."""
    values = np.random.default_rng(0).normal(size=SAMPLE).astype(np.float32)
    bound = codec.bound(values).astype(np.float64)
    return float(np.sqrt(np.mean(bound**2) / np.mean(values.astype(np.float64) ** 2)))


def _fitted(rows: np.ndarray, seconds: np.ndarray) -> Network:
    """Fit a network of one level to exchanges.

    Args:
        rows: (messages, bytes) of each exchange, shape (exchanges, 2).
        seconds: of each exchange.
    """
    latency, by_byte = fit.least_squares(rows, seconds).tolist()
    level = Level(latency, 1 / by_byte if by_byte else float("inf"), shared=True)
    delay = f"{1e6 * latency:.3g} us a message" if latency else "latency too small to see"
    rate = f"{level.bandwidth / 1e6:.4g} MB/s" if by_byte else "too fast to see"
    return Network(f"as measured: {delay}, {rate}", level, level, None, "ring", float("inf"))


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a few values; 0 for fewer than two."""
    return statistics.stdev(values) if len(values) > 1 else 0.0
