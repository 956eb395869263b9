"""What optimizers are made of, in torch and in jax."""
