"""Kernels over long arrays in torch: one part at a time, to keep intermediate values in the cache."""
