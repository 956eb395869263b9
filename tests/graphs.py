"""Graphs for the planner's tests: chains of layers, and random programs."""

import random

from suite.comm.partition.graph import Graph, Node, Parameter, Value


def chain(seconds: list[float], *, nbytes: int = 0, parameters: int = 0, saved: int = 0) -> Graph:
    """Operations one after another, each with a measured forward time; backward takes as long again."""
    names = [f"v{number}" for number in range(len(seconds))]
    nodes = tuple(
        Node(
            name=f"n{number}",
            operation="layer",
            layer=f"layer.{number}",
            inputs=(names[number - 1] if number else "x",),
            outputs=(names[number],),
            parameters=(f"p{number}",) if parameters else (),
            seconds=(time, time),
            saved=saved,
        )
        for number, time in enumerate(seconds)
    )
    values = {"x": Value(8)} | {name: Value(nbytes, differentiable=True) for name in names}
    weights = {f"p{number}": Parameter(parameters) for number in range(len(seconds) if parameters else 0)}
    return Graph(1, nodes, values, ("x",), (names[-1],), weights)


def program(seed: int, length: int = 12) -> Graph:
    """A random program: values that skip, shared parameters, constants, operations without the samples' axis."""
    draw = random.Random(seed)
    values = {"x": Value(8)}
    parameters = {f"p{number}": Parameter(2 ** (number + 3), draw.random() < 0.7) for number in range(length // 2)}
    nodes: list[Node] = []
    for number in range(length):
        name, kind = f"v{number}", draw.random()
        known = [other for other in values if other != "x"]
        reads = tuple(draw.sample(known, min(len(known), draw.randint(1, 2)))) if number else ("x",)
        if kind < 0.15 and number:
            reads = ()
        batched = any(values[other].batched for other in reads)
        differentiable = bool(reads) and draw.random() < 0.8
        values[name] = Value(draw.randint(1, 64), batched, differentiable)
        used = tuple(draw.sample(sorted(parameters), draw.randint(0, 2)))
        time = draw.random()
        nodes.append(
            Node(
                name, "op", f"layer.{number}", reads, (name,), used, seconds=(time, 2 * time), saved=draw.randint(0, 9)
            )
        )
    return Graph(1, tuple(nodes), values, ("x",), (f"v{length - 1}",), parameters)
