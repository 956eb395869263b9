"""`python -m suite.fits`: published step times beside projected ones, fitted on the smaller points only.

The network is conf/network/abci.yaml throughout, and nothing of it is fitted. What is fitted is what a device computes,
which no network description knows. No number is taken from a point that is predicted. docs/projection.md holds the
output.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from suite import configure, projection, published
from suite.comm.projection import cost, network, timeline
from suite.comm.projection.fit import least_squares
from suite.comm.projection.network import Network, Place
from suite.comm.transport import entry
from suite.contract import Layer
from suite.published import Row
from suite.verbs.plan import describe

FITTED = 8  # devices; points with more are predicted
FLOAT = 4  # bytes
FLOAT21 = 64 / 96  # three values in a pair of 32-bit words
STALE = {128: "A2-01", 256: "A2-02", 512: "A2-03", 1024: "A2-04"}  # share of communication kept, by devices


@dataclass(frozen=True)
class Point:
    """One published time and what the model says of it."""

    row: str
    what: str
    devices: int | None
    published: float  # seconds
    predicted: float
    fitted: bool

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.published - 1


@dataclass(frozen=True)
class Block:
    """One layer as SP-NGD treats it: the sides of its dense factors, their numbers, and its parameters."""

    sides: tuple[int, ...]
    triangles: int
    squares: int
    parameters: int


@cache
def resnet50() -> tuple[dict[str, Layer], dict[str, tuple[int, ...]], Network]:
    """The layers and shapes of the published network, and ABCI."""
    config, asked = projection.split(configure.compose(["experiment=A1-12", "network=abci"]))
    task = describe(config)[0]
    return task.layers(), {name: spec.shape for name, spec in task.shapes().items()}, network.make(asked["network"])


@cache
def blocks(full: bool) -> list[Block]:
    """Every layer, by name, as the authors' code sorts them; batch normalisation with `full` or unit-wise blocks."""
    layers, shapes, _ = resnet50()
    found = []
    for name in sorted(layers):
        layer = layers[name]
        weight, *bias = (shapes[parameter] for parameter in layer.parameters)
        parameters = math.prod(weight) + sum(map(math.prod, bias))
        if layer.kind == "batchnorm":
            sides, pairs = ((2 * weight[0],), 0) if full else ((), weight[0])
        else:
            sides, pairs = (math.prod(weight[1:]) + len(bias), weight[0]), 0
        triangles = sum(side * (side + 1) // 2 for side in sides) + 3 * pairs
        found.append(Block(sides, triangles, sum(side**2 for side in sides) + 4 * pairs, parameters))
    return found


def busiest(full: bool, world: int) -> tuple[float, float]:
    """Sums of cubed sides, and blocks, of the rank that has most of each.

    Ranks own consecutive blocks, equally many (tyohei/chainerkfac@3b00957: chainerkfac/optimizers/kfac.py,
    DistributedKFAC.setup).
    """
    shares = np.array_split(np.arange(len(blocks(full))), world)
    cubes = [sum(float(side) ** 3 for at in share for side in blocks(full)[at].sides) for share in shares]
    return max(cubes), float(max(map(len, shares)))


def exchange(full: bool, world: int) -> float:
    """Seconds of SP-NGD's communication: statistics and gradients to their owners, parameters back; ring collectives.

    A reduce-scatter of n bytes costs what an all-gather of n / W does. Statistics are triangles of float32.
    """
    parameters = sum(block.parameters for block in blocks(full))
    counts = {"there": parameters + sum(block.triangles for block in blocks(full)), "back": parameters}
    entries = [entry("all_gather", name, "", FLOAT * count // world, world) for name, count in counts.items()]
    return cost.seconds(entries, Place(world, min(world, 4)), resnet50()[2])


@dataclass(frozen=True)
class Device:
    """What one device computes: seconds of a step without inverses, of one more backward pass, of inverses."""

    step: float
    sampled: float  # the backward pass for sampled labels
    cube: float  # of each multiplication of a factor's inverse
    block: float  # of each block that a rank owns

    def inverses(self, full: bool, world: int) -> float:
        """Seconds of the busiest rank."""
        cubes, owned = busiest(full, world)
        return self.cube * cubes + self.block * owned

    def seconds(self, row: Row) -> float:
        """A step of figure 5."""
        full, world = _series(row)
        sampled = self.sampled * str(row.details["series"]).startswith("1mc")
        return self.step + sampled + self.inverses(full, world) + exchange(full, world)


def device(most: int = FITTED) -> Device:
    """Fitted to figure 5's points with at most this many devices, all series without staleness together."""
    rows = [row for row in figure5() if _series(row)[1] <= most]
    columns = np.array(
        [[1.0, str(row.details["series"]).startswith("1mc"), *busiest(*_series(row))] for row in rows], float
    )
    seconds = np.array([_value(row) for row in rows])
    return Device(*map(float, least_squares(columns, seconds - [exchange(*_series(row)) for row in rows])))


def figure5() -> list[Row]:
    """Figure 5 without the stale series."""
    return [row for row in published.load() if row.table == "A3" and "stale" not in str(row.details["series"])]


def _series(row: Row) -> tuple[bool, int]:
    assert row.devices is not None
    return "full" in str(row.details["series"]), row.devices


def _value(row: Row) -> float:
    assert isinstance(row.value, float | int)
    return float(row.value)


def scaling(most: int = FITTED) -> list[Point]:
    """Figure 5, every series."""
    found = device(most)
    return [
        Point(row.id, str(row.details["series"]), row.devices, _value(row), found.seconds(row), _series(row)[1] <= most)
        for row in figure5()
    ]


def stale() -> list[Point]:
    """Table 1's SP-NGD: figure 5's empirical, unit-wise step less what staleness leaves out.

    Table 2 says which share of the communication is kept; as much is taken to be kept of the statistics and inverses.
    What statistics cost is fitted to the row with 128 devices.
    """
    found = device()
    rows = {row.devices: row for row in published.load() if row.id in ("A1-09", "A1-10", "A1-11", "A1-12")}
    fresh = {row.devices: found.seconds(row) for row in figure5() if row.details["series"] == "emp + unit BN"}
    kept = {world: float(published.row(row).details["comm_reduction_pct"]) / 100 for world, row in STALE.items()}
    grown = {world: found.inverses(False, world) + exchange(False, world) for world in STALE}
    times = {world: float(row.details["time_per_step_s"]) for world, row in rows.items() if world}
    least = min(STALE)
    statistics = (fresh[least] - times[least]) / (1 - kept[least]) - grown[least]
    return [
        Point(
            rows[world].id,
            f"stale, {100 * kept[world]:g} % kept",
            world,
            times[world],
            fresh[world] - (1 - kept[world]) * (statistics + grown[world]),
            world == least,
        )
        for world in STALE
    ]


def ablation() -> list[Point]:
    """Ueno et al.: each trick added to the ones before, from the first two rows.

    Halving the symmetric factors gives the seconds of a byte; 21-bit numbers then follow. Overlap sends each layer's
    factors while backward goes on. Hierarchy finds nothing left to hide. Staleness leaves out all but the share that
    SP-NGD kept at 128 devices (A2-01), above an SGD step; the rows do not say how many devices they had.
    """
    rows = [published.row(f"A8-{number:02}") for number in range(5, 11)]
    times = [_value(row) / 1000 for row in rows]
    sgd = float(rows[0].details["sgd_ms"]) / 1000
    layers = list(reversed(blocks(False)))  # as backward reaches them
    triangles, squares = sum(block.triangles for block in layers), sum(block.squares for block in layers)
    by_number = (times[0] - times[1]) / (squares - triangles)
    rest = times[1] - by_number * triangles
    coded = rest + FLOAT21 * by_number * triangles
    parameters = sum(block.parameters for block in layers)
    step = timeline.step(
        sgd,
        [block.parameters / parameters for block in layers],
        [FLOAT21 * by_number * block.triangles for block in layers],
    )
    overlapped = coded - timeline.sync(step) + timeline.overlap(step)
    kept = float(published.row(STALE[128]).details["comm_reduction_pct"]) / 100
    predicted = [*times[:2], coded, overlapped, overlapped, sgd + kept * (overlapped - sgd)]
    names = ["inverses shared out", "+ symmetric", "+ float21", "+ overlap", "+ hierarchical", "+ stale"]
    return [
        Point(row.id, name, None, time, guess, number < 2)
        for number, (row, name, time, guess) in enumerate(zip(rows, names, times, predicted, strict=True))
    ]


def frnn(world: int = 4096) -> list[tuple[str, float, float]]:
    """FRNN on ABCI: (kind of all-reduce, seconds of it, least compute for 90 % efficiency with nothing overlapped)."""
    config, asked = projection.split(configure.compose(["+task=frnn", "scale=paper", "network=abci"]))
    task, where = describe(config)[0], network.make(asked["network"])
    there = projection.placed({**config, "world": world}, asked)
    place = Place(world, there["comm"]["ranks_per_host"])
    found = []
    for kind in network.ALL_REDUCES:
        seconds = sum(
            cost.seconds(one.entries, place, replace(where, all_reduce=kind))
            for one in projection.gradients(there, task)
        )
        found.append((kind, seconds, 9 * seconds))
    return found


def table(points: Sequence[Point]) -> list[str]:
    """Markdown."""
    head = ["| row | what | devices | published ms | predicted ms | error | |", "|---|---|---|---|---|---|---|"]
    return head + [
        f"| {one.row} | {one.what} | {f'{one.devices:,}' if one.devices else '?'} | {1000 * one.published:.0f} | "
        f"{1000 * one.predicted:.0f} | {100 * one.error:+.1f} % | {'fitted' if one.fitted else ''} |"
        for one in points
    ]


def errors(points: Sequence[Point]) -> str:
    """The largest and the mean error of what was predicted."""
    found = [abs(one.error) for one in points if not one.fitted]
    return f"{100 * max(found):.1f} % at most, {100 * sum(found) / len(found):.1f} % on average, of {len(found)} points"


def report() -> str:
    """Everything, as Markdown."""
    found, splits = device(), (4, 8, 16, 32)
    text = [
        "### SP-NGD, figure 5",
        "",
        f"Fitted to at most {FITTED} devices: a step without inverses {1000 * found.step:.0f} ms, a further backward "
        f"pass {1000 * found.sampled:.0f} ms, each block {1000 * found.block:.2f} ms, 10¹² multiplications "
        f"{1e15 * found.cube:.0f} ms.",
        "",
        *table(scaling()),
        "",
        "Error of the predicted points, by the most devices that were fitted:",
        "",
        *(f"- {most}: {errors(scaling(most))}{' (this table)' if most == FITTED else ''}" for most in splits),
        "",
        "### SP-NGD, table 1",
        "",
        *table(stale()),
        "",
        "### Ueno et al., the ablation",
        "",
        *table(ablation()),
        "",
        "### FRNN on 4,096 devices",
        "",
        "| all-reduce | ms | compute for 90 % |",
        "|---|---|---|",
        *(f"| {kind} | {1000 * seconds:.1f} | {1000 * least:.0f} ms |" for kind, seconds, least in frnn()),
    ]
    return "\n".join(text)


if __name__ == "__main__":
    print(report())
