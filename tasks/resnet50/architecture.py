"""ResNet v1.5 as a list of blocks: one description from which shapes, layers and both models are made.

He et al. 2016 with the stride in the 3×3 convolution (v1.5). `blocks=(3, 4, 6, 3), width=64` is ResNet-50 with
25,557,032 parameters at 1,000 classes; the laptop network is `(1, 1, 1, 1)` at width 16. Names are torchvision's.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from suite.contract import Layer, Spec

EXPANSION = 4  # a bottleneck's output is four times its width (He et al. 2016, figure 5)


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
    """A bottleneck: 1×1, 3×3, 1×1, and a projection where the shape changes."""

    name: str
    body: tuple[Convolution, Convolution, Convolution]
    shortcut: Convolution | None


@dataclass(frozen=True)
class Architecture:
    """The network's sizes; `group` is the number of samples that share batch-normalisation statistics."""

    blocks: tuple[int, ...]
    width: int
    classes: int
    group: int
    zero_gamma: bool = True  # last BatchNorm of each block starts at 0 (Goyal et al. 2017, §5.1)

    @property
    def stem(self) -> Convolution:
        """The 7×7 convolution of stride 2 that a 3×3 max-pool of stride 2 follows."""
        return Convolution("conv1", "bn1", 3, self.width, 7, 2, 3)

    @property
    def features(self) -> int:
        """Channels that reach the classifier."""
        return self.width * 2 ** (len(self.blocks) - 1) * EXPANSION

    def bottlenecks(self) -> Iterator[Block]:
        """Every block, in order."""
        inputs = self.width
        for stage, count in enumerate(self.blocks):
            width = self.width * 2**stage
            for position in range(count):
                name = f"layer{stage + 1}.{position}"
                stride = 2 if stage > 0 and position == 0 else 1
                outputs = width * EXPANSION
                body = (
                    Convolution(f"{name}.conv1", f"{name}.bn1", inputs, width, 1, 1, 0),
                    Convolution(f"{name}.conv2", f"{name}.bn2", width, width, 3, stride, 1),
                    Convolution(f"{name}.conv3", f"{name}.bn3", width, outputs, 1, 1, 0),
                )
                names = f"{name}.downsample.0", f"{name}.downsample.1"
                changes = stride != 1 or inputs != outputs
                yield Block(name, body, Convolution(*names, inputs, outputs, 1, stride, 0) if changes else None)
                inputs = outputs

    def convolutions(self) -> Iterator[Convolution]:
        """Every convolution, in the order in which torch registers the modules."""
        yield self.stem
        for block in self.bottlenecks():
            yield from block.body
            if block.shortcut:
                yield block.shortcut

    def shapes(self) -> dict[str, Spec]:
        """Every parameter and buffer by name."""
        found: dict[str, Spec] = {}
        last = {block.body[2].norm for block in self.bottlenecks()} if self.zero_gamma else set()
        for conv in self.convolutions():
            found[f"{conv.name}.weight"] = Spec((conv.outputs, conv.inputs, conv.kernel, conv.kernel), "fan_out_normal")
            found[f"{conv.norm}.weight"] = Spec((conv.outputs,), "zeros" if conv.norm in last else "ones")
            found[f"{conv.norm}.bias"] = Spec((conv.outputs,), "zeros")
            found[f"{conv.norm}.running_mean"] = Spec((conv.outputs,), "zeros", kind="buffer")
            found[f"{conv.norm}.running_var"] = Spec((conv.outputs,), "ones", kind="buffer")
        found["fc.weight"] = Spec((self.classes, self.features), "normal(0.01)")  # Goyal et al. 2017, §5.1
        found["fc.bias"] = Spec((self.classes,), "zeros")
        return found

    def layers(self) -> dict[str, Layer]:
        """Convolutions, batch normalisations and the classifier: 53 + 53 + 1 in ResNet-50."""
        found: dict[str, Layer] = {}
        for conv in self.convolutions():
            found[conv.name] = Layer("conv2d", (f"{conv.name}.weight",), conv.kernel, conv.stride, conv.padding)
            found[conv.norm] = Layer("batchnorm", (f"{conv.norm}.weight", f"{conv.norm}.bias"))
        found["fc"] = Layer("linear", ("fc.weight", "fc.bias"))
        return found
