"""Files of a run: the event log, the result computed from it, and the description of the environment."""
