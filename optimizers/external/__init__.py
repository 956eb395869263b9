"""Any gradient-only optimizer from outside: a `torch.optim.Optimizer` class or an optax transformation.

`optimizer.torch` and `optimizer.jax` are dotted paths; `optimizer.arguments` are what the chosen backend's is called
with beside the parameters and the learning rate, which the run's schedule sets at every step (torch: `lr`; optax:
`learning_rate`). `optimizer.path` is a folder to import it from. Optimizers that need more than the gradient are not
supported: a closure (LBFGS, SAM), the loss's value (Polyak steps). kfac-jax, which traces the loss, has an adapter in
`kfac_jax/`. Methods that switch between training and evaluation (schedule-free ones) are not supported either, but they
cannot be detected: they run, and are evaluated at the wrong weights. The optimizer's state is saved with a run where it
consists of arrays, numbers and strings.
"""

SUMMARY = "a torch.optim class or optax transformation named by its dotted path (optimizer.torch, optimizer.jax)"
CITATION = ""
NEEDS = ()
