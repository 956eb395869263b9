"""Upper half of a float32, rounded to nearest, ties to even."""

import ml_dtypes

from suite.comm.codecs._half import Half

SUMMARY = "the upper half of a float32, rounded to nearest: 8 exponent bits, 8 bits of precision"
CITATION = "Kalamkar et al. 2019, arXiv:1905.12322"


class BFloat16(Half):
    """Specification in NumPy."""

    kind, precision, least, most = ml_dtypes.bfloat16, 8, -134, 3.3961775e38


make = BFloat16
