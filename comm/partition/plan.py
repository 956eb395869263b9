"""A plan: what each stage holds and takes, as data, as a table, and as JSON."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from suite.comm.partition.costs import spans
from suite.comm.partition.graph import Graph
from suite.comm.partition.orders import Schedule, in_flight
from suite.comm.partition.placement import Grid
from suite.comm.partition.stages import Cut, Problem
from suite.comm.partition.timeline import StageTimes, Timeline, simulate


@dataclass(frozen=True)
class Stage:
    """One stage of a plan.

    Attributes:
        nodes: indices of its operations in the graph, in program order, with the constant ones that it computes.
        first: path of its first layer.
        last: path of its last layer.
        replicas: devices of one pipeline that share its micro-batches.
        recompute: whether it computes its activations again before each backward pass.
        parameters: bytes of its parameters and buffers.
        memory: bytes on each of its devices.
        forward: seconds of one micro-batch.
        backward: seconds of one micro-batch, with recomputation.
        receives: names of the values that it receives from the previous stage, in order.
        received: bytes of these values for one micro-batch.
        returned: bytes of the gradients that it receives from the next stage for one micro-batch.
    """

    nodes: tuple[int, ...]
    first: str
    last: str
    replicas: int
    recompute: bool
    parameters: int
    memory: int
    forward: float
    backward: float
    receives: tuple[str, ...]
    received: int
    returned: int


@dataclass(frozen=True)
class Plan:
    """How a model is cut, and what a step is predicted to take.

    Attributes:
        stages: of one pipeline, in order.
        pipelines: equal pipelines that train side by side.
        micro_batches: of each pipeline in one step.
        samples: of one micro-batch.
        schedule: order of passes.
        seconds: predicted, of one step.
        busy: seconds that the devices of each stage compute in a step.
        bubble: share of the step in which an average device does not compute.
    """

    stages: tuple[Stage, ...]
    pipelines: int
    micro_batches: int
    samples: int
    schedule: Schedule
    seconds: float
    busy: tuple[float, ...]
    bubble: float

    @property
    def devices(self) -> int:
        """Number of devices of all pipelines."""
        return self.pipelines * sum(stage.replicas for stage in self.stages)

    @property
    def grid(self) -> Grid:
        """The ranks of all pipelines."""
        replicas = tuple(stage.replicas for stage in self.stages)
        return Grid(replicas, self.pipelines, self.micro_batches, self.schedule)

    @property
    def throughput(self) -> float:
        """Samples a second."""
        return self.pipelines * self.micro_batches * self.samples / self.seconds

    @property
    def balance(self) -> float:
        """Time of the slowest stage over the mean of all stages; 1 is perfect."""
        return max(self.busy) * len(self.busy) / sum(self.busy)

    def to_json(self) -> str:
        """The plan as JSON, with predicted figures."""
        whole = dataclasses.asdict(self)
        whole |= {"devices": self.devices, "throughput": self.throughput, "balance": self.balance}
        return json.dumps(whole, indent=1)

    def __str__(self) -> str:
        """The plan as a table."""
        head = ["stage", "layers", "devices", "parameters", "memory", "forward", "backward", "busy", "receives"]
        rows = [head]
        for number, (stage, busy) in enumerate(zip(self.stages, self.busy, strict=True)):
            layers = stage.first if stage.first == stage.last else f"{stage.first} to {stage.last}"
            rows.append(
                [
                    f"{number}",
                    layers,
                    f"{stage.replicas * self.pipelines}",
                    f"{size(stage.parameters)}",
                    f"{size(stage.memory)}{' (recomputes)' if stage.recompute else ''}",
                    f"{1e3 * stage.forward:.3g} ms",
                    f"{1e3 * stage.backward:.3g} ms",
                    f"{busy / self.seconds:.0%}",
                    size(stage.received) if number else "-",
                ]
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        pipelines = f"{self.pipelines} pipeline{'s' if self.pipelines > 1 else ''}"
        lines.append(
            f"{self.devices} devices: {pipelines} of {len(self.stages)} stages, {self.micro_batches} micro-batches of "
            f"{self.samples} samples each, schedule {self.schedule}"
        )
        lines.append(
            f"predicted: step {1e3 * self.seconds:.4g} ms, {self.throughput:.4g} samples/s, bubble {self.bubble:.0%}, "
            f"slowest stage {self.balance:.2f} of the mean"
        )
        return "\n".join(lines)


def readers(stages: Iterable[Iterable[str]]) -> dict[str, list[int]]:
    """The stages that read each parameter, in order; the first of them owns it.

    Args:
        stages: names of the trainable parameters that each stage reads.
    """
    numbers: dict[str, list[int]] = {}
    for number, names in enumerate(stages):
        for name in names:
            numbers.setdefault(name, []).append(number)
    return numbers


def size(nbytes: float) -> str:
    """Bytes in words, with three digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1000 or unit == "GiB":
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    raise AssertionError


def step(cuts: Sequence[Cut], problem: Problem) -> Timeline:
    """The simulated step of one solution of the dynamic programme."""
    costs = problem.costs
    times = [
        StageTimes(
            forward=float(costs.forward[place]),
            backward=float(costs.backward[place]) + (float(costs.forward[place]) if cut.recompute else 0.0),
            receive=float(problem.send(costs.entering[place])),
            receive_back=float(problem.send(costs.returning[place])),
            all_reduce=float(problem.all_reduce(costs.trainable[place], cut.replicas)),
            replicas=cut.replicas,
        )
        for cut in cuts
        for place in [(cut.first, cut.last)]
    ]
    return simulate(times, problem.schedule, problem.micro_batches)


def describe(
    graph: Graph, blocks: Sequence[tuple[int, ...]], cuts: Sequence[Cut], problem: Problem, batch: int, pipelines: int
) -> Plan:
    """The plan of one solution of the dynamic programme."""
    home = {node: number for number, members in enumerate(blocks) for node in members}
    uses = spans(graph, home, len(blocks))
    stages = []
    for number, cut in enumerate(cuts):
        block = slice(cut.first, cut.last)
        place = cut.first, cut.last
        costs = problem.costs
        held = in_flight(problem.schedule, len(cuts) - number, cut.replicas, problem.micro_batches)
        nodes = graph.with_constants(node for members in blocks[block] for node in members)
        layers = [graph.nodes[node].layer or graph.nodes[node].name for node in nodes]
        forward = float(costs.forward[place])
        backward = float(costs.backward[place]) + (forward if cut.recompute else 0.0)
        stages.append(
            Stage(
                nodes=nodes,
                first=layers[0],
                last=layers[-1],
                replicas=cut.replicas,
                recompute=cut.recompute,
                parameters=int(costs.trainable[place] + costs.fixed[place]),
                memory=int(costs.memory(held, cut.recompute, problem.state)[place]),
                forward=forward,
                backward=backward,
                receives=tuple(name for name, first, last in uses if first < cut.first <= last),
                received=int(costs.entering[place]),
                returned=int(costs.returning[place]),
            )
        )
    timeline = step(cuts, problem)
    return Plan(
        stages=tuple(stages),
        pipelines=pipelines,
        micro_batches=problem.micro_batches,
        samples=batch // (pipelines * problem.micro_batches),
        schedule=problem.schedule,
        seconds=timeline.seconds,
        busy=timeline.busy,
        bubble=timeline.bubble,
    )
