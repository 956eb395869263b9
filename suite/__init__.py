"""A reproducibility benchmark suite for large-scale training, in PyTorch and in JAX."""

__version__ = "0.1.0"
