"""Settings of the policy projected; conf/comm has presets of it."""

from suite.declared import Declared, setting


class Settings(Declared):
    """bits: excludes table-1 alone among the presets."""

    bits: float = setting(8, "least bits per value of a candidate", at_least=0)
    error: float | None = setting(None, "largest relative error that a codec may declare; null: any", at_least=0)
    by_kind: bool = setting(True, "choose for each kind of layer, or once for all")
    repeats: int = setting(5, "measurements of each codec; the median counts", at_least=1)
