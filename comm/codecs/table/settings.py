"""Settings of the codec table; conf/comm has presets of it."""

from typing import Literal

from suite.declared import Declared, setting


class Settings(Declared):
    """bits: the largest table of AdaPrec's poster."""

    bits: int = setting(8, "bits of a value, its sign included", at_least=1, at_most=8)
    percentiles: Literal["sampled", "exact"] = setting(
        "sampled", "from 1 % of the values but at least 1,024, or from all"
    )
