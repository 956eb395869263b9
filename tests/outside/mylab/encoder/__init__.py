"""Small encoder of the timing tables: d 256, 4 layers, FFN 1024, sequence 128, batch 16, 512 words, random data."""

import numpy as np

from mylab.resnet18 import Timing
from suite.contract import Layer, Spec

VERSION, CITATION, SUMMARY = "1", "", "timing only"
WIDTH, DEPTH, HIDDEN, LENGTH, WORDS, HEADS = 256, 4, 1024, 128, 512, 4
LINEAR = {"query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH), "out": (WIDTH, WIDTH)}
LINEAR |= {"up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}


class Encoder(Timing):
    name, batch_size, eval_batch_size = "encoder", 16, 16

    def shapes(self):
        found = {"words.weight": Spec((WORDS, WIDTH), "random"), "places.weight": Spec((LENGTH, WIDTH), "random")}
        for layer in range(DEPTH):
            for name, shape in LINEAR.items():
                found[f"layer{layer}.{name}.weight"] = Spec(shape, "random")
                found[f"layer{layer}.{name}.bias"] = Spec(shape[:1], "zeros")
            for norm in ("norm1", "norm2"):
                found[f"layer{layer}.{norm}.weight"] = Spec((WIDTH,), "ones")
                found[f"layer{layer}.{norm}.bias"] = Spec((WIDTH,), "zeros")
        return found | {"head.weight": Spec((WORDS, WIDTH), "random"), "head.bias": Spec((WORDS,), "zeros")}

    def layers(self):
        names = [f"layer{layer}.{name}" for layer in range(DEPTH) for name in LINEAR] + ["head"]
        return {name: Layer("linear", (f"{name}.weight", f"{name}.bias")) for name in names}

    def batch(self, split, seed, index, rank=0, world=1):
        tokens = np.random.default_rng([seed, index % 4]).integers(0, WORDS, (16, LENGTH))
        return {"tokens": tokens, "weight": np.ones(16, np.float32), "index": np.arange(16)}


def make(**_):
    return Encoder()
