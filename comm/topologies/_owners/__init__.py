"""Exchanges between owners of rows, which topologies are made of."""
