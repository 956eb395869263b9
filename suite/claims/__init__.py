"""Published claims: what papers state, the runs and computations that test it, and the verdicts."""
