"""Table-N: its magnitudes are percentiles, a value takes the nearest, and what that does to a norm."""

import coded
import engines
import numpy as np
import pytest
import torch
from sampling import sampled

from suite.comm import setup
from suite.comm.codecs import _bits
from suite.comm.codecs.table import Table
from suite.contract import UserError

every = pytest.mark.parametrize("bits", range(1, 9))


def magnitudes(codec: Table, values: np.ndarray) -> np.ndarray:
    return codec.encode(values)[: 4 * codec.size].view("<f4").astype(np.float64)


@pytest.mark.quick
@every
def test_magnitudes_are_percentiles(bits: int) -> None:
    for values in (coded.samples(1000), coded.samples(7), coded.samples(1)):
        codec = Table(bits, "exact")
        percent = [99 * k / codec.size for k in range(1, codec.size + 1)]
        expected = np.percentile(np.abs(values), percent, method="inverted_cdf")
        assert np.array_equal(magnitudes(codec, values), expected)


@pytest.mark.quick
@every
@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_a_value_takes_the_nearest_magnitude_and_keeps_its_sign(bits: int, kind: str) -> None:
    """By trying all; within the rounding of a middle the other one is as good."""
    codec, values = Table(bits), coded.samples(3001, kind=kind)
    table, wide = magnitudes(codec, values), np.abs(values.astype(np.float64))
    decoded = codec.decode(codec.encode(values), values).astype(np.float64)
    assert np.array_equal(np.signbit(decoded), np.signbit(values)) and np.isin(np.abs(decoded), table).all()
    least = np.abs(wide[:, None] - table).min(1)
    assert (np.abs(decoded - values) <= least + 2.0**-23 * wide).all()


@every
def test_words_have_the_sign_on_top(bits: int) -> None:
    codec, values = Table(bits), coded.samples(13)
    payload = codec.encode(values)
    assert len(payload) == codec.nbytes(13) == 4 * 2 ** (bits - 1) + -(-13 * bits // 8)
    whole = int.from_bytes(payload[4 * codec.size :].tobytes(), "little")
    words = np.array([(whole >> (bits * at)) & (2**bits - 1) for at in range(13)])
    assert np.array_equal(words >> (bits - 1) == 1, values < 0)
    table = magnitudes(codec, values)
    expected = np.where(values < 0, -1, 1) * table[words & (codec.size - 1)]
    assert np.array_equal(codec.decode(payload, values), expected.astype(np.float32))
    assert whole >> (13 * bits) == 0 and _bits.count_words(bits) * bits % 8 == 0


@pytest.mark.quick
def test_table_1_multiplies_the_norm_and_more_bits_clip_the_tails() -> None:
    """One bit multiplies the norm by 2.576, the 99th percentile of |N(0, 1)|."""
    values = np.random.default_rng(0).normal(size=200_000).astype(np.float32)
    norms = {}
    for bits in (1, 8):
        codec = Table(bits, "exact")
        decoded = codec.decode(codec.encode(values), values)
        norms[bits] = np.linalg.norm(decoded) / np.linalg.norm(values)
        assert np.abs(decoded).max() == np.percentile(np.abs(values), 99, method="inverted_cdf")
    assert abs(norms[1] - 2.576) < 0.02 and 0.98 < norms[8] < 1


def test_a_sample_is_one_percent_but_at_least_1024_values() -> None:
    codec = Table(4)
    for count in (1, 1023, 1024, 5000, 102_400, 10_000_000):
        looked = -(-count // codec.stride(count))
        assert looked >= min(count, 1024) and looked <= max(2048, count // 100 + 1)
        assert Table(4, "exact").stride(count) == 1
    values = coded.samples(50_000)
    sampled, exact = magnitudes(codec, values), magnitudes(Table(4, "exact"), values)
    assert not np.array_equal(sampled, exact) and np.abs(sampled / exact - 1).max() < 0.3
    assert np.array_equal(sampled, magnitudes(Table(4, "exact"), values[:: codec.stride(50_000)]))


@pytest.mark.sample(3)
@pytest.mark.parametrize("bits, backend", sampled(range(1, 9), ["torch", "jax"]))
def test_every_width_is_the_same_in_all_texts(bits: int, backend: str) -> None:
    for percentiles in ("sampled", "exact"):
        halves = coded.halves({"module": "suite.comm.codecs.table", "bits": bits, "percentiles": percentiles})
        for values in (coded.samples(2503), np.repeat(coded.samples(3), 5)):  # equal magnitudes too
            payload = halves["numpy"].encode(values)
            assert np.array_equal(coded.encode(halves[backend], backend, values), payload)
            decoded = coded.decode(halves[backend], backend, payload, values)
            assert np.array_equal(decoded, halves["numpy"].decode(payload, values))


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_a_search_by_prefixes_finds_what_torchs_own_does(bits: int) -> None:
    """Magnitudes that share a prefix are searched for otherwise; those of a spread sample do not."""
    from suite.comm.codecs.table.torch import index_middles

    halves, ways = coded.halves({"module": "suite.comm.codecs.table", "bits": bits}), set()
    near = (1 + 1e-3 * np.random.default_rng(0).random(2503)).astype(np.float32)
    for values in (coded.samples(30_011), np.repeat(coded.samples(3), 5), near):
        payload = halves["numpy"].encode(values)
        made = torch.from_numpy(payload[: 4 * 2 ** (bits - 1)].copy()).view(torch.int32)
        ways.add(len(index_middles(halves["torch"].middles(torch, made))))
        assert np.array_equal(coded.encode(halves["torch"], "torch", values), payload)
    assert ways == {1, 2}


@pytest.mark.parametrize(
    "options, words",
    [({"bits": 9}, "must be at most 8"), ({"percentiles": "all"}, "must be one of sampled")],
)
def test_what_it_cannot_do_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        setup.make_codec(engines.part("suite.comm.codecs.table", **options), None)
