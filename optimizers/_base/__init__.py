"""What jax optimizers are made of."""
