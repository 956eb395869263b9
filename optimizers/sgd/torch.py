"""SGD in torch."""

from suite.optimizers._rules.torch import FirstOrder
from suite.optimizers.sgd import RULE, Settings


class SGD(FirstOrder[Settings], rule=RULE):
    """Gradient descent with momentum; decay spares vectors."""


make = SGD
