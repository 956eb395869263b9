"""Projected step time on absent devices: closed forms for collectives, and a timeline for overlap.

`network.py` describes a network, `cost.py` computes the time of each collective on it, `timeline.py` schedules
communication and computation, and `fit.py` fits a network's latency and bandwidth to measured times.
`suite.projection.project` takes the inputs from a run's configuration. `suite.studies.fits` compares projections with
published times.
"""
