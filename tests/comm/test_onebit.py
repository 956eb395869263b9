"""One bit: the means of both sides, summed in one order everywhere; with feedback, nothing is lost for ever."""

import math

import coded
import numpy as np
import pytest
import torch

from suite.comm.codecs._fold import fold_values
from suite.comm.codecs.onebit import OneBit
from suite.comm.encoder import jax as jax_encoder
from suite.comm.encoder import torch as torch_encoder

pytestmark = pytest.mark.quick


def test_each_side_comes_back_as_its_mean() -> None:
    codec = OneBit()
    for length in (1, 2, 9, 1000, 4097):
        values = coded.samples(length, length)
        decoded = codec.decode(codec.encode(values), values)
        for side in (values >= 0, values < 0):
            if side.any():
                assert len(set(decoded[side])) == 1
                assert math.isclose(decoded[side][0], math.fsum(values[side]) / side.sum(), rel_tol=1e-6)
        assert math.isclose(math.fsum(decoded), math.fsum(values), abs_tol=1e-6 * float(np.abs(values).sum()))


def test_no_other_two_values_are_nearer() -> None:
    codec, values = OneBit(), coded.samples(500)
    payload = codec.encode(values)
    means, best = payload[:8].view("<f4").copy(), np.square(codec.decode(payload, values) - values).sum()
    for factors in ((0.9, 1.0), (1.1, 1.0), (1.0, 0.9), (1.0, 1.1)):
        other = np.concatenate([(means * np.array(factors, np.float32)).view(np.uint8), payload[8:]])
        assert np.square(codec.decode(other, values) - values).sum() > best


def test_a_side_without_values_has_mean_zero_and_nothing_overflows() -> None:
    codec = OneBit()
    assert codec.encode(np.array([1.0, 3.0], np.float32))[:8].view("<f4").tolist() == [2.0, 0.0]
    assert codec.encode(np.array([-1.0, -3.0], np.float32))[:8].view("<f4").tolist() == [0.0, -2.0]
    assert codec.encode(np.empty(0, np.float32)).view("<f4").tolist() == [0.0, 0.0]
    huge = np.full(1000, 3e38, np.float32)
    assert np.array_equal(codec.decode(codec.encode(huge), huge), np.full(1000, 2.0**96, np.float32))


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_sums_have_one_order(backend: str) -> None:
    """Other orders give other bits: NumPy's own does, for most lengths."""
    halves = coded.halves({"module": "suite.comm.codecs.onebit"})
    other = 0
    for length in (7, 100, 4095, 4096, 4097, 100_003):
        values = np.abs(coded.samples(length, length))
        folded = fold_values(np, values, np.add)
        assert math.isclose(folded, math.fsum(values), rel_tol=1e-6)
        other += values.sum() != folded
        assert np.array_equal(coded.encode(halves[backend], backend, values), halves["numpy"].encode(values))
    assert other


def test_what_fills_up_the_last_chunk_does_not_shrink_its_mean() -> None:
    """47 of 157 values are no gradient: as zeros they would take a fifth of the norm."""
    import jax.numpy as jnp
    import torch
    from simulated_torch import Meeting, Simulated

    from suite.comm.transport import Ledger
    from suite.comm.transport.jax import Transport

    in_torch, in_jax = Simulated(0, Meeting(64), Ledger()), Transport(64)
    codec, kept = OneBit(), []
    for seed in range(20):
        values = coded.samples(10_001, seed, "normal")
        rows = in_torch.chunks(torch.from_numpy(values)).numpy()
        assert np.array_equal(rows, in_jax.chunks(jnp.asarray(values)))
        assert np.array_equal(rows.reshape(-1)[:10_001], values)
        own = values[63 * 157 :]
        kept.append(np.abs(codec.decode(codec.encode(rows[-1]), own)).mean() / np.abs(own).mean())
    assert abs(np.mean(kept) - 1) < 0.03


def test_what_is_fed_back_is_sent_in_the_end() -> None:
    """With feedback, the mean sent tends to a constant gradient as 1 over the number of steps; without it does not."""
    codec, values = OneBit(), coded.samples(100, kind="normal")
    residual, sent = np.zeros_like(values), np.zeros(100)
    for _ in range(1000):
        decoded = codec.decode(codec.encode(values + residual), values)
        residual, sent = values + residual - decoded, sent + decoded
    plain = codec.decode(codec.encode(values), values)
    assert np.abs(sent / 1000 - values).max() < 0.1 * np.abs(plain - values).max()


def test_with_feedback_a_negative_zero_counts_as_zero_from_the_first_step() -> None:
    """There is no residual yet, and in both frameworks what is encoded is a sum all the same."""
    halves, values = coded.halves({"module": "suite.comm.codecs.onebit"}), np.array([[-0.0, -2.0, 3.0]], np.float32)
    encoders = (
        torch_encoder.Encoder("a", halves["torch"], {}, (0, 0), 0),
        jax_encoder.Encoder("a", halves["jax"], {}, (0, 0), 0),
    )
    in_torch, in_jax = encoders[0].encode("worker", torch.from_numpy(values)), encoders[1].encode("worker", values)
    (ours,), (theirs,) = in_torch, in_jax
    assert ours.tolist() == np.asarray(theirs).tolist() and ours[0, 8] == 0b010
