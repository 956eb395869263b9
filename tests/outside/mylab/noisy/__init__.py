"""Gradient descent with the forward pass at perturbed weights, as variational methods do it."""

SUMMARY, CITATION = "an optimizer outside the tree", ""
NEEDS = ("forward_params",)
DEVIATION = 0.01
