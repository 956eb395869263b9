"""SM3 in torch."""

from suite.optimizers._rules.torch import FirstOrder
from suite.optimizers.sm3 import RULE, Settings


class SM3(FirstOrder[Settings], rule=RULE):
    """AdaGrad with one number for each slice; the rule is in the package's docstring.

    `state[parameter]["covers"]` holds μ: one tensor for each axis, with the parameter's length along this axis and 1
    along the others.
    """


make = SM3
