"""Shot-level metrics of alarms, in two protocols: FRNN's (Kates-Harbeck et al. 2019) and DisruptionBench's.

An output is one number per time step, which is larger if a disruption is more likely. An alarm is raised at the first
step whose output exceeds the threshold. Its outcome depends on the time until the end of a disruptive shot.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Peaks:
    """The largest output in each region of each shot; thresholds are compared with these.

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


@dataclass(frozen=True)
class Alarm:
    """A shot's alarm: index of the step and seconds until the disruption; None and nan without an alarm."""

    step: int | None
    warning: float = np.nan


def find_alarm(
    output: np.ndarray, until: np.ndarray, *, high: float, low: float, hysteresis: int = 0, useful: float
) -> Alarm:
    """DisruptionBench's rule for one shot: two thresholds with hysteresis (Spangher et al. 2024).

    A counter increases at each step at or above `high`, and is reset to 0 below `low`; the alarm is raised when it
    exceeds `hysteresis`. Steps less than `useful` seconds before the disruption are ignored. The public code ignores
    every step of a shot without a disruption (it compares with nan) and divides the step by the hysteresis instead of
    the inverse; this function follows the paper's text.

    Args:
        output: (steps,) scores.
        until: (steps,) seconds until the disruption, nan without one.
        high: upper threshold.
        low: lower threshold, at most `high`.
        hysteresis: steps above the upper threshold before the alarm.
        useful: least seconds between an alarm and the disruption.
    """
    count = 0
    for step in np.flatnonzero(~(until < useful)):
        if output[step] >= high:
            count += 1
        elif output[step] < low:
            count = 0
        if count > hysteresis:
            return Alarm(int(step), float(until[step]))
    return Alarm(None)


def score_alarms(alarms: Sequence[Alarm], disrupted: Sequence[bool]) -> dict[str, float]:
    """True- and false-positive rate, precision, F1 and F2 over shots, from their alarms."""
    raised, disruptive = np.array([alarm.step is not None for alarm in alarms]), np.asarray(disrupted, bool)
    hits, misses, false = (raised & disruptive).sum(), (~raised & disruptive).sum(), (raised & ~disruptive).sum()
    scores = {
        f"f{beta}": (1 + beta**2) * hits / max((1 + beta**2) * hits + beta**2 * misses + false, 1) for beta in (1, 2)
    }
    rates = {
        "tpr": hits / max(disruptive.sum(), 1),
        "fpr": false / max((~disruptive).sum(), 1),
        "precision": hits / max(hits + false, 1),
    }
    return {name: float(value) for name, value in (rates | scores).items()}


def warning_curve(alarms: Sequence[Alarm], disrupted: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    """Warning times of the predicted disruptions, longest first, and the share predicted by then.

    Returns:
        Seconds (hits,), and shares of all disruptive shots (hits,).
    """
    pairs = zip(alarms, disrupted, strict=True)
    times = np.array([alarm.warning for alarm, disruptive in pairs if disruptive and alarm.step is not None])
    return np.sort(times)[::-1], np.arange(1, len(times) + 1) / max(sum(map(bool, disrupted)), 1)


def first_crossing_area(
    outputs: Sequence[np.ndarray], untils: Sequence[np.ndarray], disrupted: Sequence[bool], *, useful: float
) -> float:
    """DisruptionBench's AUC (after Zhu et al. 2021): the first crossing must come more than `useful` seconds before.

    The first crossing is in time if and only if the largest output before that moment exceeds the threshold. This is
    therefore FRNN's area with a deadline in seconds, no ignored steps and no early region.
    """
    before = [
        np.asarray(output)[until > useful].max(initial=-np.inf) if disruptive else -np.inf
        for output, until, disruptive in zip(outputs, untils, disrupted, strict=True)
    ]
    peak = np.array([np.max(output) for output in outputs])
    timely, ends = np.asarray(before), np.asarray(disrupted, bool)
    never = np.full(ends.sum(), -np.inf)
    return Peaks(early=never, correct=timely[ends], late=peak[ends], quiet=peak[~ends]).area()
