"""What a run would take on other devices: from its configuration to entries, their seconds, and a step's timeline."""

import functools
import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite import communication, load
from suite.comm.channel import Channel, Channels
from suite.comm.codecs._codec import Codec
from suite.comm.projection import cost, network, timeline
from suite.comm.projection.network import Network, Place
from suite.comm.projection.timeline import Refresh
from suite.comm.reduce import traffic
from suite.comm.transport import Entry, Ledger
from suite.contract import Task, UserError

KEYS = ("network", "compute_seconds", "inverse_seconds")  # of a plan, and of no run
ITEMSIZE = {"float64": 8}  # bytes of a gradient's value; 4 in every other precision


@dataclass(frozen=True)
class Sent:
    """Values that travel together once: how many, by which channel, and what one rank (rank 0) sends for it."""

    count: int
    channel: Channel
    entries: Sequence[Entry]


def split(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run's configuration, and what a plan alone is asked: the projection's keys, {} where there are none."""
    return (
        {name: value for name, value in config.items() if name not in KEYS},
        {name: config[name] for name in KEYS if name in config},
    )


def placed(config: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration on the network's hosts, where comm.ranks_per_host leaves that open."""
    comm = config["comm"]
    if not asked or comm["ranks_per_host"] != "auto":
        return dict(config)
    locals = min(asked["network"]["ranks_per_host"] or config["world"], config["world"])
    return {**config, "comm": {**comm, "ranks_per_host": locals}}


def gradients(config: Mapping[str, Any], task: Task, kind: str | None = None) -> list[Sent]:
    """What reducing the gradients once, or those of one kind, sends, a bucket each, by the ledger's formulas.

    With leaders, rank 0 is one of them. A table split by rows has no gradient that all ranks hold.
    """
    itemsize, kind_of = ITEMSIZE.get(config["precision"], 4), communication.kind_of(task)
    counts = {
        name: math.prod(spec.shape)
        for name, spec in task.shapes().items()
        if (spec.kind, spec.placement) == ("parameter", "replicated") and kind in (None, kind_of[name])
    }
    channels = communication.channels(config["comm"], task, config["world"])
    found = []
    for _, channel, members in channels.buckets({name: count * itemsize for name, count in counts.items()}):
        total = sum(counts[name] for name in members)
        found.append(_sent("gradients", total, channel, channel.topology.traffic, channels, config))
    return found


def refreshes(config: Mapping[str, Any], task: Task) -> list[list[tuple[Any, Sent, Sent]]] | None:
    """What the optimizer exchanges with owners: (an Exchange, to them, back) for each step of a cycle.

    None where the optimizer cannot say: it has no `traffic.py`, although it asks for `reduce` or the number of ranks.
    """
    module = config["optimizer"]["module"]
    if importlib.util.find_spec(f"{module}.traffic") is None:
        return None if {"reduce", "world"} & set(load.common(module).NEEDS) else [[]]
    shapes = {name: spec.shape for name, spec in task.shapes().items() if spec.kind == "parameter"}
    channels = communication.channels(config["comm"], task, config["world"])
    cycle = importlib.import_module(f"{module}.traffic").cycle(
        task.layers(), shapes, world=config["world"], options=config["optimizer"]
    )

    def sent(name: str, owners: tuple[int, ...], side: int, *, back: bool) -> Sent:
        count = side * (side + 1) // 2 if channels.symmetric else side**2
        how = {"channel": channels.factors, "itemsize": ITEMSIZE.get(config["precision"], 4)}
        where = {"world": config["world"], "locals": channels.locals}
        alone = config["world"] == 1 or not owners
        entries = () if alone else traffic(name, owners, count, back=back, **how, **where)
        return Sent(len(owners) * count, channels.factors, entries)

    return [
        [
            (
                one,
                sent(f"factor/{one.name}", one.sent, one.side, back=False),
                sent(f"inverse/{one.name}", one.gathered, one.side, back=True),
            )
            for one in exchanges
        ]
        for exchanges in cycle
    ]


def _sent(name: str, count: int, channel: Channel, traffic: Any, channels: Channels, config: Mapping[str, Any]) -> Sent:
    itemsize, world = ITEMSIZE.get(config["precision"], 4), config["world"]
    locals = channels.locals or 1
    if world == 1:
        return Sent(count, channel, ())
    return Sent(count, channel, traffic(name, count, channel=channel, itemsize=itemsize, world=world, locals=locals))


def project(
    config: Mapping[str, Any], task: Task, asked: Mapping[str, Any], measured: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Seconds and bytes of a step on the network that was asked for.

    Args:
        config: of the run, `placed`.
        task: what is trained.
        asked: KEYS, as typed.
        measured: a run of one device's share, as `suite.verbs.plan.measured` finds it.

    Raises:
        UserError: for a network that cannot be.
    """
    where, world = network.make(asked["network"]), config["world"]
    place = Place(world, communication.ranks_per_host(config["comm"]["ranks_per_host"], world))
    compute = asked["compute_seconds"] or (measured or {}).get("step_seconds")
    inverse = asked["inverse_seconds"]
    if inverse and not asked["compute_seconds"]:
        raise UserError("inverse_seconds: a measured step holds inverses already; give compute_seconds= without them")
    buckets, cycle = gradients(config, task), refreshes(config, task)
    takes = functools.partial(travel_seconds, place=place, where=where, config=config)
    travel = [takes(one) for one in buckets]
    ledger = Ledger()
    for one in buckets:
        ledger.add(one.entries)
    steps = [_step(buckets, travel, exchanges, compute or 0.0, inverse, takes) for exchanges in cycle or [[]]]
    inverting = sum(any(exchange.total for exchange, _, _ in exchanges) for exchanges in cycle or ())
    alone = (compute or 0.0) + inverse * inverting / len(steps)
    times = {name: _mean([schedule(step) for step in steps]) for name, schedule in _schedules().items()}
    return {
        "network": where.name,
        "hosts": place.hosts,
        "ranks_per_host": place.locals,
        "compute_seconds": compute,
        "compute_from": "compute_seconds" if asked["compute_seconds"] else (measured or {}).get("result"),
        "communication_seconds": _mean([step.travel for step in steps]),
        "one_device_seconds": alone if compute else None,
        "schedule": config["comm"]["schedule"]["module"].rpartition(".")[2],
        "step_seconds": times if compute else None,
        "efficiency": {name: alone / seconds for name, seconds in times.items()} if compute else None,
        "gradient_bytes": ledger.facts(),
        "optimizer_bytes": optimizer_bytes(cycle),
    }


def _schedules() -> dict[str, Callable[[timeline.Step], float]]:
    """The schedules whose time is known, by the name of their folder."""
    return {name: getattr(timeline, name) for name in load.members("schedules") if hasattr(timeline, name)}


def _step(
    buckets: Sequence[Sent],
    travel: Sequence[float],
    exchanges: Sequence[tuple[Any, Sent, Sent]],
    compute: float,
    inverse: float,
    seconds: Callable[[Sent], float],
) -> timeline.Step:
    """One step's parts; backward's time is shared out by parameters, since layers do not tell their operations."""
    parameters, total = sum(one.count for one in buckets), sum(exchange.total for exchange, _, _ in exchanges)
    shares = [one.count / parameters for one in buckets]
    refreshed = [
        Refresh(seconds(there), inverse * exchange.work / total if total else 0.0, seconds(back))
        for exchange, there, back in exchanges
    ]
    return timeline.step(compute, shares, travel, refreshed)


def travel_seconds(one: Sent, place: Place, where: Network, config: Mapping[str, Any]) -> float:
    """What one bucket's collectives take, with encoding and decoding."""
    itemsize = ITEMSIZE.get(config["precision"], 4)

    def coded(item: Entry) -> bool:
        codec = one.channel.inner if item.level == "inner" else one.channel.codec
        return not copies(codec, itemsize)

    return cost.seconds(one.entries, place, where, coded=coded)


def copies(codec: Codec, itemsize: int) -> bool:
    """Whether a codec does no more than copy, as far as lengths tell."""
    return codec.nbytes(1000, itemsize) == 1000 * itemsize


def optimizer_bytes(cycle: Sequence[Sequence[tuple[Any, Sent, Sent]]] | None) -> dict[str, float] | None:
    """Bytes a step and device that an optimizer exchanges with owners, the mean of so many steps; None if unknown."""
    if cycle is None:
        return None
    each = [sum(item.sent for _, *ways in one for way in ways for item in way.entries) for one in cycle]
    return {"mean": _mean(each), "steps": len(cycle)}


def also(found: Mapping[str, float] | None) -> str:
    """What the optimizer's bytes add to a line on those of gradients."""
    if found is None:
        return "; what the optimizer exchanges is not counted"
    every = f"mean of {found['steps']} steps" if found["steps"] > 1 else "if all are refreshed"
    return f"; {found['mean']:,.0f} for the optimizer's factors, {every}" if found["mean"] else ""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def lines(found: Mapping[str, Any], one_device: str) -> list[str]:
    """A projection for people; `one_device` is what to type to measure one device's share."""
    hosts = f"{found['hosts']:,} host{'s' if found['hosts'] != 1 else ''} of {found['ranks_per_host']:,}"
    sent = found["gradient_bytes"]
    levels = ", ".join(f"{size:,} {level}" for level, size in sent["by_level"].items()) or "nothing"
    travel = f"{1000 * found['communication_seconds']:.3g} ms of communication a step"
    head = f"projected   {found['network']}, {hosts}: {travel}"
    wire = f"            bytes a step and device: {levels} for gradients{also(found['optimizer_bytes'])}"
    if found["step_seconds"] is None:
        return [head, wire, f"            compute is unknown: type compute_seconds=SECONDS, or first run: {one_device}"]
    ways = [
        f"{name} {1000 * seconds:.4g} ms, {100 * found['efficiency'][name]:.1f} %"
        for name, seconds in found["step_seconds"].items()
    ]
    compute = f"{1000 * found['compute_seconds']:.4g} ms of compute ({found['compute_from']})"
    return [
        f"{head}, {compute}",
        f"            a step, and efficiency against one device: {' · '.join(ways)}; here: {found['schedule']}",
        wire,
    ]
