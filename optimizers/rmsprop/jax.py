"""RMSProp in jax."""

from suite.optimizers._rules.jax import define
from suite.optimizers.rmsprop import RULE

rmsprop = make = define(RULE, "Gradients divided by the root of their squares' recent average.")
