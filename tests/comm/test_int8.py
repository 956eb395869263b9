"""Whole numbers and their scales: exact products, nearest or unbiased, a block for itself."""

import coded
import engines
import numpy as np
import pytest
import torch

from suite.comm import setup
from suite.comm.codecs.int8 import Int8
from suite.comm.encoder import jax as jax_encoder
from suite.comm.encoder import torch as torch_encoder
from suite.contract import UserError

pytestmark = pytest.mark.quick


def parts(codec: Int8, values: np.ndarray, draw: object = None) -> tuple[np.ndarray, np.ndarray]:
    """Scales (blocks,) and numbers (n,)."""
    payload = codec.encode(values, draw)  # type: ignore[arg-type]
    head = 4 * codec.blocks(len(values))
    return payload[:head].view("<f4"), payload[head:].view(np.int8)


def test_a_number_times_its_scale_is_exact_and_the_nearest() -> None:
    codec = Int8(block=64)
    for size in (1e-25, 1e-3, 1e36):
        values = (size * np.random.default_rng(0).normal(size=1000)).astype(np.float32)
        scales, numbers = parts(codec, values)
        each = scales.repeat(64)[:1000]
        exact = numbers.astype(np.float64) * each.astype(np.float64)
        assert np.array_equal(codec.decode(codec.encode(values), values).astype(np.float64), exact)
        assert (np.abs(exact - values) <= each.astype(np.float64) * (0.5 + 2.0**-16)).all()
        largest = np.array([np.abs(values[at : at + 64]).max() for at in range(0, 1000, 64)], np.float64)
        assert (largest <= 127 * scales.astype(np.float64)).all()
        assert (127 * scales.astype(np.float64) <= largest * (1 + 2.0**-15)).all()


def test_the_largest_float_does_not_overflow() -> None:
    values = np.array([np.finfo(np.float32).max, -np.finfo(np.float32).max, 1.0], np.float32)
    decoded = Int8().decode(Int8().encode(values), values)
    assert np.isfinite(decoded).all() and np.allclose(decoded[:2] / values[:2], 1, rtol=1e-4) and decoded[2] == 0


def test_blocks_do_not_know_of_each_other() -> None:
    values = coded.samples(130)
    codec = Int8(block=50)
    whole = codec.decode(codec.encode(values), values)
    each = [codec.decode(codec.encode(part), part) for part in (values[:50], values[50:100], values[100:])]
    assert np.array_equal(whole, np.concatenate(each))
    values[60] = np.nan
    spoilt = codec.decode(codec.encode(values), values)
    assert np.isnan(spoilt[50:100]).all() and np.array_equal(
        np.delete(spoilt, range(50, 100)), np.delete(whole, range(50, 100))
    )


def test_stochastic_rounding_is_unbiased_between_two_neighbours() -> None:
    """Over ten thousand draws, within four standard errors; nearest rounding is not."""
    codec, values = Int8(block=32, rounding="stochastic"), coded.samples(64)
    generator = np.random.default_rng(0)
    found = [parts(codec, values, lambda count: generator.random(count, np.float32)) for _ in range(10_000)]
    scales, numbers = found[0][0].repeat(32).astype(np.float64), np.stack([n for _, n in found]).astype(np.float64)
    exact = values / scales
    assert ((numbers == np.floor(exact)) | (numbers == np.ceil(exact))).all()
    part = exact - np.floor(exact)
    error = np.sqrt(part * (1 - part) / 10_000)  # of a mean of draws that are one or the other
    assert (np.abs(numbers.mean(0) - exact) <= 4 * error + 1e-6).all()
    nearest = Int8(block=32)
    assert (np.abs(nearest.decode(nearest.encode(values), values) / scales - exact) > 4 * error + 1e-6).any()
    assert codec.draws and codec.unbiased and not nearest.draws and not nearest.unbiased


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_stochastic_rounding_is_the_same_in_all_texts(backend: str) -> None:
    node = {"module": "suite.comm.codecs.int8", "block": 100, "rounding": "stochastic"}
    halves = coded.halves(node)

    def draw(count: int) -> np.ndarray:
        return np.random.default_rng(7).random(count, np.float32)

    for length in (0, 1, 99, 100, 1001, 2**19):
        values = coded.samples(length)
        payload = halves["numpy"].encode(values, draw)
        assert np.array_equal(coded.encode(halves[backend], backend, values, draw), payload)


@pytest.mark.parametrize(
    "options, words",
    [({"block": 0}, "must be at least 1"), ({"rounding": "up"}, "must be one of nearest")],
)
def test_what_it_cannot_do_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        setup.make_codec(engines.part("suite.comm.codecs.int8", **options), None)


def test_ranks_round_with_other_numbers_which_are_the_same_in_both_backends() -> None:
    """Else the errors of all ranks would add up."""
    halves = coded.halves({"module": "suite.comm.codecs.int8", "rounding": "stochastic"})
    values = np.random.default_rng(0).normal(size=(1, 600)).astype(np.float32)
    payloads = []
    for rank in range(2):
        (ours,) = torch_encoder.Encoder("a", halves["torch"], None, (0, 0), rank).encode("", torch.from_numpy(values))
        (theirs,) = jax_encoder.Encoder("a", halves["jax"], None, (0, 0), rank).encode("", values)
        assert np.array_equal(ours.numpy(), np.asarray(theirs))
        payloads.append(ours)
    assert not torch.equal(*payloads)
