"""Every codec: three texts and one payload, its declared bytes, error and bias, and whatever may stand in an array."""

import json
from pathlib import Path
from typing import Any

import coded as codecs
import numpy as np
import pytest
import torch

from suite.comm.codecs._bits import torch as in_bytes
from suite.comm.codecs._parts import torch as parts
from suite.comm.codecs._parts.torch import PART
from suite.comm.codecs.onebit import torch as onebit

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
LENGTHS = (0, 1, 2, 3, 5, 8, 63, 511, 512, 513, 1000)
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-38, 1e-20, 65504.0, 65520.0, 1e30, -3.4e38, 3.4028235e38, 1e-3], np.float32
)
LOST = np.array([1.0, np.inf, -2.0, np.nan, -np.inf, 3.0] * 100, np.float32)
every = pytest.mark.parametrize("key", codecs.NODES)
backends = pytest.mark.parametrize("backend", ["torch", "jax"])


def draw(count: int) -> np.ndarray:
    return np.random.default_rng(1).random(count, np.float32)


def made(key: str, backend: str = "numpy") -> Any:
    return codecs.halves(codecs.NODES[key])[backend]


@pytest.mark.sample(10)
@every
@backends
@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_payloads_and_values_equal_the_specification(key: str, backend: str, kind: str) -> None:
    specification, half = made(key), made(key, backend)
    for length in LENGTHS:
        values = codecs.samples(length, length, kind)
        payload = specification.encode(values, draw)
        assert payload.dtype == np.uint8 and payload.shape == (specification.nbytes(length),)
        assert np.array_equal(codecs.encode(half, backend, values, draw), payload), length
        decoded = specification.decode(payload, values)
        assert decoded.dtype == np.float32 and decoded.shape == values.shape
        assert np.array_equal(codecs.decode(half, backend, payload, values).view(np.uint32), decoded.view(np.uint32))


@every
@pytest.mark.parametrize("where", ["torch", "torch elsewhere", pytest.param("jax", marks=pytest.mark.slow)])
def test_few_values_equal_the_specification(key: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the kernels of other devices, which take whole arrays, here on the CPU."""
    for module in (in_bytes, parts, onebit) if where == "torch elsewhere" else ():
        monkeypatch.setattr(module, "is_on_cpu", lambda values: False)
    backend = where.partition(" ")[0]
    specification, half = made(key), made(key, backend)
    for length in range(18) if backend == "jax" else (*range(41), 4099):  # jax compiles each
        values = codecs.samples(length, length)
        payload = specification.encode(values, draw)
        assert np.array_equal(codecs.encode(half, backend, values, draw), payload), length
        decoded = specification.decode(payload, values)
        assert np.array_equal(codecs.decode(half, backend, payload, values).view(np.uint32), decoded.view(np.uint32))


@every
def test_torch_takes_long_arrays_in_parts_to_the_same_bytes(key: str) -> None:
    specification, half = made(key), made(key, "torch")
    for length in (3 * PART + 1, 16 * PART // 2 + 13):
        values = codecs.samples(length, length, "normal")
        payload = specification.encode(values, draw)
        assert np.array_equal(codecs.encode(half, "torch", values, draw), payload), length
        decoded = codecs.decode(half, "torch", payload, values)
        assert np.array_equal(decoded.view(np.uint32), specification.decode(payload, values).view(np.uint32))


@pytest.mark.slow
@every
def test_compiled_kernels_equal_the_specification(key: str) -> None:
    """Compiled once for all lengths."""
    specification, half, first = made(key), codecs.compiled(codecs.NODES[key]), codecs.samples(2**12 + 1)
    torch.compiler.reset()
    codecs.decode(half, "torch", codecs.encode(half, "torch", first, draw), first)
    with torch._dynamo.config.patch(error_on_recompile=True):
        usual = (codecs.samples(length, length) for length in (*LENGTHS, 100_003))
        for values in (*usual, SPECIAL, LOST, codecs.patterns(True), codecs.patterns(False)):
            with np.errstate(all="ignore"):
                expected, payload = specification.encode(values, draw), codecs.encode(half, "torch", values, draw)
            lost = key in codecs.CAST and np.isnan(values).any()
            assert lost or np.array_equal(payload, expected), len(values)
            ours, theirs = codecs.decode(half, "torch", payload, values), specification.decode(payload, values)
            assert np.array_equal(ours, theirs, equal_nan=True)
        rows = torch.from_numpy(codecs.samples(3 * 1001)).view(3, 1001)
        payloads = torch.stack([half.encode(row, lambda count: torch.from_numpy(draw(count))) for row in rows])
        for row, payload in zip(rows, payloads, strict=True):  # as in an encoder
            assert np.array_equal(payload.numpy(), specification.encode(row.numpy(), draw))
            assert np.array_equal(half.decode(payload, row).numpy(), specification.decode(payload.numpy(), row.numpy()))


@pytest.mark.sample(12)
@every
@backends
def test_half_a_million_values_equal_the_specification(key: str, backend: str) -> None:
    """Of so many some lie where the last bit of a quotient decides."""
    specification, half = made(key), made(key, backend)
    values = codecs.samples(2**19, kind="normal")
    payload = specification.encode(values, draw)
    assert np.array_equal(codecs.encode(half, backend, values, draw), payload)
    assert np.array_equal(codecs.decode(half, backend, payload, values), specification.decode(payload, values))


@pytest.mark.sample(16)
@every
@backends
def test_special_values_equal_the_specification(key: str, backend: str) -> None:
    specification, half = made(key), made(key, backend)
    for values in (SPECIAL, np.zeros(9, np.float32), np.full(5, -2.5, np.float32), np.full(3, 1e-42, np.float32)):
        payload = specification.encode(values, draw)
        assert np.array_equal(codecs.encode(half, backend, values, draw), payload)
        ours, theirs = specification.decode(payload, values), codecs.decode(half, backend, payload, values)
        assert np.array_equal(ours, theirs, equal_nan=True)


@every
def test_the_error_is_within_the_declared_bound(key: str) -> None:
    codec = made(key)
    generator = np.random.default_rng(2)
    bits = generator.integers(0, 2**32, 100_000, np.uint32).view(np.float32)
    wide = generator.normal(size=100_000) * 10.0 ** generator.uniform(-46, 42, 100_000)  # beyond float32 at both ends
    usual = (codecs.samples(4096), codecs.samples(4096, kind="normal"), SPECIAL, np.zeros(9, np.float32))
    for values in (*usual, LOST, bits, wide):
        decoded = codec.decode(codec.encode(values, draw), values)
        with np.errstate(invalid="ignore"):
            error = np.abs(decoded.astype(np.float64) - values)
        bound = codec.bound(values)
        assert bound.shape == values.shape
        declared = np.isfinite(values) & np.isfinite(bound)
        worst = np.argmax(np.where(declared, error - bound, -np.inf))
        assert error[worst] <= bound[worst] or not declared.any(), f"{values[worst]} came back as {decoded[worst]}"
    typical = codecs.samples(4096, kind="normal")
    assert np.isfinite(codec.bound(typical)).mean() > 0.98


@pytest.mark.sample(12)
@every
@backends
def test_double_precision_comes_back_as_it_was_typed(key: str, backend: str) -> None:
    """By way of float32, except for the codec that sends the values' own bytes."""
    import jax

    values = codecs.samples(100).astype(np.float64) * (1 + 1e-12)
    specification, half = made(key), made(key, backend)
    with jax.enable_x64(True):
        payload = codecs.encode(half, backend, values, draw)
        decoded = codecs.decode(half, backend, payload, values)
    assert payload.size == specification.nbytes(100, 8) and decoded.dtype == np.float64
    assert np.array_equal(payload, specification.encode(values, draw))


@every
def test_views_are_encoded_like_copies(key: str) -> None:
    """torch hands over slices and transposed tensors."""
    whole = torch.from_numpy(codecs.samples(600)).view(20, 30)
    codec = made(key, "torch")
    drawn = lambda count: torch.from_numpy(draw(count))  # noqa: E731
    for view in (whole.T[3], whole.T.reshape(-1)[::2]):
        assert torch.equal(codec.encode(view, drawn), codec.encode(view.clone(), drawn))


@every
def test_one_payload_for_ever(key: str) -> None:
    """A codec's payload does not change from version to version: `python tests/coded.py` writes new ones."""
    assert codecs.golden()[key] == GOLDEN[key], f"{key} has other bytes; if that is meant, run python tests/coded.py"


@every
def test_a_codec_declared_unbiased_is(key: str) -> None:
    """Within four standard errors, over ten thousand draws of random numbers; any other codec is biased somewhere."""
    codec = made(key)
    values = codecs.samples(64 if codec.draws else 1000)  # a table of 128 magnitudes holds 64 values as they are
    if not codec.draws:
        decoded = codec.decode(codec.encode(values), values)
        assert codec.unbiased == bool(np.array_equal(decoded, values))
        return
    generator = np.random.default_rng(0)
    found = np.stack(
        [codec.decode(codec.encode(values, lambda n: generator.random(n, np.float32)), values) for _ in range(10_000)]
    ).astype(np.float64)
    error, spread = found.mean(0) - values, found.std(0) / 100
    assert codec.unbiased == bool((np.abs(error) <= 4 * spread + 1e-12).all())
