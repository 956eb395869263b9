"""`python -m suite.studies.fits`: compares published step times with projected ones; only small points are fitted.

Communication is projected by `suite.projection.project`, as in `suite plan`. The rows of the ablation are `suite
plan`'s projections of the presets `kfac_*`. The network is conf/network/abci.yaml, and none of its numbers is fitted.
Two things are fitted: the computation of a device, and the slowdown when it computes and sends at the same time, which
the network file does not contain. No number comes from a predicted point. docs/projection.md contains the output.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from suite import published
from suite.comm import setup
from suite.comm.contract import Channel
from suite.comm.projection import network
from suite.comm.projection.fit import least_squares
from suite.comm.projection.network import Network, Place
from suite.contract import Layer
from suite.launch.premises import describe_task
from suite.projection import project
from suite.published import Row
from suite.settings import configure
from suite.settings.run import Run

FITTED = 8  # devices; points with more are predicted
FLOAT = 4  # bytes
ROWS = {  # rows of the ablation, by the preset with the same methods
    "kfac_distributed": "A8-05",
    "kfac_symmetric": "A8-06",
    "kfac_float21": "A8-07",
    "kfac_overlap": "A8-08",
    "kfac_hierarchical": "A8-09",
    "kfac_stale": "A8-10",
}
FIRST, OVERLAPPED = "kfac_distributed", "kfac_overlap"  # the rows that are fitted
ABLATION = [  # what is typed after `suite plan` for each row
    *("+task=resnet50", "scale=paper", "recipe=untuned", "task.bn_group=32", "network=abci"),
    *("optimizer=kfac", "optimizer.factor_interval=1", "optimizer.inverse_interval=1"),
    # the paper does not print the number of devices; it compares the rows with SP-NGD on 128 (note of table A8)
    *("world=128", "task.batch_size=4096"),
]
STALE = {128: "A2-01", 256: "A2-02", 512: "A2-03", 1024: "A2-04"}  # share of communication kept, by devices


@dataclass(frozen=True)
class Point:
    """A published time and the model's time."""

    row: str
    what: str
    devices: int | None
    published: float  # seconds
    predicted: float
    fitted: bool

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.published - 1


@dataclass(frozen=True)
class Block:
    """One layer as SP-NGD treats it: the sides of its dense factors, numbers in their triangles, and its parameters."""

    sides: tuple[int, ...]
    triangles: int
    parameters: int


@cache
def resnet50() -> tuple[dict[str, Layer], dict[str, tuple[int, ...]], Network]:
    """The layers and shapes of the published network, and ABCI."""
    run = configure.resolve_training(["experiment=A1-12", "network=abci"])
    assert run.network
    task = describe_task(run)[0]
    return task.layers(), {name: spec.shape for name, spec in task.shapes().items()}, network.make_network(run.network)


@cache
def blocks(full: bool) -> list[Block]:
    """The blocks of all layers, in the order of the authors' code (by name).

    Args:
        full: whether batch normalisation has full blocks, or unit-wise ones.
    """
    layers, shapes, _ = resnet50()
    layer_blocks = []
    for name in sorted(layers):
        layer = layers[name]
        weight, *bias = (shapes[parameter] for parameter in layer.parameters)
        parameters = math.prod(weight) + sum(map(math.prod, bias))
        if layer.kind == "batchnorm":
            sides, pairs = ((2 * weight[0],), 0) if full else ((), weight[0])
        else:
            sides, pairs = (math.prod(weight[1:]) + len(bias), weight[0]), 0
        triangles = sum(side * (side + 1) // 2 for side in sides) + 3 * pairs
        layer_blocks.append(Block(sides, triangles, parameters))
    return layer_blocks


def busiest(full: bool, world: int) -> tuple[float, float]:
    """The largest sum of cubed sides of a rank, and the largest number of blocks of a rank.

    Ranks own consecutive blocks, equally many (tyohei/chainerkfac@3b00957: chainerkfac/optimizers/kfac.py,
    DistributedKFAC.setup).
    """
    shares = np.array_split(np.arange(len(blocks(full))), world)
    cubes = [sum(float(side) ** 3 for index in share for side in blocks(full)[index].sides) for share in shares]
    return max(cubes), float(max(map(len, shares)))


@cache
def ring() -> tuple[Run, Channel]:
    """A run whose all-reduce is a ring in float32, and the channel of its gradients."""
    words = ["experiment=A1-12", "comm.algorithm.module=suite.comm.algorithms.ring", "comm.piece_kib=0"]
    run = configure.resolve_training(words)
    return run, setup.make_channels(run.comm, describe_task(run)[0], run.world).default


def sent(full: bool, world: int) -> list[project.Sent]:
    """What SP-NGD exchanges: statistics and gradients by reduce-scatter, updated parameters by all-gather.

    These are the two halves of a ring all-reduce. Statistics are triangles of float32.
    """
    _, channel = ring()
    parameters = sum(block.parameters for block in blocks(full))
    counts = {"shift": parameters + sum(block.triangles for block in blocks(full)), "all_gather": parameters}
    halves = []
    for half, count in counts.items():
        mean = channel.algorithm.traffic(half, count, channel=channel, itemsize=FLOAT, world=world, level="flat")
        halves.append(project.Sent(count, channel, [item for item in mean if item.operation == half]))
    return halves


def exchange(full: bool, world: int) -> float:
    """Seconds of SP-NGD's communication, projected as in `suite plan`."""
    (run, _), place = ring(), Place(world, min(world, 4))
    return sum(project.travel_seconds(half, place, resnet50()[2], run) for half in sent(full, world))


@dataclass(frozen=True)
class Device:
    """Seconds that one device computes: a step without inverses, a further backward pass, and inverses."""

    step: float
    sampled: float  # the backward pass for sampled labels
    cube: float  # for each multiplication of a factor's inverse
    block: float  # for each block that a rank owns

    def inverses(self, full: bool, world: int) -> float:
        """Seconds of inverses on the busiest rank."""
        cubes, owned = busiest(full, world)
        return self.cube * cubes + self.block * owned

    def seconds(self, row: Row) -> float:
        """Seconds of a step of figure 5."""
        full, world = _series(row)
        sampled = self.sampled * str(row.details["series"]).startswith("1mc")
        return self.step + sampled + self.inverses(full, world) + exchange(full, world)


def device(most: int = FITTED) -> Device:
    """Fit a device to the points of figure 5 with at most `most` devices, over all series without staleness."""
    rows = [row for row in figure5() if _series(row)[1] <= most]
    columns = np.array(
        [[1.0, str(row.details["series"]).startswith("1mc"), *busiest(*_series(row))] for row in rows], float
    )
    seconds = np.array([_value(row) for row in rows])
    return Device(*map(float, least_squares(columns, seconds - [exchange(*_series(row)) for row in rows])))


def figure5() -> list[Row]:
    """Figure 5 without the stale series."""
    return [row for row in published.load_rows() if row.table == "A3" and "stale" not in str(row.details["series"])]


def _series(row: Row) -> tuple[bool, int]:
    assert row.devices is not None
    return "full" in str(row.details["series"]), row.devices


def _value(row: Row) -> float:
    assert isinstance(row.value, float | int)
    return float(row.value)


def scaling(most: int = FITTED) -> list[Point]:
    """Every point of figure 5, with the device fitted up to `most` devices."""
    fitted = device(most)
    return [
        Point(
            row.id, str(row.details["series"]), row.devices, _value(row), fitted.seconds(row), _series(row)[1] <= most
        )
        for row in figure5()
    ]


def stale() -> list[Point]:
    """Table 1's SP-NGD: figure 5's step with the empirical Fisher and unit-wise blocks, less what staleness saves.

    Table 2 gives the share of the communication that remains. The same share is assumed for statistics and inverses.
    The cost of statistics is fitted to the row with 128 devices.
    """
    fitted = device()
    rows = {row.devices: row for row in published.load_rows() if row.id in ("A1-09", "A1-10", "A1-11", "A1-12")}
    fresh = {row.devices: fitted.seconds(row) for row in figure5() if row.details["series"] == "emp + unit BN"}
    kept = {world: float(published.find_row(row).details["comm_reduction_pct"]) / 100 for world, row in STALE.items()}
    savable = {world: fitted.inverses(False, world) + exchange(False, world) for world in STALE}
    times = {world: float(row.details["time_per_step_s"]) for world, row in rows.items() if world}
    least = min(STALE)
    statistics = (fresh[least] - times[least]) / (1 - kept[least]) - savable[least]
    return [
        Point(
            rows[world].id,
            f"stale, {100 * kept[world]:g} % kept",
            world,
            times[world],
            fresh[world] - (1 - kept[world]) * (statistics + savable[world]),
            world == least,
        )
        for world in STALE
    ]


@cache
def composed(preset: str) -> Run:
    """The run of the ablation with a preset of `comm`."""
    return configure.resolve_training([*ABLATION, f"comm={preset}"])


@cache
def planned(preset: str, compute: float, inverses: float, contention: float) -> float:
    """Seconds of a step with a preset of `comm`, as `suite plan` projects it."""
    run = composed(preset)
    assert run.network
    changed = run.network.model_copy(update={"contention": contention})
    seconds = {"compute_seconds": compute, "inverse_seconds": inverses}
    run = project.place_ranks(run.model_copy(update={**seconds, "network": changed}))
    projected = project.project_step(run, describe_task(run)[0], None)
    return projected["step_seconds"][projected["schedule"]]


def solved(line: Callable[[float], float], value: float) -> float:
    """The argument at which a linear function has a value."""
    intercept = line(0.0)
    return (value - intercept) / (line(1.0) - intercept)


@dataclass(frozen=True)
class Extra:
    """Unknown numbers of the ablation's system: seconds of all inverses on one device, and contention."""

    inverses: float
    contention: float


def extra() -> Extra:
    """Fit `Extra` to the first row and to the row with overlap."""
    compute, times = _ablation()
    inverses = solved(lambda seconds: planned(FIRST, compute, seconds, 0.0), times[FIRST])
    contention = solved(lambda loss: planned(OVERLAPPED, compute, inverses, loss), times[OVERLAPPED])
    return Extra(inverses, contention)


def ablation() -> list[Point]:
    """Ueno et al.: each row adds one method to the row before. Compute without inverses is SGD's step."""
    (compute, times), fitted = _ablation(), extra()
    return [
        Point(
            row,
            f"comm={preset}",
            None,
            times[preset],
            planned(preset, compute, fitted.inverses, fitted.contention),
            preset in (FIRST, OVERLAPPED),
        )
        for preset, row in ROWS.items()
    ]


def _ablation() -> tuple[float, dict[str, float]]:
    """Published seconds of SGD's step, and of each preset's step."""
    rows = {preset: published.find_row(row) for preset, row in ROWS.items()}
    return float(rows[FIRST].details["sgd_ms"]) / 1000, {name: _value(row) / 1000 for name, row in rows.items()}


def frnn(world: int = 4096) -> list[tuple[str, float, float]]:
    """FRNN on ABCI: for each kind of all-reduce its name, its seconds, and the compute for 90 % without overlap."""
    run = configure.resolve_training(["task=frnn", "scale=paper", "network=abci"])
    assert run.network
    task, net = describe_task(run)[0], network.make_network(run.network)
    placed = project.place_ranks(run.model_copy(update={"world": world}))
    place = Place(world, setup.count_ranks_per_host(placed.comm.ranks_per_host, world))
    rows = []
    for kind in ("ring", "tree"):
        seconds = sum(
            project.travel_seconds(sent, place, replace(net, all_reduce=kind), placed)
            for sent in project.list_gradients(placed, task)
        )
        rows.append((kind, seconds, 9 * seconds))
    return rows


def table(points: Sequence[Point]) -> list[str]:
    """The points as a Markdown table."""
    head = ["| row | what | devices | published ms | predicted ms | error | |", "|---|---|---|---|---|---|---|"]
    return head + [
        f"| {point.row} | {point.what} | {f'{point.devices:,}' if point.devices else '?'} | "
        f"{1000 * point.published:.0f} | {1000 * point.predicted:.0f} | {100 * point.error:+.1f} % | "
        f"{'fitted' if point.fitted else ''} |"
        for point in points
    ]


def errors(points: Sequence[Point]) -> str:
    """The largest and the mean error of the predicted points, in words."""
    sizes = [abs(point.error) for point in points if not point.fitted]
    return f"{100 * max(sizes):.1f} % at most, {100 * sum(sizes) / len(sizes):.1f} % on average, of {len(sizes)} points"


def report() -> str:
    """The whole study as Markdown."""
    fitted, splits, ablation_fit = device(), (4, 8, 16, 32), extra()
    text = [
        "### SP-NGD, figure 5",
        "",
        f"Fitted to at most {FITTED} devices: a step without inverses {1000 * fitted.step:.0f} ms, a further backward "
        f"pass {1000 * fitted.sampled:.0f} ms, each block {1000 * fitted.block:.2f} ms, 10¹² multiplications "
        f"{1e15 * fitted.cube:.0f} ms.",
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
        f"Fitted to A8-05 and A8-08: all inverses on one device {1000 * ablation_fit.inverses:.0f} ms, and "
        f"{ablation_fit.contention:.2f} seconds lost for each second in which a device computes and sends at the same "
        "time.",
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
