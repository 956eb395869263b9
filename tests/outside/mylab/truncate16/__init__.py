"""The upper half of a float32: sign, exponent and seven bits, the rest cut off."""

import numpy as np

SUMMARY, CITATION, NEEDS = "a codec outside the tree", "", ()
CLOSED, UNBIASED = False, False


def nbytes(count, itemsize=4):
    return 2 * count


def bound(values):
    return np.abs(values) * 2.0**-7


def encode(values):
    return np.ascontiguousarray((values.astype(np.float32).view(np.uint32) >> 16).astype("<u2")).view(np.uint8)


def decode(payload, like):
    return (payload.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(like.dtype)
