"""Projects a run onto other devices: its ledger entries, their seconds, and the timeline of a step."""

import functools
import importlib
import importlib.util
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from suite import load
from suite.comm import setup
from suite.comm.channel import Channels
from suite.comm.codecs._codec import Codec
from suite.comm.contract import Channel, Schedule, check
from suite.comm.projection import cost, network, timeline
from suite.comm.projection.network import Network, Place
from suite.comm.projection.timeline import Refresh
from suite.comm.reduce import traffic
from suite.comm.transport import Entry, Ledger
from suite.contract import Task, UserError
from suite.nodes import Part
from suite.optimizers._plan import Exchange
from suite.settings.run import Run

ITEMSIZE = {"float64": 8}  # bytes of a gradient's value; 4 in every other precision
Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Sent:
    """Values that are exchanged together once.

    Attributes:
        count: number of values.
        channel: the channel that carries them.
        entries: the ledger entries of rank 0.
    """

    count: int
    channel: Channel
    entries: Sequence[Entry]


def without_projection(run: Run) -> Run:
    """Return the run that would be started: without the settings of a projection."""
    return run.model_copy(update={"network": None, "compute_seconds": None, "inverse_seconds": 0.0})


def place_ranks(run: Run) -> Run:
    """Return the run with the ranks per host of its network, if it has one and comm.ranks_per_host is auto."""
    if not run.network or run.comm.ranks_per_host != "auto":
        return run
    ranks = min(run.network.ranks_per_host or run.world, run.world)
    return run.model_copy(update={"comm": run.comm.model_copy(update={"ranks_per_host": ranks})})


def _parameters(task: Task) -> dict[str, int]:
    """Return the number of elements of each parameter that all ranks hold, in the model's order."""
    replicated = ("parameter", "replicated")
    return {
        name: math.prod(spec.shape) for name, spec in task.shapes().items() if (spec.kind, spec.placement) == replicated
    }


def _map(function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
    """Apply a function to each item; equal items in a row share one call and its result."""
    return [value for item, group in itertools.groupby(items) for value in [function(item)] * len(list(group))]


def list_gradients(run: Run, task: Task, kind: str | None = None, names: Collection[str] | None = None) -> list[Sent]:
    """Return what one reduction of the gradients sends, by the ledger's formulas.

    With a leader topology, rank 0 is a leader. Tables split by rows are not included.

    Args:
        run: the run.
        task: what is trained.
        kind: count only gradients of this kind; None counts all.
        names: count only these parameters; None counts all.

    Returns:
        One entry for each bucket.
    """
    itemsize, kind_of = ITEMSIZE.get(run.precision, 4), setup.find_kinds(task)
    counts = {
        name: count
        for name, count in _parameters(task).items()
        if kind in (None, kind_of[name]) and (names is None or name in names)
    }
    channels = setup.make_channels(run.comm, task, run.world)
    buckets = []
    for _, channel, members in channels.buckets({name: count * itemsize for name, count in counts.items()}):
        total = sum(counts[name] for name in members)
        buckets.append(_sent("gradients", total, channel, channel.topology.traffic, channels, run))
    return buckets


def list_refreshes(run: Run, task: Task) -> list[list[tuple[Exchange, Sent, Sent]]] | None:
    """Return what the optimizer exchanges with the owners of its factors.

    Returns:
        For each step of a refresh cycle, (an Exchange, what is sent to its owners, what they send back). None if it is
        unknown: the optimizer needs `reduce` or `world`, but has no `traffic.py`.
    """
    module = run.optimizer.module
    if importlib.util.find_spec(f"{module}.traffic") is None:
        return None if {"reduce", "world"} & set(run.optimizer.needs) else [[]]
    shapes = {name: spec.shape for name, spec in task.shapes().items() if spec.kind == "parameter"}
    channels = setup.make_channels(run.comm, task, run.world)
    cycle = importlib.import_module(f"{module}.traffic").cycle(
        task.layers(), shapes, world=run.world, options=run.optimizer.options()
    )

    def sent(name: str, owners: tuple[int, ...], side: int, *, back: bool) -> Sent:
        count = side * (side + 1) // 2 if channels.symmetric else side**2
        itemsize = ITEMSIZE.get(run.precision, 4)
        ranks = {"world": run.world, "locals": channels.locals}
        alone = run.world == 1 or not owners
        entries = (
            ()
            if alone
            else traffic(name, owners, count, back=back, channel=channels.factors, itemsize=itemsize, **ranks)
        )
        return Sent(len(owners) * count, channels.factors, entries)

    def both_ways(exchanges: Sequence[Exchange]) -> list[tuple[Exchange, Sent, Sent]]:
        return [
            (
                exchange,
                sent(f"factor/{exchange.name}", exchange.sent, exchange.side, back=False),
                sent(f"inverse/{exchange.name}", exchange.gathered, exchange.side, back=True),
            )
            for exchange in exchanges
        ]

    return _map(both_ways, cycle)


def _reached(task: Task) -> dict[str, float]:
    """Estimate the share of the backward pass that is over before each gradient, by parameters as in `_shares`."""
    counts = _parameters(task)
    total, done, shares = sum(counts.values()), 0, {}
    for name in reversed(counts):
        shares[name] = done / total
        done += counts[name]
    return shares


def _sent(name: str, count: int, channel: Channel, traffic: Any, channels: Channels, run: Run) -> Sent:
    itemsize, world = ITEMSIZE.get(run.precision, 4), run.world
    locals = channels.locals or 1
    if world == 1:
        return Sent(count, channel, ())
    return Sent(count, channel, traffic(name, count, channel=channel, itemsize=itemsize, world=world, locals=locals))


def project_step(run: Run, task: Task, measured: Mapping[str, Any] | None) -> dict[str, Any]:
    """Project the step time and the bytes on a network.

    Args:
        run: the run.
        task: what is trained.
        measured: a run of one device's share, as `suite.projection.measured.find_measured` returns it.

    Returns:
        The entry `projected` of a plan; times in seconds, sizes in bytes for each step.

    Raises:
        UserError: for contradicting settings.
    """
    assert run.network
    net, world = network.make_network(run.network), run.world
    place = Place(world, setup.count_ranks_per_host(run.comm.ranks_per_host, world))
    compute = run.compute_seconds or (measured or {}).get("step_seconds")
    inverse = run.inverse_seconds
    if inverse and not run.compute_seconds:
        raise UserError(
            "inverse_seconds: a measured step already includes the inverses; set compute_seconds= without them as well"
        )
    buckets, cycle = list_gradients(run, task), list_refreshes(run, task)
    seconds_of = functools.partial(travel_seconds, place=place, net=net, run=run)
    travel, reached = [seconds_of(bucket) for bucket in buckets], _reached(task)
    ledger = Ledger()
    for bucket in buckets:
        ledger.add(bucket.entries)

    def step_of(exchanges: Sequence[tuple[Exchange, Sent, Sent]]) -> timeline.Step:
        refreshed = _refreshed(exchanges, inverse, seconds_of, reached)
        return timeline.step(compute or 0.0, _shares(buckets), travel, refreshed, net.contention)

    steps = _map(step_of, cycle or [[]])
    inverting = sum(any(exchange.total for exchange, _, _ in exchanges) for exchanges in cycle or ())
    alone = (compute or 0.0) + inverse * inverting / len(steps)
    schedules = _schedules(run.comm.schedule.module)
    times = {name: _mean([schedule(step) for step in steps]) for name, schedule in schedules.items()}
    return {
        "network": net.name,
        "hosts": place.hosts,
        "ranks_per_host": place.locals,
        "compute_seconds": compute,
        "compute_from": "compute_seconds" if run.compute_seconds else (measured or {}).get("result"),
        "communication_seconds": _mean([step.travel for step in steps]),
        "one_device_seconds": alone if compute else None,
        "schedule": run.comm.schedule.module.rpartition(".")[2],
        "step_seconds": times if compute else None,
        "efficiency": {name: alone / seconds for name, seconds in times.items()} if compute else None,
        "gradient_bytes": ledger.facts(),
        "optimizer_bytes": optimizer_bytes(cycle),
        "host_bytes": host_bytes(buckets, cycle, place, net),
        "each_rank_crosses": place.locals > 1 and _each_crosses(buckets, cycle or ()),
    }


def _schedules(chosen: str) -> dict[str, Callable[[timeline.Step], float]]:
    """Step times by schedule: those of the suite's schedules, and of the run's own.

    Raises:
        UserError: for a schedule without a function `projected`.
    """
    modules = [*(f"{load.GROUPS['schedules']}.{name}" for name in load.find_members("schedules")), chosen]
    members = {module: Part(module=module).member for module in modules}
    for module, member in members.items():
        check(module, Schedule, member)
    return {module.rpartition(".")[2]: member.projected for module, member in members.items()}


def _shares(buckets: Sequence[Sent]) -> list[float]:
    """Each bucket's share of the backward pass, by parameters, because layers do not declare their operations."""
    parameters = sum(bucket.count for bucket in buckets)
    return [bucket.count / parameters for bucket in buckets]


def _refreshed(
    exchanges: Sequence[tuple[Exchange, Sent, Sent]],
    inverse: float,
    seconds: Callable[[Sent], float],
    reached: Mapping[str, float],
) -> list[Refresh]:
    """Return the refreshes of one step; `inverse` is the seconds that all inverses need on one device."""
    total = sum(exchange.total for exchange, _, _ in exchanges)
    return [
        Refresh(
            seconds(to_owners),
            inverse * exchange.work / total if total else 0.0,
            seconds(back),
            reached.get(exchange.before) if exchange.before else None,
        )
        for exchange, to_owners, back in exchanges
    ]


def travel_seconds(sent: Sent, place: Place, net: Network, run: Run) -> float:
    """Seconds of one bucket's collectives, with encoding and decoding."""
    itemsize = ITEMSIZE.get(run.precision, 4)

    def coded(item: Entry) -> bool:
        codec = sent.channel.inner if item.level == "inner" else sent.channel.codec
        return not only_copies(codec, itemsize)

    return cost.sum_seconds(sent.entries, place, net, coded=coded)


def only_copies(codec: Codec, itemsize: int) -> bool:
    """Return whether a codec only copies, judged by the length of its payload."""
    return codec.nbytes(1000, itemsize) == 1000 * itemsize


def host_bytes(
    buckets: Sequence[Sent], cycle: Sequence[Sequence[tuple[Exchange, Sent, Sent]]] | None, place: Place, net: Network
) -> float | None:
    """Bytes per step that all ranks of one host send to other hosts; None if the optimizer's part is unknown."""
    if cycle is None:
        return None

    def crossing(exchanges: Sequence[tuple[Exchange, Sent, Sent]]) -> float:
        return sum(cost.count_crossing(sent.entries, place, net) for _, *both in exchanges for sent in both)

    return sum(cost.count_crossing(bucket.entries, place, net) for bucket in buckets) + _mean(_map(crossing, cycle))


def _each_crosses(buckets: Sequence[Sent], cycle: Sequence[Sequence[tuple[Exchange, Sent, Sent]]]) -> bool:
    """Return whether an all-to-all of all ranks is used; a host's link then carries the bytes of each of its ranks."""
    exchanged = [sent for exchanges in cycle for _, *both in exchanges for sent in both]
    return any(
        (item.operation, item.level) == ("all_to_all", "flat")
        for sent in (*buckets, *exchanged)
        for item in sent.entries
    )


def optimizer_bytes(cycle: Sequence[Sequence[tuple[Exchange, Sent, Sent]]] | None) -> dict[str, float] | None:
    """Bytes that one device exchanges with the owners of factors per step.

    Args:
        cycle: as `refreshes` returns it.

    Returns:
        `mean` over the steps of the cycle, and their number `steps`; None if unknown.
    """
    if cycle is None:
        return None
    step_bytes = [
        sum(item.sent for _, *both in exchanges for sent in both for item in sent.entries) for exchanges in cycle
    ]
    return {"mean": _mean(step_bytes), "steps": len(cycle)}


def optimizer_text(exchanged: Mapping[str, float] | None) -> str:
    """Return the end of a line about the gradients' bytes: the optimizer's bytes, as `optimizer_bytes` returns them."""
    if exchanged is None:
        return "; the optimizer's exchanges are not counted"
    every = f"mean of {exchanged['steps']} steps" if exchanged["steps"] > 1 else "if all are refreshed"
    return f"; {exchanged['mean']:,.0f} for the optimizer's factors, {every}" if exchanged["mean"] else ""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def format_projection(projected: Mapping[str, Any], one_device: str) -> list[str]:
    """A projection as lines of text.

    Args:
        projected: as `project` returns it.
        one_device: the command that measures one device's share of the batch.
    """
    hosts = f"{projected['hosts']:,} host{'s' if projected['hosts'] != 1 else ''} of {projected['ranks_per_host']:,}"
    sent = projected["gradient_bytes"]
    levels = ", ".join(f"{size:,} {level}" for level, size in sent["by_level"].items()) or "nothing"
    travel = f"{1000 * projected['communication_seconds']:.3g} ms of communication a step"
    head = f"projected   {projected['network']}, {hosts}: {travel}"
    wire = [
        f"            bytes a step and device: {levels} for gradients{optimizer_text(projected['optimizer_bytes'])}"
    ]
    if projected["hosts"] > 1 and projected["host_bytes"] is not None:
        advice = "to sum within hosts first, set comm.topology.module=suite.comm.topologies.two_level"
        each_rank = f"; every rank sends its own values, by an all-to-all; {advice}"
        wire.append(
            f"            bytes a step from all {projected['ranks_per_host']:,} ranks of a host to other hosts: "
            f"{projected['host_bytes']:,.0f}{each_rank if projected['each_rank_crosses'] else ''}"
        )
    if projected["step_seconds"] is None:
        unknown = f"            compute is unknown: set compute_seconds=SECONDS, or run this first: {one_device}"
        return [head, *wire, unknown]
    ways = [
        f"{name} {1000 * seconds:.4g} ms, {100 * projected['efficiency'][name]:.1f} %"
        for name, seconds in projected["step_seconds"].items()
    ]
    compute = f"{1000 * projected['compute_seconds']:.4g} ms of compute ({projected['compute_from']})"
    return [
        f"{head}, {compute}",
        f"            a step, and efficiency against one device: {' · '.join(ways)}; this run: {projected['schedule']}",
        *wire,
    ]
