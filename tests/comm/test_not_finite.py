"""An infinity or a NaN among the values: payloads are equal all the same, and the damage is seen after decoding."""

import coded
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from suite.comm.encoder import jax as jax_encoder
from suite.comm.encoder import torch as torch_encoder

NAMES = ("float16", "bfloat16", "float21", "minifloat", "int8", "table", "onebit")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_it_is_seen(name: str, backend: str, bad: float) -> None:
    halves = coded.halves({"module": f"suite.comm.codecs.{name}"})
    values = coded.samples(700)
    values[[0, 300]] = bad
    payload = halves["numpy"].encode(values)
    ours, decoded = coded.encode(halves[backend], backend, values), halves["numpy"].decode(payload, values)
    if name in coded.CAST and np.isnan(bad):
        assert np.array_equal(halves["numpy"].decode(ours, values), decoded, equal_nan=True)
    else:
        assert np.array_equal(ours, payload)
    assert np.array_equal(coded.decode(halves[backend], backend, payload, values), decoded, equal_nan=True)
    assert not np.isfinite(decoded[[0, 300]]).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_float64_beyond_float32_is_infinite(name: str, backend: str) -> None:
    import jax

    halves, values = coded.halves({"module": f"suite.comm.codecs.{name}"}), np.array([1.0, 1e300, -2.0])
    payload = halves["numpy"].encode(values)
    with jax.enable_x64(True):
        assert np.array_equal(coded.encode(halves[backend], backend, values), payload)
    assert not np.isfinite(halves["numpy"].decode(payload, values)[1])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_error_feedback_keeps_nothing_of_it(name: str, bad: float) -> None:
    halves, values = coded.halves({"module": f"suite.comm.codecs.{name}"}), coded.samples(700)
    broken = np.where(np.arange(700) == 300, bad, values).astype(np.float32)
    ours = torch_encoder.Encoder("a", halves["torch"], {}, (0, 0), 0)
    theirs = jax_encoder.Encoder("a", halves["jax"], {}, (0, 0), jnp.uint32(0))
    for rows in (values, broken, values):
        found = list(ours.encode("0", torch.tensor(rows[None])))
        other = theirs.encode("0", jnp.asarray(rows[None]))
        sent = ours.decode(found, torch.tensor(rows))
        assert sent.isfinite().all() == np.isfinite(rows).all()
        np.testing.assert_array_equal(sent.numpy(), np.asarray(theirs.decode(other, jnp.asarray(rows))))
        kept, again = ours.state["a/0"], theirs.state["a/0"][0]
        assert kept.isfinite().all()
        np.testing.assert_array_equal(kept.numpy(), np.asarray(again))
