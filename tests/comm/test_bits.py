"""Words of a few bits in bytes, against one long number."""

import numpy as np
import pytest

from suite.comm.codecs import _bits


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_first_word_is_in_the_lowest_bits(bits: int) -> None:
    for count in (_bits.count_words(bits), 5 * _bits.count_words(bits)):
        words = np.random.default_rng(bits).integers(0, 2**bits, count).astype(np.uint8)
        packed = _bits.pack_bits(np, words, bits)
        whole = sum(int(word) << (bits * at) for at, word in enumerate(words))
        assert packed.dtype == np.uint8 and packed.tobytes() == whole.to_bytes(bits * count // 8, "little")
        assert np.array_equal(_bits.unpack_bits(np, packed, bits), words)
