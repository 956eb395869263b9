"""An infinity or a NaN among the values: payloads are equal all the same, and the damage is seen after decoding."""

import coded
import numpy as np
import pytest

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
