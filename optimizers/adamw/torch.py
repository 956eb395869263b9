"""AdamW in torch."""

from suite.optimizers._rules.torch import FirstOrder
from suite.optimizers.adamw import RULE, Settings


class AdamW(FirstOrder[Settings], rule=RULE):
    """Adam with decoupled weight decay; decay spares vectors."""


make = AdamW
