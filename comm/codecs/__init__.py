"""Codecs: one folder each; a NumPy specification and its torch and jax twins, equal byte for byte."""
