"""A plan: what each stage holds and takes, as data, as a table, as JSON and as a picture."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from suite.comm.partition.orders import Schedule
from suite.comm.partition.placement import Grid
from suite.comm.partition.timeline import StageTimes
from suite.contract import UserError


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
        receive: seconds that the values of one micro-batch travel.
        receive_back: seconds that their gradients travel from the next stage.
        all_reduce: seconds in which its replicas average their gradients, once in a step.
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
    receive: float = 0.0
    receive_back: float = 0.0
    all_reduce: float = 0.0

    @property
    def layers(self) -> str:
        """Its first and its last layer."""
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


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
        limit: bytes of a device that a stage may use; 0 if unknown.
        divided: whether the replicas of a stage divide each micro-batch, as RaNNC's do, instead of taking turns.
            Then `forward`, `backward`, `received` and `returned` of a stage are those of one device's share.
    """

    stages: tuple[Stage, ...]
    pipelines: int
    micro_batches: int
    samples: int
    schedule: Schedule
    seconds: float
    busy: tuple[float, ...]
    bubble: float
    limit: int = 0
    divided: bool = False

    @property
    def devices(self) -> int:
        """Number of devices of all pipelines."""
        return self.pipelines * sum(stage.replicas for stage in self.stages)

    @property
    def grid(self) -> Grid:
        """Ranks of all pipelines.

        Raises:
            UserError: if the replicas of a stage divide each micro-batch.
        """
        if self.divided:
            raise UserError("rannc_compat: a plan by RaNNC's rules can be read but not trained; leave out rannc_compat")
        replicas = tuple(stage.replicas for stage in self.stages)
        return Grid(replicas, self.pipelines, self.micro_batches, self.schedule)

    @property
    def times(self) -> tuple[StageTimes, ...]:
        """Times of each stage, for `timeline.simulate_step`."""
        return tuple(
            StageTimes(
                forward=stage.forward,
                backward=stage.backward,
                receive=stage.receive,
                receive_back=stage.receive_back,
                all_reduce=stage.all_reduce,
                replicas=1 if self.divided else stage.replicas,
            )
            for stage in self.stages
        )

    @property
    def throughput(self) -> float:
        """Samples a second."""
        return self.pipelines * self.micro_batches * self.samples / self.seconds

    @property
    def balance(self) -> float:
        """Time of the slowest stage over the mean of all stages; 1 is perfect."""
        return max(self.busy) * len(self.busy) / sum(self.busy)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Plan":
        """Read a plan from a dictionary.

        Args:
            content: what `dataclasses.asdict` returns for a plan.
        """
        stages = tuple(
            Stage(**{**stage, "nodes": tuple(stage["nodes"]), "receives": tuple(stage["receives"])})
            for stage in content["stages"]
        )
        names = {field.name for field in dataclasses.fields(cls)}
        known = {name: value for name, value in content.items() if name in names}
        return cls(**{**known, "stages": stages, "busy": tuple(content["busy"])})

    def __str__(self) -> str:
        """Plan as a table."""
        head = ["stage", "layers", "devices", "parameters", "memory", "forward", "backward", "busy", "receives"]
        rows = [head]
        for number, (stage, busy) in enumerate(zip(self.stages, self.busy, strict=True)):
            rows.append(
                [
                    f"{number}",
                    stage.layers,
                    f"{stage.replicas * self.pipelines}",
                    f"{format_size(stage.parameters)}",
                    f"{format_size(stage.memory)}{' (recomputes)' if stage.recompute else ''}",
                    f"{1e3 * stage.forward:.3g} ms",
                    f"{1e3 * stage.backward:.3g} ms",
                    f"{busy / self.seconds:.0%}",
                    format_size(stage.received) if number else "-",
                ]
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        pipelines = f"{self.pipelines} pipeline{'s' if self.pipelines > 1 else ''}"
        lines.append(
            f"{self.devices} devices: {pipelines} of {len(self.stages)} stages, {self.micro_batches} micro-batches of "
            f"{self.samples} sample{'s' if self.samples > 1 else ''} each, schedule {self.schedule}"
        )
        lines.append(
            f"predicted: step {format_duration(self.seconds)}, {self.throughput:.4g} samples/s, "
            f"bubble {self.bubble:.0%}, "
            f"slowest stage {self.balance:.2f} of the mean"
        )
        if self.divided:
            lines.append("by RaNNC's rules: the devices of a stage divide each micro-batch; such a plan is not trained")
        return "\n".join(lines)


def list_readers(stages: Iterable[Iterable[str]]) -> dict[str, list[int]]:
    """List the stages that read each parameter, in order; the first of them owns it.

    Args:
        stages: names of the trainable parameters that each stage reads.
    """
    numbers: dict[str, list[int]] = {}
    for number, names in enumerate(stages):
        for name in names:
            numbers.setdefault(name, []).append(number)
    return numbers


def format_duration(seconds: float) -> str:
    """A time in words, with four digits."""
    return f"{seconds:.4g} s" if seconds >= 9.9995 else f"{1e3 * seconds:.4g} ms"


def format_size(nbytes: float) -> str:
    """Bytes in words, with three digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1000 or unit == "GiB":
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    raise AssertionError
