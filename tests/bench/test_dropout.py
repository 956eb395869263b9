"""Dropout, forward and backward, against the frameworks' own: seconds on one thread and peak bytes, in one process."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from .measure import ONCE, check_limit, interleaved, peak_bytes, ratio

pytestmark = pytest.mark.bench
SHAPES = ((8, 16, 64, 64),) if ONCE else ((8, 16, 256, 256), (256, 4096))  # attention's probabilities; a hidden layer
RATE, ROUNDS, BASE, OURS = 0.1, 9, "the framework's", "the suite's"
MOST_TIME, MOST_BYTES = 1.5, 2.0


def in_torch(shape: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    from suite.tasks._nn.torch import dropout

    torch.set_num_threads(1)
    x, index = torch.ones(shape, requires_grad=True), torch.arange(shape[0])
    return {
        BASE: lambda: torch.nn.functional.dropout(x, RATE).sum().backward(),
        OURS: lambda: dropout(x, RATE, key=(1, 2), name="layer", index=index).sum().backward(),
    }


def in_jax(shape: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    import jax
    import jax.numpy as jnp

    from suite.tasks._nn.jax import dropout

    x, index, key, pair = jnp.ones(shape), jnp.arange(shape[0]), jax.random.key(1), jnp.array([1, 2], jnp.uint32)
    own = jax.grad(lambda x: jnp.where(jax.random.bernoulli(key, 1 - RATE, shape), x / (1 - RATE), 0.0).sum())
    ours = jax.grad(lambda x, pair: dropout(x, RATE, key=pair, name="layer", index=index).sum())
    plain, compiled = jax.jit(own), jax.jit(ours)
    return {BASE: lambda: plain(x).block_until_ready(), OURS: lambda: compiled(x, pair).block_until_ready()}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("candidates", [in_torch, in_jax])
def test_dropout(candidates: Callable[..., Any], shape: tuple[int, ...], benchmark: Any, capsys: Any) -> None:
    calls = candidates(shape)
    found = ratio(interleaved(calls, ROUNDS, clock=time.process_time), OURS, BASE)
    benchmark.pedantic(calls[OURS], rounds=1)
    memory = peak_bytes(calls[OURS]) / peak_bytes(calls[BASE]) if candidates is in_torch else None
    benchmark.extra_info |= {"time": found, "bytes": memory}
    with capsys.disabled():
        print(f"\n{candidates.__name__} {shape}: time {found['median']:.2f}", end=" ")
        print(f"({found['least']:.2f} to {found['most']:.2f})" + (f", bytes {memory:.2f}" if memory else ""))
    check_limit(found["median"] <= MOST_TIME and (memory or 0) <= MOST_BYTES, found)
