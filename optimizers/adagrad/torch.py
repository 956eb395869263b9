"""AdaGrad in torch."""

from suite.optimizers._rules.torch import FirstOrder
from suite.optimizers.adagrad import RULE, Settings


class Adagrad(FirstOrder[Settings], rule=RULE):
    """Diagonal AdaGrad; a sparse gradient changes only its rows, unless there is momentum or decay."""


make = Adagrad
