"""The largest error of the projection at published step times that were not fitted (docs/projection.md)."""

from typing import Literal

from suite.studies import fits


def measure(seed: int, *, figure: Literal["figure-5", "ablation"], most_fitted: int = fits.FITTED) -> float:
    """The largest |predicted / published - 1|.

    Args:
        seed: unused; the projection has no random numbers.
        figure: figure 5 of SP-NGD (Osawa et al. 2020), or the ablation of Ueno et al. (2020).
        most_fitted: of figure 5, the most devices whose published times are fitted.
    """
    points = fits.scaling(most_fitted) if figure == "figure-5" else fits.ablation()
    return max(abs(point.error) for point in points if not point.fitted)
