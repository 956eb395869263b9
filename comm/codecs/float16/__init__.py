"""IEEE half precision. Above 65,504 it is infinite; below 6.1e-5 the spacing is 6.0e-8."""

import numpy as np

from suite.comm.codecs._half import Half

SUMMARY = "IEEE half precision: 5 exponent bits, 11 bits of precision, largest value 65,504"
CITATION = "IEEE 754-2008, binary16"


class Float16(Half):
    """Specification in NumPy."""

    kind, precision, least, most = np.float16, 11, -25, 65520.0


make = Float16
