"""Schedules: send gradients after the backward pass, during it, or during the next step. One folder each."""
