"""How the projected step time of SP-NGD falls when devices share the inverses (Osawa et al. 2020, figure 5; CL07)."""

from suite.studies import fits


def measure(
    seed: int,
    *,
    first: int,
    last: int,
    series: str = "emp + full BN",
    most_fitted: int = fits.FITTED,
) -> float:
    """The projected time of a step on `last` devices over that on `first` devices, with an equal batch per device.

    Below 1, the throughput grows faster than the number of devices.

    Args:
        seed: unused; the projection has no random numbers.
        first: the smaller number of devices of the series.
        last: the larger one.
        series: of figure 5.
        most_fitted: the most devices whose published times are fitted.

    Raises:
        ValueError: if figure 5 has no such point.
    """
    seconds = {point.devices: point.predicted for point in fits.scaling(most_fitted) if point.what == series}
    if not {first, last} <= set(seconds):
        raise ValueError(f"{series}: figure 5 has {', '.join(map(str, seconds)) or 'no such series'} devices")
    return seconds[last] / seconds[first]
