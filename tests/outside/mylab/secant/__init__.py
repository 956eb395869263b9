"""A diagonal quasi-Newton toy: a second gradient at the new weights, and a scale that a host thread computes two steps
behind."""

SUMMARY, CITATION = "an optimizer outside the tree", ""
NEEDS = ("evaluate", "reduce", "host")
INTERVAL, LAG = 3, 2


def scale(curvature):
    """Return the number that the host computes from all curvatures."""
    return 1.0 / (1.0 + sum(float(abs(value).mean()) for value in curvature.values()))
