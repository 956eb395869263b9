"""Launches runs: makes the run directory, starts the ranks, connects them, and ends them together."""
