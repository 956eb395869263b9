"""Learning-rate schedules, once, in plain Python floats: both backends are handed the same numbers each step.

A schedule maps an update's number (from 0) to a factor in [0, 1]; the optimizer's `lr` is multiplied by it, and its
`momentum` as well where `momentum_follows` is set (SP-NGD, Osawa et al. 2020, eq. 24: m(e) = m0/η0 · η(e)).
Steps may be given as whole numbers or as fractions of the run.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from suite.contract import UserError


def constant(progress: float) -> float:
    """1 throughout."""
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


def staircase(progress: float, boundaries: list[float], factor: float) -> float:
    """Multiplied by `factor` at each boundary, given as fractions of the run (Goyal et al. 2017, §5.1)."""
    return factor ** sum(progress >= boundary for boundary in boundaries)


def inverse_sqrt(progress: float, warmups: float) -> float:
    """From 1 as (steps / warm-up steps)**-1/2 (Vaswani et al. 2017, eq. 3); `warmups`: its length in warm-ups."""
    return (1.0 + progress * warmups) ** -0.5


def exponential(progress: float, factor: float) -> float:
    """From 1 to `factor`, by an equal share at every step."""
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


def factor(step: int, total: int, config: Mapping[str, Any]) -> float:
    """The learning rate's factor at update `step` (from 0) of `total`.

    Args:
        step: updates made so far.
        total: updates in the whole run.
        config: `shape`, its options (`power`, `boundaries`, `factor`), `warmup` (steps of linear or `warmup_power`
            rise from `warmup_start`), `begin` and `end`: the steps between which the shape runs from 0 to 1 (`end`
            may lie beyond the run, as in SP-NGD's table 2), `floor`: the smallest factor.

    Raises:
        UserError: for an unknown shape.
    """
    if config["shape"] not in SHAPES:
        raise UserError(f"schedule.shape={config['shape']}: unknown; one of {', '.join(SHAPES)}")
    warmup = config.get("warmup", 0)
    if step < warmup:
        start = config.get("warmup_start", 0.0)
        return start + (1.0 - start) * ((step + 1) / warmup) ** config.get("warmup_power", 1.0)
    begin, end = config.get("begin", warmup), config.get("end") or total
    progress = min(max((step - begin) / max(end - begin, 1), 0.0), 1.0)
    shape = SHAPES[config["shape"]]
    given = {**config, "warmups": (end - begin) / max(warmup, 1)}
    options = {name: given[name] for name in inspect.signature(shape).parameters if name in given}
    return max(shape(progress, **options), config.get("floor", 0.0))


def hyper(
    step: int, total: int, config: Mapping[str, Any], optimizer: Mapping[str, Any], rate: float = 1.0
) -> dict[str, float]:
    """The scheduled hyper-parameters of update `step`: `lr`, `rate` times it, and `momentum` where one follows.

    Raises:
        UserError: for a momentum that should follow and is not there, and as `factor`.
    """
    if config.get("momentum_follows") and "momentum" not in optimizer:
        raise UserError(
            f"schedule.momentum_follows=true: optimizer={optimizer.get('name')} has no momentum; "
            "type schedule.momentum_follows=false"
        )
    scale = factor(step, total, config)
    found = {"lr": float(optimizer["lr"]) * scale * rate}
    follows = config.get("momentum_follows") and optimizer["momentum"]  # of 0 an optimizer may hold none
    return found | ({"momentum": float(optimizer["momentum"]) * scale} if follows else {})
