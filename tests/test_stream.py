"""Counter-based stream: equal in NumPy and jax, uniform, independent of how it is asked."""

import numpy as np
import pytest

from suite import stream

pytestmark = pytest.mark.quick

KNOWN = [3638035274, 459934294, 343465184]


def test_numpy_and_jax_draw_the_same_bits() -> None:
    import jax.numpy as jnp

    index = np.array([0, 1, 2, 2**31, 2**32 - 1], np.uint32)
    for key in ((0, 0), (1, 2), (2**32 - 1, 7)):
        ours = stream.bits(np, key, "fc.weight", index)
        theirs = stream.bits(jnp, jnp.asarray(key, jnp.uint32), "fc.weight", jnp.asarray(index))
        assert np.array_equal(ours, np.asarray(theirs))
        theirs = stream.uniform(jnp, jnp.asarray(key, jnp.uint32), "fc.weight", jnp.asarray(index))
        assert np.array_equal(stream.uniform(np, key, "fc.weight", index), np.asarray(theirs))


def test_draws_are_known() -> None:
    """Written down once: a change of the stream would change every run."""
    words = stream.bits(np, (3, 5), "dropout", np.arange(3, dtype=np.uint32))
    assert words.tolist() == KNOWN


def test_a_draw_depends_on_every_part_of_its_key_and_on_nothing_else() -> None:
    index = np.arange(1000, dtype=np.uint32)
    base = stream.bits(np, (0, 0), "a", index)
    for other in (
        stream.bits(np, (1, 0), "a", index),
        stream.bits(np, (0, 1), "a", index),
        stream.bits(np, (0, 0), "b", index),
    ):
        assert (base == other).mean() < 0.01
    assert np.array_equal(base[500:], stream.bits(np, (0, 0), "a", index[500:]))


def test_uniform_and_normal_moments() -> None:
    index = np.arange(200_000, dtype=np.uint32)
    u = stream.uniform(np, (7, 9), "x", index)
    assert u.min() > 0.0 and u.max() < 1.0
    assert abs(u.mean() - 0.5) < 4 * np.sqrt(1 / 12 / len(u))
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(len(u))
    z = stream.normal(np, (7, 9), "x", index)
    assert abs(z.mean()) < 4 / np.sqrt(len(z))
    assert abs(z.var() - 1.0) < 4 * np.sqrt(2 / len(z))
