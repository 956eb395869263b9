"""Hydra configuration: one file per member, in groups."""
