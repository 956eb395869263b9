"""Devices that a plan is for, and the time of an operation on one of them."""

from dataclasses import dataclass

from suite.comm.partition.graph import Graph, Node
from suite.comm.projection.network import Level, Network

LOOPBACK = Level(2.5e-4, 3.0e9, shared=True)  # conf/network/loopback.yaml, measured there
ONE_HOST = Network("loopback", LOOPBACK, LOOPBACK, None, "ring", 9.3e8, "pairs")

BACKWARD = 2.0  # forward passes that a backward pass takes: one product each for the inputs' and the weights' gradients


@dataclass(frozen=True)
class Device:
    """One kind of device, by the roofline model (Williams et al. 2009, doi:10.1145/1498765.1498785).

    Attributes:
        memory: bytes.
        flops: floating-point operations a second.
        bandwidth: bytes a second of the memory.
        overhead: seconds to start one operation.
    """

    memory: float
    flops: float
    bandwidth: float
    overhead: float = 0.0

    def seconds(self, graph: Graph, node: Node, samples: int) -> tuple[float, float]:
        """Time of one operation with a micro-batch of `samples`, (forward, backward) in seconds.

        A measured time is scaled in proportion to the samples.
        """
        scale = samples / graph.samples
        if node.seconds is not None:
            return node.seconds[0] * scale, node.seconds[1] * scale
        weights = sum(graph.parameters[name].nbytes for name in node.parameters)
        busy = max(node.flops * scale / self.flops, (node.traffic * scale + weights) / self.bandwidth)
        differentiable = any(graph.values[name].differentiable for name in node.outputs)
        forward = busy + self.overhead
        return forward, BACKWARD * forward if differentiable else 0.0
