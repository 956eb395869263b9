"""What a step would take on devices that are not here: closed forms for collectives, and a timeline for what overlaps.

`network.py` describes a network, `cost.py` says what each collective takes on it, `timeline.py` sets communication
beside computation, `fit.py` finds a network's numbers from measured times. `suite.projection` fills them from a run's
configuration; `suite.fits` holds them to published times.
"""
