"""SGD in jax."""

from suite.optimizers._rules.jax import define
from suite.optimizers.sgd import RULE

sgd = make = define(RULE, "Gradient descent with momentum; decay spares vectors.")
