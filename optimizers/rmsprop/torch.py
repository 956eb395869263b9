"""RMSProp in torch."""

from suite.optimizers._rules.torch import FirstOrder
from suite.optimizers.rmsprop import RULE, Settings


class RMSprop(FirstOrder[Settings], rule=RULE):
    """Gradients divided by the root of their squares' recent average."""


make = RMSprop
