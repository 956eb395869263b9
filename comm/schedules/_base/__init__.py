"""What the torch engine asks of a schedule; in jax a schedule is one function, `mean(reduce, grads)`."""
