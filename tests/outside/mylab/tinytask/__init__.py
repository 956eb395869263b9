"""Noise images and tokens whose class is written in both: a convolution, a BatchNorm, an embedding, a linear layer,
and a carry."""

import numpy as np

from suite.contract import Data, Layer, Spec, Target, divide_total

VERSION, CITATION, SUMMARY = "1", "", "a tiny task outside the tree"
CLASSES, SIZE, WORDS = 4, 6, 7


class Tiny:
    name, version, group = "tiny", VERSION, 4
    data = Data("generated", "tiny", "1", {"train": 10**6, "valid": 22}, note="a test")

    def __init__(self, batch_size=16, targets=(60, 80), placement="replicated", eval_batch_size=8):
        self.batch_size, self.targets = batch_size, tuple(Target("top1", t) for t in targets)
        self.placement, self.eval_batch_size = placement, eval_batch_size

    def shapes(self):
        spec = {"conv.weight": Spec((4, 1, 3, 3), "random"), "norm.weight": Spec((4,), "ones")}
        spec |= {"norm.bias": Spec((4,), "zeros"), "norm.running_mean": Spec((4,), "zeros", "buffer")}
        spec |= {"norm.running_var": Spec((4,), "ones", "buffer")}
        spec["embed.weight"] = Spec((WORDS, 4), "random", placement=self.placement)
        return spec | {"fc.weight": Spec((CLASSES, 4), "random"), "fc.bias": Spec((CLASSES,), "zeros")}

    def layers(self):
        found = {"conv": Layer("conv2d", ("conv.weight",), kernel=3, stride=2, padding=1)}
        found["norm"] = Layer("batchnorm", ("norm.weight", "norm.bias"))
        return found | {"embed": Layer("embedding", ("embed.weight",)), "fc": Layer("linear", ("fc.weight", "fc.bias"))}

    def init(self, seed, name, rows=None):
        spec = self.shapes()[name]
        made = np.random.default_rng([seed, *name.encode()]).normal(size=spec.shape) * 0.5
        value = made if spec.initializer == "random" else np.full(spec.shape, float(spec.initializer == "ones"))
        return value.astype(np.float32)[rows or slice(None)]

    def batch(self, split, seed, index, rank=0, world=1):
        size = self.batch_size if split == "train" else self.eval_batch_size
        first = index + 1000 * seed if split == "train" else index  # each seed has samples of its own
        numbers = first * size + np.arange(size)
        share = slice(rank * size // world, (rank + 1) * size // world)
        return {name: value[share] for name, value in self.make(split, numbers).items()}

    def make(self, split, numbers):
        label = (numbers * 7 + (split == "train")) % CLASSES
        draws = np.stack([np.random.default_rng([n, split == "train"]).normal(size=(1, SIZE, SIZE)) for n in numbers])
        draws[:, 0, 0, :] += label[:, None]
        token = np.stack([label, (numbers + 1) % WORDS, numbers % 3], 1).astype(np.int32)
        weight = np.where(numbers % 5 == 0, 0.5, 1.0) * (numbers < 22 if split == "valid" else 1)
        batch = {"image": draws.astype(np.float32), "token": token, "label": label.astype(np.int32)}
        return batch | {"weight": weight.astype(np.float32), "index": numbers.astype(np.int64)}

    def batches(self, split):
        return 3

    def carry(self, samples):
        return {"memory": np.zeros((samples, 4), np.float32)}

    def score(self, parts):
        right = total = 0.0
        for part in parts:
            wrong = ~np.isfinite(part["logits"]).all(1) & (part["weight"] > 0)
            right += float(part["weight"] @ np.where(wrong, np.nan, part["logits"].argmax(1) == part["label"]))
            total += float(part["weight"].sum())
        return {"top1": divide_total(right, total, 100.0)}


def make(*, variant="", data="", **options):
    return Tiny(**options)
