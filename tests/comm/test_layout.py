"""Layouts lose nothing: triangles of symmetric matrices, and rows in the order of their owners."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from suite.comm.layout import list_slots, locate_parts
from suite.comm.reduce import jax as in_jax
from suite.comm.reduce import torch as in_torch

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("n", [1, 2, 3, 17, 64, 501])
def test_triangles_hold_the_whole_matrix(n: int) -> None:
    stack = np.random.default_rng(n).normal(size=(2, n, n))
    stack = stack + stack.swapaxes(1, 2)
    ours = in_torch.pack_triangles(torch.from_numpy(stack))
    assert ours.shape == (2, n * (n + 1) // 2)
    assert ours[0, : min(3, n * (n + 1) // 2)].tolist() == [
        stack[0, i, j] for i, j in [(0, 0), (1, 0), (1, 1)][: 3 if n > 1 else 1]
    ]
    assert np.array_equal(in_torch.unpack_triangles(ours).numpy(), stack)
    with jax.enable_x64(True):
        theirs = in_jax.pack_triangles(jnp.asarray(stack))
        assert np.array_equal(np.asarray(theirs), ours.numpy())
        assert np.array_equal(np.asarray(in_jax.unpack_triangles(theirs)), stack)


def test_every_owner_has_equally_many_slots() -> None:
    owners = (2, 0, 0, 2, 2)
    assert list_slots(owners, 3) == (1, 2, -1, -1, -1, -1, 0, 3, 4)
    assert [list_slots(owners, 3)[place] for place in locate_parts(owners, 3)] == [0, 1, 2, 3, 4]
