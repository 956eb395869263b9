"""LARS in jax."""

from suite.optimizers._rules.jax import define
from suite.optimizers.lars import RULE

lars = make = define(RULE, "Momentum with layer-wise rates; vectors follow plain momentum without decay.")
