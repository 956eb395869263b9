"""Kernels over long arrays in torch: part by part, so that what is between two operations stays in the cache."""
