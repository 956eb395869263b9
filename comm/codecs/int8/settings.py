"""Settings of the codec int8; conf/comm has presets of it."""

from typing import Literal

from suite.declared import Declared, setting


class Settings(Declared):
    """block: Dettmers 2016 uses one scale for an array; smaller blocks follow its layers' spread."""

    block: int = setting(512, "values that share a scale", at_least=1)
    rounding: Literal["nearest", "stochastic"] = setting("nearest", "stochastic: without bias")
