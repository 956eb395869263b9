"""Any gradient-only optimizer from outside: a `torch.optim.Optimizer` class or an optax transformation.

`optimizer.torch` and `optimizer.jax` are dotted paths; `optimizer.arguments` are what the chosen backend's is called
with beside the parameters and the learning rate, which the run's schedule sets at every step (torch: `lr`; optax:
`learning_rate`). `optimizer.path` is a folder to import it from. Optimizers that need more than the gradient are not
supported: a closure (LBFGS, SAM), the loss's value (Polyak steps). kfac-jax, which traces the loss, has an adapter in
`kfac_jax/`. The engine tries an optimizer before the first step, and refuses one that would not train as its package
says (`outside` in NEEDS). Methods that train at one point and are evaluated at another (schedule-free ones) are
evaluated where they say: in torch by `train()` and `eval()`, in optax by `schedule_free_eval_params`.
"""

SUMMARY = "a torch.optim class or optax transformation named by its dotted path (optimizer.torch, optimizer.jax)"
CITATION = ""
NEEDS = ("key", "model", "outside")
