"""Schedule interface of the torch engine. In jax a schedule is one function, `mean(reduce, grads)`."""
