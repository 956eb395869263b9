"""Composes a run's configuration from the overrides that a user types, and checks it."""
