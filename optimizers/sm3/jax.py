"""SM3 in jax."""

from suite.optimizers._rules.jax import define
from suite.optimizers.sm3 import RULE

sm3 = make = define(RULE, "AdaGrad with one number for each slice; the rule is in the package's docstring.")
