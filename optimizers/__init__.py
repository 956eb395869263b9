"""Optimizers: one folder each, with its specification and its torch and jax implementations."""
