"""Performance profiles: how methods compare over several tasks.

A task's best method has ratio 1; the ratio of another method is its time divided by the best one's. The profile of a
method is the share of tasks on which its ratio is at most tau (Dolan and Moré, "Benchmarking optimization software with
performance profiles", Mathematical Programming 91 (2002)). Its score is the mean of the profile over tau from 1 to 4,
as in AlgoPerf (Dahl et al., "Benchmarking Neural Network Training Algorithms", 2023).

A missed target is never solved, at any tau. A method that was not run on a task is not scored on it. Its profile then
covers fewer tasks than others, and names the missing ones: compare it only with methods that have the same tasks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TAU_MAX = 4.0  # as in AlgoPerf


@dataclass(frozen=True)
class Profile:
    """One method over all tasks.

    Attributes:
        ratios: by task, time divided by the best method's; infinite if the target was missed.
        score: mean of the profile over tau from 1 to `tau_max`, from 0 to 1; None if the method was run on no task.
    """

    ratios: Mapping[str, float]
    score: float | None

    def share(self, tau: float) -> float:
        """Return the share of this method's tasks with a ratio of at most tau.

        Raises:
            ValueError: if the method was run on no task.
        """
        if not self.ratios:
            raise ValueError("the method was run on no task")
        return sum(ratio <= tau and math.isfinite(ratio) for ratio in self.ratios.values()) / len(self.ratios)

    def points(self, tau_max: float = TAU_MAX) -> list[tuple[float, float]]:
        """Return the corners of the profile as (tau, share), for a figure with steps."""
        taus = sorted({1.0, tau_max} | {ratio for ratio in self.ratios.values() if ratio <= tau_max})
        return [(tau, self.share(tau)) for tau in taus]


def compute_profiles(times: Mapping[str, Mapping[str, float | None]], tau_max: float = TAU_MAX) -> dict[str, Profile]:
    """Compute the profile of every method.

    Args:
        times: by method and task, the steps (or seconds) of the median seed to the target. None or infinity: the
            median seed missed the target. Tasks without runs are absent.
        tau_max: the upper end of the score's integral, above 1.

    Returns:
        The profiles, by method. A task whose target every method missed counts, as unsolved.

    Raises:
        ValueError: if a time is not positive, or tau_max is not above 1.
    """
    if tau_max <= 1:
        raise ValueError(f"tau_max must be above 1, not {tau_max:g}")
    spent = {
        method: {task: math.inf if time is None else float(time) for task, time in tasks.items()}
        for method, tasks in times.items()
    }
    if any(not time > 0 for tasks in spent.values() for time in tasks.values()):
        raise ValueError("times must be positive")
    names = sorted({task for tasks in spent.values() for task in tasks})
    best = {task: min(tasks[task] for tasks in spent.values() if task in tasks) for task in names}
    return {method: _profile(tasks, best, names, tau_max) for method, tasks in spent.items()}


def _profile(tasks: Mapping[str, float], best: Mapping[str, float], names: Sequence[str], tau_max: float) -> Profile:
    ratios = {
        task: math.inf if math.isinf(tasks[task]) else tasks[task] / best[task] for task in names if task in tasks
    }
    # the mean over tau of the indicator that a ratio is at most tau
    solved = [max(0.0, tau_max - ratio) / (tau_max - 1) for ratio in ratios.values()]
    return Profile(ratios, sum(solved) / len(solved) if solved else None)
