"""LAMB in torch."""

from suite.optimizers._rules.torch import FirstOrder
from suite.optimizers.lamb import RULE, Settings


class LAMB(FirstOrder[Settings], rule=RULE):
    """Adam's direction with layer-wise rates; vectors follow Adam without decay."""


make = LAMB
