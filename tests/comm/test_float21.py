"""float21, over all its words."""

import numpy as np
import pytest
import torch

from suite.comm.codecs.float21 import Float21, round_bits
from suite.comm.codecs.float21 import torch as in_torch

pytestmark = pytest.mark.quick


def test_every_word_is_its_own_encoding() -> None:
    """All 2**21 words decode to floats that encode to the same words; NaNs to NaNs."""
    values = (np.arange(2**21, dtype=np.uint32) << 11).view(np.float32)
    values = np.concatenate([values, np.zeros(-len(values) % 3, np.float32)])
    codec = Float21()
    again = codec.decode(codec.encode(values), values)
    assert np.array_equal(again[~np.isnan(values)].view(np.uint32), values[~np.isnan(values)].view(np.uint32))
    assert np.array_equal(np.isnan(again), np.isnan(values))


def test_rounding_is_to_the_nearest_and_keeps_the_order() -> None:
    generator = np.random.default_rng(0)
    values = np.sort(generator.integers(0, 0x7F7F0000, 20_000).astype(np.uint32)).view(np.float32)
    found = round_bits(np, values.view(np.uint32))
    assert (np.diff(found.astype(np.int64)) >= 0).all()
    below, above = ((found - 1) << 11).view(np.float32), ((found + 1) << 11).view(np.float32)
    error = np.abs((found << 11).view(np.float32).astype(np.float64) - values)
    for neighbour in (below, above):
        assert (error <= np.abs(neighbour.astype(np.float64) - values)).all()
    tie = np.array([0x3F800400, 0x3F800C00], np.uint32)  # halfway: to the even word, down and up
    even = [0x3F800000 >> 11, 0x3F801000 >> 11]
    assert round_bits(np, tie).tolist() == even
    assert in_torch.round_bits(torch.from_numpy(tie.view(np.int32))).tolist() == even
