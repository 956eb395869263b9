"""Settings of the policy fastest; conf/comm has presets of it."""

from suite.declared import Declared, setting


class Settings(Declared):
    """repeats: our choice."""

    repeats: int = setting(7, "measured exchanges of each candidate; the median is used", at_least=2)
