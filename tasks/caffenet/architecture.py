"""CaffeNet as a list of layers: one description from which shapes, layers and both models are made.

Sizes, starting values and order are those of BVLC's reference model (BVLC/caffe@9b89154,
models/bvlc_reference_caffenet/train_val.prototxt): AlexNet (Krizhevsky et al. 2012) with pooling before the local
response normalisation.
"""

from dataclasses import dataclass

from suite.contract import Layer, Spec, UserError

POOL, POOL_STRIDE = 3, 2
NORM_SIZE, NORM_ALPHA, NORM_BETA = 5, 1e-4, 0.75  # Caffe and torch both divide alpha by the window's size
DROPOUT = 0.5


@dataclass(frozen=True)
class Convolution:
    """A convolution with bias and ReLU, and the layers that follow it."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    groups: int
    bias: float  # initial value of the biases
    pool: bool
    norm: bool


@dataclass(frozen=True)
class Architecture:
    """Network's sizes.

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
    group: int = 1  # without batch normalisation, samples need not be on one device

    def __post_init__(self) -> None:
        side = self.size
        for conv in self.convolutions:
            side = _count_bytes_after(conv, side, 1)[1]
            if side < 1:
                raise UserError(f"task.image_size={self.size}: nothing is left of so small an image after {conv.name}")

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """Five convolutions, in order."""
        first = self.width
        two, three, five = first * 8 // 3, first * 4, first * 8 // 3  # 96, 256, 384, 384, 256
        return (
            Convolution("conv1", 3, first, 11, 4, 0, 1, 0.0, True, True),
            Convolution("conv2", first, two, 5, 1, 2, 2, 1.0, True, True),
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
            side = compute_pooled_side(side) if conv.pool else side
        features = self.convolutions[-1].outputs * side * side
        return {
            "fc6": (features, self.hidden),
            "fc7": (self.hidden, self.hidden),
            "fc8": (self.hidden, self.classes),
        }

    def count_kept_bytes(self, value: int) -> float:
        """Bytes that an image leaves for the backward pass; see `suite.contract.Keeps`."""
        total, side = 3.0 * self.size**2 * value, self.size
        for conv in self.convolutions:
            kept, side = _count_bytes_after(conv, side, value)
            total += kept
        return total + 2 * self.hidden * (2 * value + 1)  # ReLU, dropout's output and its mask, of fc6 and fc7

    def shapes(self) -> dict[str, Spec]:
        """Every parameter by name; there are no buffers."""
        specs = {}
        for conv in self.convolutions:
            shape = (conv.outputs, conv.inputs // conv.groups, conv.kernel, conv.kernel)
            specs[f"{conv.name}.weight"] = Spec(shape, self._start("0.01"))
            specs[f"{conv.name}.bias"] = Spec((conv.outputs,), self._bias(conv.bias))
        for name, (inputs, outputs) in self.linears.items():
            last = name == "fc8"
            specs[f"{name}.weight"] = Spec((outputs, inputs), self._start("0.01" if last else "0.005"))
            specs[f"{name}.bias"] = Spec((outputs,), self._bias(0.0 if last else 1.0))
        return specs

    def _start(self, deviation: str) -> str:
        return f"normal({deviation})" if self.init == "gaussian" else "fan_in_normal"

    def _bias(self, value: float) -> str:
        return f"constant({value})" if self.init == "gaussian" else "zeros"

    def layers(self) -> dict[str, Layer]:
        """List the layers that a curvature method can precondition: linear ones, and convolutions without groups."""
        layers = {
            conv.name: Layer(
                "conv2d", (f"{conv.name}.weight", f"{conv.name}.bias"), conv.kernel, conv.stride, conv.padding
            )
            for conv in self.convolutions
            if conv.groups == 1
        }
        return layers | {name: Layer("linear", (f"{name}.weight", f"{name}.bias")) for name in self.linears}


def compute_pooled_side(side: int) -> int:
    """Return the side after a 3×3 pool of stride 2 in Caffe, which rounds up: the last window may be incomplete."""
    return -(-(side - POOL) // POOL_STRIDE) + 1


def _count_bytes_after(conv: Convolution, side: int, value: int) -> tuple[float, int]:
    """Bytes that a convolution and the layers after it keep, and the side of their output; `side` is the input's."""
    side = (side + 2 * conv.padding - conv.kernel) // conv.stride + 1
    total, after = value * conv.outputs * side**2, compute_pooled_side(side) if conv.pool else side
    if conv.pool:
        total += (value + 8) * conv.outputs * after**2  # the maxima, and their indices as 64-bit integers
    if conv.norm:  # two values of the normalisation in at least float32
        total += 2 * (value + max(value, 4)) * conv.outputs * after**2
    return float(total), after
