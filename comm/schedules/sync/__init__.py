"""Gradients travel when the backward pass is over."""

SUMMARY = "after the backward pass"
CITATION = ""
REMEMBERS = False  # keeps nothing from step to step
