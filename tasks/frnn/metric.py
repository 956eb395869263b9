"""Shot-level metrics of alarms, after FRNN (Kates-Harbeck et al. 2019).

An output is one number per time step, which is larger if a disruption is more likely. An alarm is raised at the first
step whose output exceeds the threshold. Its outcome depends on the time until the end of a disruptive shot.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Peaks:
    """Largest output in each region of each shot; thresholds are compared with these.

    Attributes:
        early: (disruptive shots,) more than the warning time before the end; -inf where the region is empty.
        correct: (disruptive shots,) between early and late.
        late: (disruptive shots,) in the last `deadline`.
        quiet: (other shots,) in the whole shot.
    """

    early: np.ndarray
    correct: np.ndarray
    late: np.ndarray
    quiet: np.ndarray

    def rates(self, threshold: float) -> dict[str, float]:
        """Return the outcomes at a threshold, as shares of the disruptive shots; `false` as a share of the other shots.

        A shot counts once, by its first alarm: `early`, `correct`, `late`, or `none`. Early alarms are counted
        separately: they are neither correct nor missed. `missed` = `late` + `none`; the true-positive rate is
        1 - `missed`.
        """
        early = self.early > threshold
        correct = ~early & (self.correct > threshold)
        late = ~early & ~correct & (self.late > threshold)
        shares = {"early": early, "correct": correct, "late": late, "none": ~(early | correct | late)}
        rates = {name: float(share.mean()) for name, share in shares.items()}
        return rates | {"missed": rates["late"] + rates["none"], "false": float((self.quiet > threshold).mean())}

    def curve(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ROC curve: false-positive rates, true-positive rates and thresholds, from (0, 0) to (1, 1).

        The thresholds are the values that occur. The two ends of the curve are added, because the thresholds may not
        reach them, and the area under an incomplete curve is too small.
        """
        alarm = np.maximum(self.early, self.correct)
        occurring = np.unique(np.concatenate([alarm, self.late, self.quiet]))
        thresholds = np.concatenate([[np.inf], occurring[::-1]])
        false, true = _share_above(self.quiet, thresholds), _share_above(alarm, thresholds)
        return np.append(false, 1.0), np.append(true, 1.0), np.append(thresholds, -np.inf)

    def area(self) -> float:
        """Area under the ROC curve, by trapezoids."""
        false, true, _ = self.curve()
        return float(np.trapezoid(true, false))

    def best(self) -> float:
        """Return the threshold with the largest difference of true- and false-positive rate (Youden 1950)."""
        false, true, thresholds = self.curve()
        return float(thresholds[1:-1][(true - false)[1:-1].argmax()])


def _share_above(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    return 1.0 - np.searchsorted(np.sort(values), thresholds, side="right") / len(values)


def collect_peaks(
    outputs: Sequence[np.ndarray],
    disrupted: Sequence[bool] | np.ndarray,
    *,
    deadline: int,
    warning: int,
    ignore: int = 0,
) -> Peaks:
    """Return the largest outputs of each shot by region.

    Args:
        outputs: (steps,) of each shot, the last step of a disruptive one at the disruption.
        disrupted: whether each shot ends in a disruption.
        deadline: steps before the end in which an alarm comes too late (FRNN: 30 ms).
        warning: steps before the end at which the early region ends (FRNN: 1.024 s); at least `deadline`.
        ignore: steps at the start of a shot at which no alarm is raised (FRNN: 100 ms).
    """
    regions: dict[str, list[float]] = {"early": [], "correct": [], "late": [], "quiet": []}
    for output, disruptive in zip(outputs, disrupted, strict=True):
        values = np.asarray(output, np.float64).copy()
        values[:ignore] = -np.inf
        size = len(values)
        if not disruptive:
            regions["quiet"].append(values.max())
            continue
        last, first = max(size - deadline, 0), max(size - warning, 0)
        for name, part in (("early", values[:first]), ("correct", values[first:last]), ("late", values[last:])):
            regions[name].append(part.max(initial=-np.inf))
    return Peaks(**{name: np.array(largest) for name, largest in regions.items()})
