"""Trials of `suite tune`, and the recipe with the evidence that they become."""
