"""Learning-rate schedules in Python floats. Both backends receive the same numbers in each step.

A schedule maps an update's number (from 0) to a factor in [0, 1]. The optimizer's `lr` is multiplied by it, and with
`momentum_follows` also its `momentum` (SP-NGD, Osawa et al. 2020, eq. 24: m(e) = m0/η0 · η(e)).
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import overload

from suite.contract import UserError
from suite.nodes import OptimizerSettings
from suite.settings.schedule import ScheduleSettings


def constant() -> float:
    """Return 1."""
    return 1.0


def linear(progress: float) -> float:
    """From 1 to 0 in a straight line."""
    return 1.0 - progress


def cosine(progress: float) -> float:
    """From 1 to 0 along half a cosine (Loshchilov and Hutter 2017, eq. 5 without restarts)."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def polynomial(progress: float, power: float) -> float:
    """From 1 to 0 as (1 - progress)**power (SP-NGD eq. 23; power 2 in MLPerf's ResNet-50)."""
    return (1.0 - progress) ** power


def staircase(boundaries: Sequence[float], factor: float) -> float:
    """From 1, multiplied by `factor` at each boundary (Goyal et al. 2017, §5.1); `boundaries` are those passed."""
    return factor ** len(boundaries)


def inverse_sqrt(progress: float, warmups: float) -> float:
    """From 1 as (steps / warm-up steps)**-1/2 (Vaswani et al. 2017, eq. 3); `warmups` is its length in warm-ups."""
    return (1.0 + progress * warmups) ** -0.5


def exponential(progress: float, factor: float) -> float:
    """From 1 to `factor`, by the same ratio at every step."""
    return factor**progress


SHAPES: Mapping[str, Callable[..., float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "polynomial": polynomial,
    "staircase": staircase,
    "exponential": exponential,
    "inverse_sqrt": inverse_sqrt,
}


def count_steps(share: float, total: int) -> int:
    """Return the number of steps in a share of a run, to the nearest: 0.6666667 of 14,076 steps are 9,384."""
    return round(share * total)


def compute_factor(step: int, total: int, schedule: ScheduleSettings) -> float:
    """Return the factor of the learning rate at update `step` (from 0) of `total`.

    Args:
        step: updates made so far.
        total: updates in the whole run.
        schedule: the run's schedule.

    Raises:
        UserError: the shape lacks an option.
    """
    warmup = count_steps(schedule.warmup, total) if 0 < schedule.warmup < 1 else schedule.warmup
    begin, end = warmup if schedule.begin is None else schedule.begin, schedule.end or total
    # a run that ends within its warm-up never reaches the shape; a search cuts such runs short
    if schedule.end is not None and end <= begin < total and "end" not in list_unread(schedule.shape):
        raise UserError(f"schedule.end={end:g}: must be after the warm-up of {begin:g} steps")
    progress = min(max((step - begin) / max(end - begin, 1), 0.0), 1.0)
    values = {**dict(schedule), "progress": progress, "warmups": (end - begin) / max(warmup, 1)}
    if schedule.boundaries is not None:
        values["boundaries"] = [share for share in schedule.boundaries if step >= count_steps(share, int(end))]
    options = {name: values[name] for name in inspect.signature(SHAPES[schedule.shape]).parameters}
    if absent := [name for name, value in options.items() if value is None]:
        raise UserError(f"schedule.shape={schedule.shape}: needs {absent[0]}; set schedule.{absent[0]}=VALUE")
    if step < warmup:
        start = schedule.warmup_start  # a length of 2.5 steps ends within the third
        return start + (1.0 - start) * min((step + 1) / warmup, 1.0) ** schedule.warmup_power
    return max(SHAPES[schedule.shape](**options), schedule.floor)


def list_unread(shape: str) -> list[str]:
    """List the settings of a schedule that a shape does not read."""
    read = set(inspect.signature(SHAPES[shape]).parameters)
    read |= {"begin", "end"} if "progress" in read else {"end"} if "boundaries" in read else set()
    return [name for name in ("power", "boundaries", "factor", "begin", "end") if name not in read]


def schedule_values(
    step: int, total: int, schedule: ScheduleSettings, optimizer: OptimizerSettings, rate: float = 1.0
) -> dict[str, float]:
    """Return the scheduled hyper-parameters of update `step`: `lr`, and `momentum` with `momentum_follows`.

    Args:
        step: updates made so far.
        total: updates in the whole run.
        schedule: the run's schedule.
        optimizer: the optimizer's settings.
        rate: a further factor of the learning rate.

    Raises:
        UserError: `momentum_follows` is set and the optimizer has no momentum, or the factor makes it larger than 1;
            also as in `compute_factor`.
    """
    values = optimizer.options()
    if schedule.momentum_follows and "momentum" not in values:
        raise UserError(
            f"schedule.momentum_follows=true: optimizer={optimizer.name} has no momentum; "
            "set schedule.momentum_follows=false"
        )
    scale = compute_factor(step, total, schedule)
    scheduled = {"lr": float(values["lr"]) * scale * rate}
    if not schedule.momentum_follows or not values["momentum"]:  # with 0, an optimizer may have no velocity
        return scheduled
    momentum = float(values["momentum"]) * scale
    if momentum > 1:
        raise UserError(
            f"schedule.momentum_follows=true: the momentum of step {step + 1} would be {momentum:g}, more than 1; set "
            f"schedule.momentum_follows=false, or factors up to {1 / float(values['momentum']):.4g}"
        )
    return scheduled | {"momentum": momentum}


class Scheduled(Sequence[dict[str, float]]):
    """Scheduled hyper-parameters of every update, computed on access because a run may have millions.

    Args:
        total: updates in the whole run.
        schedule: the run's schedule.
        optimizer: the optimizer's settings.
        rate: as in `schedule_values`.
    """

    def __init__(self, total: int, schedule: ScheduleSettings, optimizer: OptimizerSettings, rate: float = 1.0) -> None:
        self._total, self._schedule, self._optimizer, self._rate = total, schedule, optimizer, rate

    def __len__(self) -> int:
        return self._total

    @overload
    def __getitem__(self, step: int) -> dict[str, float]: ...
    @overload
    def __getitem__(self, step: slice) -> list[dict[str, float]]: ...
    def __getitem__(self, step: int | slice) -> dict[str, float] | list[dict[str, float]]:
        if isinstance(step, slice):
            return [self[number] for number in range(self._total)[step]]
        return schedule_values(range(self._total)[step], self._total, self._schedule, self._optimizer, self._rate)
