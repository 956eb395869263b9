"""ResNets as lists of blocks: one description from which shapes, layers and both models are made.

He et al. 2016 with the stride in the 3×3 convolution (v1.5). `blocks=(3, 4, 6, 3), width=64` is ResNet-50 with
25,557,032 parameters at 1,000 classes; with `bottleneck=False, small=True` and blocks (2, 2, 2, 2) it is the ResNet-18
that CIFAR-10's papers train, 11,173,962 parameters. Names are torchvision's.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from suite.contract import Layer, Spec


@dataclass(frozen=True)
class Convolution:
    """A convolution without bias, followed by batch normalisation."""

    name: str
    norm: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True)
class Block:
    """1×1, 3×3, 1×1 convolutions, or two of 3×3, and a projection where the shape changes."""

    name: str
    body: tuple[Convolution, ...]
    shortcut: Convolution | None


@dataclass(frozen=True)
class Architecture:
    """Network's sizes.

    Attributes:
        blocks: of each stage.
        width: channels of the stem.
        classes: number of labels.
        group: samples that share batch-normalisation statistics.
        bottleneck: whether blocks are bottlenecks, or two convolutions of 3×3.
        small: a 3×3 stem of stride 1 without pooling, for images of 32 pixels (He et al. 2016, §4.2).
        zero_gamma: the last BatchNorm of each block starts at 0 (Goyal et al. 2017, §5.1).
    """

    blocks: tuple[int, ...]
    width: int
    classes: int
    group: int
    bottleneck: bool = True
    small: bool = False
    zero_gamma: bool = True

    @property
    def stem(self) -> Convolution:
        """A 7×7 convolution of stride 2 that a 3×3 max-pool of stride 2 follows, or the small one."""
        kernel, stride, padding = (3, 1, 1) if self.small else (7, 2, 3)
        return Convolution("conv1", "bn1", 3, self.width, kernel, stride, padding)

    @property
    def expansion(self) -> int:
        """A bottleneck's output is four times its width (He et al. 2016, figure 5)."""
        return 4 if self.bottleneck else 1

    @property
    def features(self) -> int:
        """Number of channels of the classifier's input."""
        return self.width * 2 ** (len(self.blocks) - 1) * self.expansion

    def residuals(self) -> Iterator[Block]:
        """Every block, in order."""
        inputs = self.width
        for stage, count in enumerate(self.blocks):
            width = self.width * 2**stage
            for position in range(count):
                stride = 2 if stage > 0 and position == 0 else 1
                yield self._block(f"layer{stage + 1}.{position}", inputs, width, stride)
                inputs = width * self.expansion

    def _block(self, name: str, inputs: int, width: int, stride: int) -> Block:
        outputs = width * self.expansion
        if self.bottleneck:
            sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        else:
            sizes = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        body = tuple(
            Convolution(f"{name}.conv{place}", f"{name}.bn{place}", into, out, kernel, step, kernel // 2)
            for place, (into, out, kernel, step) in enumerate(sizes, 1)
        )
        names = f"{name}.downsample.0", f"{name}.downsample.1"
        changes = stride != 1 or inputs != outputs
        return Block(name, body, Convolution(*names, inputs, outputs, 1, stride, 0) if changes else None)

    def convolutions(self) -> Iterator[Convolution]:
        """Every convolution, in the order in which torch registers the modules."""
        yield self.stem
        for block in self.residuals():
            yield from block.body
            if block.shortcut:
                yield block.shortcut

    def shapes(self) -> dict[str, Spec]:
        """Every parameter and buffer by name."""
        specs: dict[str, Spec] = {}
        last = {block.body[-1].norm for block in self.residuals()} if self.zero_gamma else set()
        for conv in self.convolutions():
            specs[f"{conv.name}.weight"] = Spec((conv.outputs, conv.inputs, conv.kernel, conv.kernel), "fan_out_normal")
            specs[f"{conv.norm}.weight"] = Spec((conv.outputs,), "zeros" if conv.norm in last else "ones")
            specs[f"{conv.norm}.bias"] = Spec((conv.outputs,), "zeros")
            specs[f"{conv.norm}.running_mean"] = Spec((conv.outputs,), "zeros", kind="buffer")
            specs[f"{conv.norm}.running_var"] = Spec((conv.outputs,), "ones", kind="buffer")
        specs["fc.weight"] = Spec((self.classes, self.features), "normal(0.01)")  # Goyal et al. 2017, §5.1
        specs["fc.bias"] = Spec((self.classes,), "zeros")
        return specs

    def layers(self) -> dict[str, Layer]:
        """Convolutions, batch normalisations and the classifier: 53 + 53 + 1 in ResNet-50."""
        layers: dict[str, Layer] = {}
        for conv in self.convolutions():
            layers[conv.name] = Layer("conv2d", (f"{conv.name}.weight",), conv.kernel, conv.stride, conv.padding)
            layers[conv.norm] = Layer("batchnorm", (f"{conv.norm}.weight", f"{conv.norm}.bias"))
        layers["fc"] = Layer("linear", ("fc.weight", "fc.bias"))
        return layers

    def count_kept_bytes(self, value: int, size: int) -> float:
        """Bytes that an image of `size` pixels a side leaves for the backward pass; see `suite.contract.Keeps`."""
        side = (size + 2 * self.stem.padding - self.stem.kernel) // self.stem.stride + 1
        total, indices = 3 * size**2 + 2 * self.stem.outputs * side**2, 0  # outputs of a convolution and of ReLU
        if not self.small:
            side = (side - 1) // 2 + 1
            indices = self.stem.outputs * side**2  # of the maxima, as 64-bit integers
            total += indices
        for block in self.residuals():
            for conv in (*block.body, *([block.shortcut] if block.shortcut else [])):
                side = side if conv is block.shortcut else (side - 1) // conv.stride + 1
                total += (1 if conv is block.shortcut else 2) * conv.outputs * side**2
        return float(value * total + 8 * indices)
