"""SGD with momentum of the frameworks: steps are compared with it instead of the suite's SGD."""

SUMMARY, CITATION, NEEDS = "torch.optim.SGD, optax.trace", "", ()
