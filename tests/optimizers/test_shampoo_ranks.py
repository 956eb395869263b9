"""Shampoo's roots, shared out among ranks."""

from typing import Any

import engines
import jax
import numpy as np
import pytest
import torch
from shampoos import HYPER, Jax, Torch, held
from twins import draw


class Rank:
    """One of two ranks that never meet: what it would send is kept."""

    world = 2

    def __init__(self, rank: int):
        self.rank, self.sent = rank, {}

    def mine(self, stack: torch.Tensor, owners: tuple[int, ...]) -> torch.Tensor:
        assert owners == (0, 0, 1)
        return torch.cat([stack, torch.zeros_like(stack[:1])]).chunk(2)[self.rank]

    def gather(self, name: str, slices: torch.Tensor, owners: tuple[int, ...], *, symmetric: bool) -> torch.Tensor:
        self.sent[name] = slices
        return torch.cat([slices, slices])[: len(owners)]


def test_each_rank_takes_the_roots_of_its_slice() -> None:
    """Three blocks on two ranks: two each, the fourth is padding and counts neither as root nor as failure."""
    shapes = {"w": (9, 2)}
    alone = Torch(draw(shapes, 0), **HYPER)
    pair = [Torch(draw(shapes, 0), world=2, **HYPER) for _ in range(2)]
    ranks = [Rank(0), Rank(1)]
    for made in (alone, *pair):
        made.update(draw(shapes, 1))
    for stack in alone.plan.counts:
        alone.refresh(stack)
        for made, rank in zip(pair, ranks, strict=True):
            made.refresh(stack, rank)
        slices = [rank.sent[f"root/{stack}"] for rank in ranks]
        assert [len(slice) for slice in slices] == [2, 2]
        assert np.array_equal(torch.cat(slices)[:3].numpy(), held(alone, stack))
        assert not slices[1][1].isfinite().any()
    assert int(pair[0].state["kept"]) == 0 and held(pair[0], "3/4").shape == (3, 3, 3)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_two_jax_devices_take_the_roots_together(kind: str) -> None:
    """Of a size at which callbacks and batched eigenvalue calls hang; each root is taken once, as on one device."""
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    from suite.comm.reduce.jax import Reduce
    from suite.comm.transport.jax import AXIS, Transport

    if len(jax.devices()) < 2:
        pytest.skip("one jax device: jax was imported before the tests could ask for two")
    values = {"w": (384, 100)}
    made = Jax(draw(values, 0), kind, world=2)
    made.update(draw(values, 1))
    state, channels = made.state, engines.channels("jax")
    with jax.enable_x64(kind == "float64"):

        def body(state: Any, stack: str) -> Any:
            transport = Transport(2)
            after = made.optimizer.program(stack, state, reduce=Reduce(transport, channels, state={}, key=(0, 0)))
            [sent] = transport.entries
            size = made.plan.size(stack)  # triangles of two roots of the padded four
            assert sent.payload == 2 * (size * (size + 1) // 2) * state["root"][stack].dtype.itemsize
            return after

        mesh = Mesh(np.array(jax.devices()[:2])[None], AXIS)
        for stack in made.plan.counts:
            mapped = jax.shard_map(
                lambda s, k=stack: body(s, k), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
            )
            together = np.asarray(jax.jit(mapped)(state)["root"][stack])
            made.refresh(stack)
            assert held(made, stack).shape[0] == 3
            assert np.allclose(together, held(made, stack), rtol=1e-5 if kind == "float32" else 1e-12, atol=1e-13)
