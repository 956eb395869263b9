"""AdaGrad in jax."""

from suite.optimizers._rules.jax import define
from suite.optimizers.adagrad import RULE

adagrad = make = define(
    RULE, "Diagonal AdaGrad; a gradient by rows changes only these rows, unless there is momentum or decay."
)
