"""CIFAR-shaped ResNet-18 of the timing tables: width 32, 2.80 M parameters, batch 64 of 3×32×32, random data."""

import numpy as np

from suite.contract import Data, Layer, Spec, Target, divide_total

VERSION, CITATION, SUMMARY = "1", "", "timing only"
WIDTH, CLASSES = 32, 10


def blocks():
    inputs = WIDTH
    for stage in range(4):
        for position in range(2):
            outputs, stride = WIDTH * 2**stage, 2 if stage and not position else 1
            yield f"block{stage}{position}", inputs, outputs, stride
            inputs = outputs


def convolutions():
    yield "stem", 3, WIDTH, 3, 1
    for name, inputs, outputs, stride in blocks():
        yield f"{name}a", inputs, outputs, 3, stride
        yield f"{name}b", outputs, outputs, 3, 1
        if stride != 1:
            yield f"{name}s", inputs, outputs, 1, stride


class Timing:
    """Parts that the two timing tasks share: one fixed random batch, hardly any validation."""

    version, group, data = VERSION, 1, Data("generated", "random", "1", {"train": 10**6, "valid": 8})
    targets = (Target("loss", 0.0, higher_is_better=False),)

    def init(self, seed, name, rows=None):
        spec = self.shapes()[name]
        if spec.initializer != "random":
            return np.full(spec.shape, float(spec.initializer == "ones"), np.float32)[rows or slice(None)]
        draws = np.random.default_rng([seed, *name.encode()]).normal(size=spec.shape) / np.sqrt(np.prod(spec.shape[1:]))
        return draws.astype(np.float32)[rows or slice(None)]

    def batches(self, split):
        return 1

    def carry(self, samples):
        return {}

    def score(self, parts):
        means = [float(np.abs(part["logits"]).mean()) for part in parts]
        return {"loss": divide_total(sum(means), len(means))}


class ResNet18(Timing):
    name, batch_size, eval_batch_size, group = "resnet18", 64, 64, 64

    def shapes(self):
        found = {}
        for name, inputs, outputs, kernel, _ in convolutions():
            found[f"{name}.conv.weight"] = Spec((outputs, inputs, kernel, kernel), "random")
            found |= {f"{name}.norm.weight": Spec((outputs,), "ones"), f"{name}.norm.bias": Spec((outputs,), "zeros")}
            found[f"{name}.norm.running_mean"] = Spec((outputs,), "zeros", "buffer")
            found[f"{name}.norm.running_var"] = Spec((outputs,), "ones", "buffer")
        return found | {"fc.weight": Spec((CLASSES, 8 * WIDTH), "random"), "fc.bias": Spec((CLASSES,), "zeros")}

    def layers(self):
        found = {
            f"{name}.conv": Layer("conv2d", (f"{name}.conv.weight",), kernel, stride, kernel // 2)
            for name, _, _, kernel, stride in convolutions()
        }
        return found | {"fc": Layer("linear", ("fc.weight", "fc.bias"))}

    def batch(self, split, seed, index, rank=0, world=1):
        draws = np.random.default_rng([seed, index % 4])
        batch = {
            "image": draws.normal(size=(64, 3, 32, 32)).astype(np.float32),
            "label": draws.integers(0, CLASSES, 64),
        }
        return batch | {"weight": np.ones(64, np.float32), "index": np.arange(64)}


def make(**_):
    return ResNet18()
