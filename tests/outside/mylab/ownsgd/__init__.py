"""The frameworks' own SGD with momentum: what a step is compared with, instead of the suite's."""

SUMMARY, CITATION, NEEDS = "torch.optim.SGD, optax.trace", "", ()
