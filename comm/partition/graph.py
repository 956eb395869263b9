"""Graph that the planner cuts: operations in program order, the values between them, and their costs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Value:
    """An array that one operation passes to others.

    Attributes:
        nbytes: its size for one micro-batch of the graph's `samples`.
        batched: whether the size grows with the micro-batch.
        differentiable: whether a gradient of the same size is sent back where the value crosses a cut.
    """

    nbytes: int
    batched: bool = True
    differentiable: bool = False


@dataclass(frozen=True)
class Parameter:
    """A parameter, buffer or constant array of the model.

    Attributes:
        nbytes: its size.
        trainable: whether it has a gradient and optimizer state.
    """

    nbytes: int
    trainable: bool = True


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes:
        name: unique in the graph.
        operation: what it computes, in the framework's words.
        layer: path of the module that it belongs to; "" if unknown.
        inputs: names of the values that it reads, without parameters.
        outputs: names of the values that it makes.
        parameters: names of the parameters that it reads.
        flops: floating-point operations of one micro-batch, forward.
        traffic: bytes of values that it reads and writes in one micro-batch, forward; parameters not counted.
        seconds: measured time of one micro-batch, (forward, backward); None if it was not measured.
        saved: bytes kept from forward to backward.
        random: whether it draws random numbers.
        changes: names of the buffers that it changes. All operations that read such a buffer stay in one stage.
    """

    name: str
    operation: str
    layer: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    flops: float = 0.0
    traffic: float = 0.0
    seconds: tuple[float, float] | None = None
    saved: int = 0
    random: bool = False
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """A model's operations in program order.

    Attributes:
        samples: size of the micro-batch that the graph was traced with.
        nodes: operations; each reads values of earlier ones only.
        values: of nodes and inputs, by name.
        inputs: names of the values that the caller gives. Every stage receives them directly; they are never sent.
        outputs: names of the values that the caller gets.
        parameters: by name.

    Raises:
        ValueError: if a node reads a value that no earlier node makes, or an unknown parameter.
    """

    samples: int
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def __post_init__(self):
        known = set(self.inputs)
        for node in self.nodes:
            missing = [name for name in node.inputs if name not in known]
            missing += [name for name in node.parameters if name not in self.parameters]
            if missing:
                raise ValueError(f"{node.name} reads {', '.join(missing)}, which nothing before it makes")
            known |= set(node.outputs)
        if lacking := [name for name in (*known, *self.outputs) if name not in self.values or name not in known]:
            raise ValueError(f"values without a size or an operation: {', '.join(sorted(lacking))}")

    @cached_property
    def maker(self) -> dict[str, int]:
        """Index of the node that makes a value, by the value's name; inputs are not in it."""
        return {name: index for index, node in enumerate(self.nodes) for name in node.outputs}

    @cached_property
    def users(self) -> dict[str, tuple[int, ...]]:
        """Indices of the nodes that read a value, by the value's name."""
        users: dict[str, list[int]] = {name: [] for name in self.values}
        for index, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.inputs):
                users[name].append(index)
        return {name: tuple(indices) for name, indices in users.items()}

    @cached_property
    def constants(self) -> frozenset[int]:
        """Indices of nodes that every stage may compute for itself.

        Their result is the same for every micro-batch and has no gradient. They draw no random numbers and change no
        buffer.
        """
        constants: set[int] = set()
        for index, node in enumerate(self.nodes):
            from_constants = all(self.maker.get(name, -1) in constants for name in node.inputs)
            differentiable = any(self.values[name].differentiable for name in node.outputs)
            if from_constants and not (node.random or node.changes or differentiable):
                constants.add(index)
        return frozenset(constants)

    def with_constants(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Indices of some nodes and of all constant nodes that they need, in program order."""
        waiting = list(nodes)
        whole = set(waiting)
        while waiting:
            makers = {self.maker.get(name, -1) for name in self.nodes[waiting.pop()].inputs}
            added = (makers & self.constants) - whole
            whole |= added
            waiting += added
        return tuple(sorted(whole))

    def with_results(self, nodes: Iterable[int], sends: Iterable[str]) -> tuple[int, ...]:
        """Indices of a stage's nodes and of the constant nodes that make what it sends, in program order."""
        makers = {self.maker.get(name, -1) for name in sends}
        return self.with_constants({*nodes, *(makers & self.constants)})
