"""Does block sparsity save work? The matrices of a BERT-Base layer at 0.9, forward and backward, against dense ones.

One core. Each kind stands by itself: random and balanced patterns, every block size, both backends. The limits are for
blocks of 16; smaller ones are printed, and multiplied as `execution=auto` would.
"""

import itertools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from suite import load
from suite.tasks._sparse import Sparsity

from .measure import check_limit, interleaved

pytestmark = pytest.mark.bench
TOKENS = 2048  # 16 sequences of 128
SHAPES = {(768, 768): 4, (3072, 768): 1, (768, 3072): 1}  # of one layer: query, key, value, out; up; down
LIMITS = {"random": 1.5, "balanced": 3.0}  # times as fast as dense, blocks of 16
ROUNDS = 9


def torch_products(shape: tuple[int, int], weight: Any, pattern: Any, execution: str) -> dict[str, Callable[[], Any]]:
    import torch
    from torch.nn import functional

    from suite.tasks._sparse.torch import BlockLinear

    torch.set_num_threads(1)
    x = torch.randn(TOKENS, shape[1], requires_grad=True)
    slope = torch.randn(TOKENS, shape[0])
    full, bias = torch.randn(shape, requires_grad=True), torch.zeros(shape[0], requires_grad=True)
    form = {"count": len(pattern), "block": weight.shape[1], "explores": False, "execution": execution}
    sparse = BlockLinear(shape, **form)
    sparse.load_state_dict({"weight": torch.from_numpy(weight), "bias": bias, "pattern": torch.from_numpy(pattern)})

    def both(forward: Callable[[Any], Any], leaves: list[Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(forward(x), leaves, slope)

    return {
        "dense": both(lambda x: functional.linear(x, full, bias), [x, full, bias]),
        "sparse": both(sparse, [x, *sparse.parameters()]),
    }


def jax_products(shape: tuple[int, int], weight: Any, pattern: Any, execution: str) -> dict[str, Callable[[], Any]]:
    import jax
    import jax.numpy as jnp

    from suite.tasks._nn.jax import linear
    from suite.tasks._sparse.jax import linear as block_linear

    draws = np.random.default_rng(0)
    normal = lambda *size: jnp.asarray(draws.normal(size=size), jnp.float32)  # noqa: E731
    x, slope, bias = normal(TOKENS, shape[1]), normal(TOKENS, shape[0]), jnp.zeros(shape[0])
    plain = lambda name, x, y: y  # noqa: E731

    def both(forward: Any, params: Any) -> Callable[[], Any]:
        compiled = jax.jit(lambda params, x, slope: jax.vjp(forward, params, x)[1](slope))
        return lambda: jax.block_until_ready(compiled(params, x, slope))

    def blocks(params: Any, x: Any) -> Any:
        places = {"w.pattern": jnp.asarray(pattern)}
        return block_linear(params, places, "w", x, plain, shape=shape, execution=execution)

    return {
        "dense": both(lambda p, x: linear(p, "w", x, plain), {"w.weight": normal(*shape), "w.bias": bias}),
        "sparse": both(blocks, {"w.weight": jnp.asarray(weight), "w.bias": bias}),
    }


PRODUCTS = {"torch": torch_products, "jax": jax_products}


@pytest.mark.parametrize("pattern", ["random", "balanced"])
@pytest.mark.parametrize("block", [16, 8, 4, 1])
@pytest.mark.parametrize("backend", load.BACKENDS)
def test_a_layer_against_dense(backend: str, block: int, pattern: str, benchmark: Any, capsys: Any) -> None:
    given = {"growth": "random", "ratio": 0.5, "intervals": 160, "steps": 500, "scale_rate": True}
    form = Sparsity("static", 0.9, block, pattern, execution="auto", **given)
    layer: dict[str, list[list[float]]] = {"dense": [], "sparse": []}
    for shape, times in SHAPES.items():
        at = form.start(0, "w", shape)
        weight = np.random.default_rng(0).normal(size=(len(at), block, block)).astype(np.float32)
        candidates = PRODUCTS[backend](shape, weight, at, "auto")
        for name, values in interleaved(candidates, ROUNDS).items():
            layer[name].append([times * value for value in values])
    benchmark.pedantic(candidates["sparse"], rounds=1)
    seconds = {name: [sum(each) for each in zip(*values, strict=True)] for name, values in layer.items()}
    ratios = sorted(a / b for a, b in zip(seconds["dense"], seconds["sparse"], strict=True))
    found = statistics.median(ratios)
    benchmark.extra_info |= {"times_as_fast": found, "seconds": seconds}
    with capsys.disabled():
        dense, sparse = (1e3 * statistics.median(seconds[name]) for name in ("dense", "sparse"))
        print(
            f"\n{backend} · block {block} · {pattern} · dense {dense:.0f} ms, sparse {sparse:.0f} ms: "
            f"{found:.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
    if block == 16:
        check_limit(found >= LIMITS[pattern])


@pytest.mark.parametrize("backend", load.BACKENDS)
def test_moving_blocks_costs_little(backend: str, capsys: Any) -> None:
    """Deciding where the blocks of a layer stand next, in NumPy, against one forward and backward pass of it."""
    import time

    for block, pattern in itertools.product((16, 4), ["random", "balanced"]):
        given = {"growth": "random", "ratio": 0.5, "intervals": 160, "steps": 500, "scale_rate": True}
        form, spent, passes = Sparsity("dynamic", 0.9, block, pattern, execution="auto", **given), 0.0, 0.0
        for shape, times in SHAPES.items():
            at = form.start(0, "w", shape)
            weight = np.random.default_rng(0).normal(size=(len(at), block, block)).astype(np.float32)
            call = PRODUCTS[backend](shape, weight, at, "auto")["sparse"]
            passes += times * statistics.median(interleaved({"pass": call}, 5)["pass"])
            began = time.perf_counter()
            form.move(0, 1, "w", shape, weight, at)
            spent += times * (time.perf_counter() - began)
        with capsys.disabled():
            print(f"\n{backend} · block {block} · {pattern} · a move costs {spent / passes:.2f} passes")
        check_limit(spent < 2 * passes)  # 160 times in a run of thousands of steps
