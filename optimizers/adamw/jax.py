"""AdamW in jax."""

from suite.optimizers._rules.jax import define
from suite.optimizers.adamw import RULE

adamw = make = define(RULE, "Adam with decoupled weight decay; decay spares vectors.")
