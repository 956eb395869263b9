"""Whatever bits a float may have: torch and jax give the specification's bytes, and what these say comes back the same.

What is a NaN stays one.
"""

from typing import Any

import coded
import numpy as np
import pytest

from suite.comm.codecs import float21

HALVES = {"float16": (5, 10), "bfloat16": (8, 7)}  # bits of exponent and mantissa
WORDS = np.arange(2**16, dtype=np.uint16)
halves = pytest.mark.parametrize("name", HALVES)
backends = pytest.mark.parametrize("backend", ["torch", "jax"])
texts = pytest.mark.parametrize("text", ["numpy", "torch", "jax"])


def same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Bit for bit, but for the bits of NaNs."""
    nan = np.isnan(ours)
    return np.array_equal(nan, np.isnan(theirs)) and ours[~nan].tobytes() == theirs[~nan].tobytes()


def draw(count: int) -> np.ndarray:
    return np.random.default_rng(1).random(count, np.float32)


@pytest.mark.sample(34)
@pytest.mark.parametrize("key", coded.NODES)
@backends
@pytest.mark.parametrize("finite", [True, False], ids=["finite", "all"])
def test_any_bits_equal_the_specification(key: str, backend: str, finite: bool) -> None:
    made, values = coded.halves(coded.NODES[key]), coded.patterns(finite)
    with np.errstate(all="ignore"):
        payload = made["numpy"].encode(values, draw)
        decoded = made["numpy"].decode(payload, values)
        ours = coded.encode(made[backend], backend, values, draw)
        if key in coded.CAST and not finite:
            assert same(made["numpy"].decode(ours, values), decoded)
        else:
            assert np.array_equal(ours, payload)
        assert same(coded.decode(made[backend], backend, payload, values), decoded)


# ---------------------------------------------------------------------------------------------- 16 bits
def stands_for(name: str) -> np.ndarray:
    """Return the value of every 16-bit word, by IEEE 754's formula; (2**16,) float32."""
    exponent, mantissa = HALVES[name]
    field, rest = (WORDS >> mantissa) & (2**exponent - 1), WORDS & (2**mantissa - 1)
    least = 2 - 2 ** (exponent - 1)  # the exponent of subnormals, and of the first normal numbers
    found = np.ldexp(rest.astype(float) / 2**mantissa + (field > 0), least - 1 + np.maximum(field, 1).astype(int))
    special = np.where(rest > 0, np.nan, np.inf)
    found = np.where(field == 2**exponent - 1, special, found).astype(np.float32)
    return np.where(WORDS >> 15, -found, found)


@halves
@texts
def test_every_word_of_16_bits_is_its_value_and_its_own_encoding(name: str, text: str) -> None:
    codec, expected = coded.halves({"module": f"suite.comm.codecs.{name}"})[text], stands_for(name)
    values = coded.decode(codec, text, WORDS.view(np.uint8), np.empty(len(WORDS), np.float32))
    assert same(values, expected)
    nan, again = np.isnan(expected), coded.encode(codec, text, expected)
    assert np.array_equal(again.view(np.uint16)[~nan], WORDS[~nan])
    assert np.isnan(stands_for(name)[again.view(np.uint16)[nan]]).all()


@halves
@texts
def test_16_bits_round_to_the_nearest_and_to_even(name: str, text: str) -> None:
    """Each number between two words, their middle, and the floats beside it; and what becomes infinite."""
    codec, values = coded.halves({"module": f"suite.comm.codecs.{name}"})[text], stands_for(name)
    numbers = np.arange(np.isfinite(values[: 2**15]).sum())  # the words of these, in rising order
    step = values[numbers[-1]].astype(np.float64) - values[numbers[-2]]
    wide = np.append(values[numbers].astype(np.float64), values[numbers[-1]].astype(np.float64) + step)
    middle = ((wide[:-1] + wide[1:]) / 2).astype(np.float32)
    assert np.array_equal(middle, (wide[:-1] + wide[1:]) / 2)
    below, above = np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))
    for given, expected in ((below, numbers), (middle, numbers + numbers % 2), (above, numbers + 1)):
        found = coded.encode(codec, text, np.concatenate([given, -given])).view(np.uint16)
        assert np.array_equal(found, np.concatenate([expected, expected | 2**15]))


# ---------------------------------------------------------------------------------------------- 21 bits
@backends
def test_every_word_of_21_bits_and_what_rounds_to_it(backend: str) -> None:
    """NaNs with all their bits, those among them whose upper bits alone would be an infinity."""
    made = coded.halves({"module": "suite.comm.codecs.float21"})
    count = 2**21 + 1  # a multiple of three
    words = np.append(np.arange(2**21, dtype=np.uint32), np.uint32(0))
    payload = np.concatenate(float21.pack_thirds(np, *np.split(words, 3))).astype("<u4").view(np.uint8)
    decoded = coded.decode(made[backend], backend, payload, np.empty(count, np.float32))
    assert np.array_equal(decoded.view(np.uint32), words << 11)
    bits = (words << 11) | np.random.default_rng(0).integers(0, 2**11, count, np.uint32)
    given = bits.view(np.float32)
    expected = made["numpy"].encode(given)
    assert np.array_equal(coded.encode(made[backend], backend, given), expected)
    assert same(made["numpy"].decode(expected, given)[np.isnan(given)], given[np.isnan(given)])


# ----------------------------------------------------------------------------------------------- 8 bits
@backends
def test_every_number_of_8_bits_times_its_scale(backend: str) -> None:
    """In blocks that each hold all of them, under scales of every size."""
    made: dict[str, Any] = coded.halves({"module": "suite.comm.codecs.int8", "block": 256})
    blocks, every = 2**6, np.arange(256, dtype=np.uint8)
    sizes = 2.0 ** np.linspace(-80, 120, blocks)[:, None]
    rows = (sizes * np.random.default_rng(0).normal(size=(blocks, 256))).astype(np.float32)
    scales = made["numpy"].encode(rows.reshape(-1))[: 4 * blocks]
    decoded = coded.decode(made[backend], backend, np.concatenate([scales, *[every] * blocks]), rows.reshape(-1))
    exact = scales.view("<f4")[:, None].astype(np.float64) * every.view(np.int8)
    assert np.array_equal(decoded, exact.reshape(-1))
