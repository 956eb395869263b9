"""Training loop with its clock, schedules, checkpoints and weights, without any framework."""
