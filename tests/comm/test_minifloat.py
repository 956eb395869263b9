"""Small floats: every word, the order, and ml_dtypes where it has the same format."""

import coded
import engines
import ml_dtypes
import numpy as np
import pytest

from suite.comm import setup
from suite.comm.codecs.minifloat import MiniFloat
from suite.comm.codecs.minifloat.torch import MANY
from suite.contract import UserError

ORACLES = {
    (5, 2): ml_dtypes.float8_e5m2,
    (4, 3): ml_dtypes.float8_e4m3,
    (3, 4): ml_dtypes.float8_e3m4,
    (5, 10): np.float16,
}
FORMATS = [*ORACLES, (2, 5), (6, 1), (2, 13), (7, 8)]
formats = pytest.mark.parametrize("exponent, mantissa", FORMATS)
texts = pytest.mark.parametrize("text", ["numpy", "torch", "jax"])


def every_word(codec: MiniFloat) -> np.ndarray:
    """Payload of all words, without a scale."""
    return np.arange(2 ** (8 * codec.width)).astype(f"<u{codec.width}").view(np.uint8)


def values_of(codec: MiniFloat) -> np.ndarray:
    words = every_word(codec)
    return codec.decode(words, np.empty(len(words) // codec.width, np.float32))


def made(exponent: int, mantissa: int, text: str) -> MiniFloat:
    """One framework's half, without a scale."""
    options = {"exponent": exponent, "mantissa": mantissa, "scale": "none"}
    return coded.halves({"module": "suite.comm.codecs.minifloat", **options})[text]


def wide(count: int = 20_000) -> np.ndarray:
    """Finite floats of every exponent, and ties."""
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 0x7F800000, count).astype(np.uint32) | (
        generator.integers(0, 2, count).astype(np.uint32) << np.uint32(31)
    )
    return np.concatenate([bits, bits & np.uint32(0xFFF80000)]).view(np.float32)


@formats
@texts
def test_every_word_is_its_own_encoding(exponent: int, mantissa: int, text: str) -> None:
    codec, expected = made(exponent, mantissa, text), values_of(MiniFloat(exponent, mantissa, "none"))
    values = coded.decode(codec, text, every_word(codec), expected)
    number, kind = ~np.isnan(values), f"<u{codec.width}"
    assert np.array_equal(values[number].view(np.uint32), expected[number].view(np.uint32))
    assert (~number).sum() == 2 * (2**mantissa - 1) and np.isinf(values).sum() == 2
    again = coded.encode(codec, text, values)
    assert np.array_equal(again.view(kind)[number], every_word(codec).view(kind)[number])
    assert np.isnan(coded.decode(codec, text, again, values))[~number].all()


@pytest.mark.parametrize("exponent, mantissa", ORACLES)
@texts
def test_values_and_rounding_are_those_of_ml_dtypes(exponent: int, mantissa: int, text: str) -> None:
    codec, oracle = made(exponent, mantissa, text), ORACLES[exponent, mantissa]
    expected = every_word(codec).view(oracle).astype(np.float32)
    assert np.array_equal(coded.decode(codec, text, every_word(codec), expected), expected, equal_nan=True)
    generator = np.random.default_rng(1)
    finite = np.sort(expected[np.isfinite(expected)])
    near = np.concatenate([finite[:-1] / 2 + finite[1:] / 2, finite[-1] * generator.normal(size=5000), wide()])
    near = near[np.abs(near) <= finite[-1]].astype(np.float32)
    assert len(near) > 5000
    assert coded.encode(codec, text, near).tobytes() == near.astype(oracle).tobytes()


@formats
@pytest.mark.parametrize("scale", ["none", "absmax"])
def test_the_nearest_is_taken_and_the_order_kept(exponent: int, mantissa: int, scale: str) -> None:
    """Of all finite numbers of the format, without asking how they are found."""
    codec = MiniFloat(exponent, mantissa, scale)
    numbers = values_of(MiniFloat(exponent, mantissa, "none"))
    numbers = np.sort(numbers[np.isfinite(numbers)]).astype(np.float64)
    generator = np.random.default_rng(2)
    for size in (1e-30, 1e-3, 1.0, 1e30):
        values = np.sort(size * generator.normal(size=3000) * np.exp(2 * generator.normal(size=3000)))
        values = values.astype(np.float32)
        payload = codec.encode(values)
        unit = float(payload[:4].view("<f4")[0]) if scale == "absmax" else 1.0
        decoded = codec.decode(payload, values).astype(np.float64)
        assert (np.diff(decoded) >= 0).all()
        scaled = values.astype(np.float64) / unit
        above = np.searchsorted(numbers, scaled).clip(1, len(numbers) - 1)
        least = np.minimum(np.abs(numbers[above] - scaled), np.abs(numbers[above - 1] - scaled))
        assert np.array_equal(np.abs(decoded / unit - scaled), least)


@pytest.mark.parametrize("exponent, mantissa", [one for one in FORMATS if one[0] < 7])  # 7 bits span float32's range
def test_a_power_of_two_makes_the_largest_value_fit(exponent: int, mantissa: int) -> None:
    codec = MiniFloat(exponent, mantissa)
    values = np.random.default_rng(3).normal(size=100).astype(np.float32)
    payload = codec.encode(values)
    for power in (-20, 7, 90):
        other = codec.encode(values * np.float32(2.0**power))
        assert np.array_equal(other[4:], payload[4:])
        assert other[:4].view("<f4")[0] == payload[:4].view("<f4")[0] * 2.0**power
    top = (2 ** (exponent + mantissa) - 1) - (2**mantissa - 1) - 1  # the largest finite word
    for largest in (1.0, 1.999999, np.float32(3.4028235e38)):
        word = int(codec.encode(np.array([largest], np.float32))[4:].view(f"<u{codec.width}")[0])
        assert top - (2**mantissa - 1) <= word <= top  # in the format's highest binade
        decoded = codec.decode(codec.encode(np.array([largest], np.float32)), np.empty(1, np.float32))
        assert np.isfinite(decoded).all() and abs(decoded[0] / largest - 1) <= 2.0**-mantissa


@pytest.mark.parametrize("scale", ["none", "absmax"])
def test_torch_takes_long_arrays_in_parts_to_the_same_bytes(scale: str) -> None:
    for exponent, mantissa in ((5, 2), (6, 9)):
        options = {"exponent": exponent, "mantissa": mantissa, "scale": scale}
        halves = coded.halves({"module": "suite.comm.codecs.minifloat", **options})
        values = coded.samples(MANY + 1)
        payload = halves["numpy"].encode(values)
        assert np.array_equal(coded.encode(halves["torch"], "torch", values), payload)
        expected = halves["numpy"].decode(payload, values)
        assert np.array_equal(coded.decode(halves["torch"], "torch", payload, values), expected)


def test_finite_values_beyond_the_largest_become_that() -> None:
    codec = MiniFloat(4, 3, "none")
    values = np.array([240, 247.9, 248, 1e30, -1e30, np.inf, -np.inf], np.float32)
    assert codec.decode(codec.encode(values), values).tolist() == [240, 240, 240, 240, -240, np.inf, -np.inf]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"exponent": 4, "mantissa": 4}, "must be 8 or 16 bits in all"),
        ({"exponent": 8, "mantissa": 7}, "exponent=8: must be at most 7"),
        ({"exponent": 7, "mantissa": 0}, "mantissa=0: must be at least 1"),
        ({"scale": "mean"}, "scale=mean: must be one of absmax, none"),
    ],
)
def test_other_formats_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        setup.make_codec(engines.part("suite.comm.codecs.minifloat", **options), None)


def test_the_bound_holds_on_random_bits_without_a_scale() -> None:
    """Beyond the largest number it is what is cut off, which float32 may round down."""
    codec = MiniFloat(exponent=5, mantissa=10, scale="none")
    values = np.random.default_rng(2).integers(0, 2**32, 100_000, np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    error = np.abs(codec.decode(codec.encode(values), values).astype(np.float64) - values)
    assert (error <= codec.bound(values)).all()
