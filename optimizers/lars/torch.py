"""LARS in torch."""

from suite.optimizers._rules.torch import FirstOrder
from suite.optimizers.lars import RULE, Settings


class LARS(FirstOrder[Settings], rule=RULE):
    """Momentum with layer-wise rates; vectors follow plain momentum without decay."""


make = LARS
