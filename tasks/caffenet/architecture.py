"""CaffeNet as a list of layers: one description from which shapes, layers and both models are made.

Sizes, starting values and order are those of BVLC's reference model (BVLC/caffe@9b89154,
models/bvlc_reference_caffenet/train_val.prototxt): AlexNet (Krizhevsky et al. 2012) with pooling before the local
response normalisation.
"""

from dataclasses import dataclass

from suite.contract import Layer, Spec

POOL, POOL_STRIDE = 3, 2
NORM_SIZE, NORM_ALPHA, NORM_BETA = 5, 1e-4, 0.75  # Caffe and torch both divide alpha by the window's size
DROPOUT = 0.5


@dataclass(frozen=True)
class Convolution:
    """A convolution with bias and ReLU, and what follows it."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    groups: int
    bias: float  # where the biases start
    pool: bool
    norm: bool


@dataclass(frozen=True)
class Architecture:
    """The network's sizes.

    Attributes:
        width: of the first convolution; 96 in CaffeNet, and the others in proportion.
        hidden: width of fc6 and fc7; 4096 in CaffeNet.
        classes: number of labels.
        size: height and width of the images; 227 in CaffeNet.
        init: `gaussian`, CaffeNet's own deviations of 0.01 and 0.005, or `fan_in` (He et al. 2015) with biases 0: a
            narrow network hardly passes a signal at CaffeNet's.
    """

    width: int
    hidden: int
    classes: int
    size: int
    init: str = "gaussian"
    group: int = 1  # no batch normalisation: any sample may lie anywhere

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """The five convolutions, in order."""
        one = self.width
        two, three, five = one * 8 // 3, one * 4, one * 8 // 3  # 96, 256, 384, 384, 256
        return (
            Convolution("conv1", 3, one, 11, 4, 0, 1, 0.0, True, True),
            Convolution("conv2", one, two, 5, 1, 2, 2, 1.0, True, True),
            Convolution("conv3", two, three, 3, 1, 1, 1, 0.0, False, False),
            Convolution("conv4", three, three, 3, 1, 1, 2, 1.0, False, False),
            Convolution("conv5", three, five, 3, 1, 1, 2, 1.0, True, False),
        )

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the three linear layers."""
        side = self.size
        for conv in self.convolutions:
            side = (side + 2 * conv.padding - conv.kernel) // conv.stride + 1
            side = pooled(side) if conv.pool else side
        features = self.convolutions[-1].outputs * side * side
        return {
            "fc6": (features, self.hidden),
            "fc7": (self.hidden, self.hidden),
            "fc8": (self.hidden, self.classes),
        }

    def shapes(self) -> dict[str, Spec]:
        """Every parameter by name; there are no buffers."""
        found = {}
        for conv in self.convolutions:
            shape = (conv.outputs, conv.inputs // conv.groups, conv.kernel, conv.kernel)
            found[f"{conv.name}.weight"] = Spec(shape, self._start("0.01"))
            found[f"{conv.name}.bias"] = Spec((conv.outputs,), self._bias(conv.bias))
        for name, (inputs, outputs) in self.linears.items():
            last = name == "fc8"
            found[f"{name}.weight"] = Spec((outputs, inputs), self._start("0.01" if last else "0.005"))
            found[f"{name}.bias"] = Spec((outputs,), self._bias(0.0 if last else 1.0))
        return found

    def _start(self, deviation: str) -> str:
        return f"normal({deviation})" if self.init == "gaussian" else "fan_in_normal"

    def _bias(self, value: float) -> str:
        return f"constant({value})" if self.init == "gaussian" else "zeros"

    def layers(self) -> dict[str, Layer]:
        """What a curvature method can treat: convolutions without groups, and the linear layers."""
        found = {
            conv.name: Layer(
                "conv2d", (f"{conv.name}.weight", f"{conv.name}.bias"), conv.kernel, conv.stride, conv.padding
            )
            for conv in self.convolutions
            if conv.groups == 1
        }
        return found | {name: Layer("linear", (f"{name}.weight", f"{name}.bias")) for name in self.linears}


def pooled(side: int) -> int:
    """The side after a 3×3 pool of stride 2 in Caffe's way, which rounds up: the last window may lack a part."""
    return -(-(side - POOL) // POOL_STRIDE) + 1
