"""LAMB in jax."""

from suite.optimizers._rules.jax import define
from suite.optimizers.lamb import RULE

lamb = make = define(RULE, "Adam's direction with layer-wise rates; vectors follow Adam without decay.")
