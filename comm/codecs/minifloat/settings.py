"""Settings of the codec minifloat; conf/comm has presets of it."""

from typing import Literal

from suite.declared import Declared, setting


class Settings(Declared):
    """1 + 5 + 2 bits: our choice for the 8-bit float of AdaPrec's poster."""

    exponent: int = setting(5, "exponent bits", at_least=2, at_most=7)
    mantissa: int = setting(2, "mantissa bits; with sign and exponent, 8 or 16 bits in all", at_least=1, at_most=13)
    scale: Literal["absmax", "none"] = setting("absmax", "absmax: a power of two for each array")
