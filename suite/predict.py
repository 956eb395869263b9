"""Answers a policy from the cost model: what an exchange would take, with codecs as fast as they are here.

The network is the one that was described (`network=1gbit`), or else the link as it is, from a few exchanges of values
that no codec has changed: latency and bandwidth are fitted to them by least squares.
"""

import functools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from suite import communication, projection
from suite.comm.codecs._codec import Codec
from suite.comm.policies._policy import Measure, Predict, Predicted
from suite.comm.projection import cost, fit
from suite.comm.projection import network as networks
from suite.comm.projection.network import Level, Network, Place
from suite.contract import Task, UserError

SAMPLE = 250_000  # values that a codec's error is taken of: percentiles of fewer depend on the draw


class Model:
    """The cost model of one run.

    Args:
        config: the run's configuration: `comm world precision`, and `network` where one was described.
        task: whose gradients travel.
        engine: a backend's, with `use`, `code` and `slowest`.
        measure: has one kind's gradients exchanged some times; the median's seconds, on the slowest rank.
        paused: around what is not to be billed: what compiles a program.
        settle: waits for the device; the training seconds so far.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        task: Task,
        engine: Any,
        *,
        measure: Callable[[Measure], float],
        paused: Callable[[], Any],
        settle: Callable[[], float],
    ):
        described = {"network": config["network"]} if "network" in config else {}
        self.config, self.task, self.engine = projection.placed(config, described), task, engine
        self.measure, self.paused, self.settle = measure, paused, settle
        comm = self.config["comm"]
        shared = {"ranks_per_host": comm["ranks_per_host"]}
        self.modes = {name: {**node, **shared} for name, node in comm["candidates"].items()}
        world = config["world"]
        self.place = Place(world, communication.ranks_per_host(comm["ranks_per_host"], world))
        self.itemsize = projection.ITEMSIZE.get(config["precision"], 4)
        self.network = networks.make(config["network"]) if described else None

    def answer(self, asked: Predict) -> Predicted:
        """What a policy asked for; every rank must ask."""
        network = self.network = self.network or self._link(asked.repeats)
        config = self._in(asked.mode)
        sent = projection.gradients(config, self.task, asked.kind)
        codec = self._codec(config, asked.kind)
        payload = sum(one.channel.codec.nbytes(one.count, self.itemsize) for one in sent)
        coded = 0.0 if projection.copies(codec, self.itemsize) else self._coding(asked)
        speed = 2 * payload / coded if coded else float("inf")  # bytes encoded and bytes decoded, in a second

        def seconds(codec_speed: float) -> float:
            where = replace(network, codec=codec_speed)
            return sum(projection.travel_seconds(one, self.place, where, config) for one in sent)

        transfer = seconds(float("inf"))
        return Predicted(
            coding=seconds(speed) - transfer,
            transfer=transfer,
            sent=sum(item.sent for one in sent for item in one.entries),
            bits=8 * codec.nbytes(2**20, self.itemsize) / 2**20,
            error=error(codec),
            network=network.name,
        )

    def _in(self, mode: Any) -> dict[str, Any]:
        """The configuration with one candidate in the place of its communication."""
        return {**self.config, "comm": self.modes[mode]}

    def _codec(self, config: Mapping[str, Any], kind: str) -> Codec:
        channels = communication.channels(config["comm"], self.task, config["world"])
        return channels.kinds.get(kind, channels.default).codec

    def _coding(self, asked: Predict) -> float:
        """Seconds of encoding and decoding the gradients of one kind once, on the slowest rank."""
        self.engine.use(asked.mode)
        with self.paused():
            self.engine.code(asked.kind)
        seconds = []
        for _ in range(asked.repeats):
            began = self.settle()
            self.engine.code(asked.kind)
            seconds.append(self.settle() - began)
        return self.engine.ranks.slowest(statistics.median(seconds))

    def _link(self, repeats: int) -> Network:
        """The network as it is.

        Raises:
            UserError: where it has two levels, which cannot be told apart so, or where every candidate has a codec.
        """
        kinds = sorted(set(self.engine.kinds.values()))
        plain = next((mode for mode in self.modes if all(self._copied(mode, kind) for kind in kinds)), None)
        if plain is None or min(self.place.hosts, self.place.locals) > 1:
            why = "several ranks on each of several hosts" if plain else "no candidate without a codec"
            raise UserError(f"comm.policy: {why}, so the link cannot be measured; describe it: type network=1gbit")
        unit = Level(0.0, 1.0, shared=True)
        bare = Network("", unit, unit, None, "ring", float("inf"))
        rows, seconds = [], []
        for kind in kinds:
            entries = [item for one in projection.gradients(self._in(plain), self.task, kind) for item in one.entries]
            costs = [cost.cost(item, self.place, bare) for item in entries]
            rows.append([sum(sum(one.messages) for one in costs), sum(max(one.bytes) for one in costs)])
            seconds.append(self.measure(Measure(plain, kind, repeats)))
        latency, by_byte = fit.least_squares(np.array(rows, float), np.array(seconds)).tolist()
        level = Level(latency, 1 / by_byte if by_byte else float("inf"), shared=True)
        rate = f"{level.bandwidth / 1e6:.4g} MB/s" if by_byte else "too fast to see"
        name = f"as measured: {1e6 * latency:.3g} us a message, {rate}"
        return Network(name, level, level, None, "ring", float("inf"))

    def _copied(self, mode: str, kind: str) -> bool:
        return projection.copies(self._codec(self._in(mode), kind), self.itemsize)


@functools.cache
def error(codec: Codec) -> float:
    """The error that a codec declares for normal numbers: root mean square of its bound, as a share of theirs."""
    values = np.random.default_rng(0).normal(size=SAMPLE).astype(np.float32)
    bound = codec.bound(values).astype(np.float64)
    return float(np.sqrt(np.mean(bound**2) / np.mean(values.astype(np.float64) ** 2)))
