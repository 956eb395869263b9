"""Simulated ladders for the study of ranks: runs of several rows, as evaluations show them.

The logarithm of a row's steps is that of its ratio plus noise. Both frameworks of a seed share most of their noise. A
crossing is seen at the next evaluation; a run that needs more than the budget misses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
NEVER = math.inf


@dataclass(frozen=True)
class Ladder:
    """How runs are drawn.

    Attributes:
        ratios: of the rows' steps to those of the first row; infinite for a row that never arrives.
        noise: distribution of the noise, with mean 0 and a standard deviation of 1.
        spread: standard deviation of the logarithm of a row's steps.
        spreads: multiples of it, by row; all 1 if empty.
        evaluations: until the first row's target.
        budget: as a multiple of the first row's steps.
        seed_effect: noise that all rows of a seed share, in spreads.
        diverging: share of runs that never arrive.
        shared: share of the seeds in which the first two rows have equal noise.
        late: share of the first row's seeds that are late by four spreads; its mean stays.
    """

    ratios: tuple[float, ...]
    noise: str = "normal"
    spread: float = 0.12
    spreads: tuple[float, ...] = ()
    evaluations: int = 10
    budget: float = 4.0
    seed_effect: float = 0.0
    diverging: float = 0.0
    shared: float = 0.0
    late: float = 0.0


def draw_noise(name: str, rng: np.random.Generator, shape: Sequence[int]) -> Floats:
    """Draw noise with mean 0 and a standard deviation of 1."""
    normal = rng.standard_normal(shape)
    if name == "t with 3 degrees of freedom":
        return rng.standard_t(3, shape) / math.sqrt(3)
    if name == "skewed":
        drawn = np.exp(0.5 * normal)
        return (drawn - math.exp(0.125)) / math.sqrt((math.exp(0.25) - 1) * math.exp(0.25))
    if name == "bimodal":
        return (rng.choice([-1.0, 1.0], shape) + 0.2 * normal) / math.sqrt(1.04)
    if name == "one seed in five is late":
        return (0.5 * normal + 3 * (rng.random(shape) < 0.2) - 0.6) / math.sqrt(0.25 + 9 * 0.16)
    return normal


def draw_values(ladder: Ladder, seeds: int, rng: np.random.Generator) -> Floats:
    """Draw one ladder: the logarithm of the evaluation that saw the target, the mean over two frameworks.

    Args:
        ladder: how.
        seeds: number of them.
        rng: random numbers.

    Returns:
        Of shape (seeds, rows).
    """
    rows = len(ladder.ratios)
    common = rng.random((seeds, 2, rows)) < 0.6  # of the frameworks
    both = draw_noise(ladder.noise, rng, (seeds, 1, rows))
    noise = np.where(common, both, draw_noise(ladder.noise, rng, (seeds, 2, rows)))
    if ladder.shared:
        noise[..., 1] = np.where(rng.random((seeds, 1)) < ladder.shared, noise[..., 0], noise[..., 1])
    if ladder.late:
        noise[..., 0] = 0.3 * noise[..., 0] + 4 * ((rng.random((seeds, 1)) < ladder.late) - ladder.late)
    noise = noise * (ladder.spreads or 1.0) + ladder.seed_effect * rng.standard_normal((seeds, 1, 1))
    first = ladder.evaluations - rng.random()  # where between two evaluations the first row's target lies
    steps = first * np.array(ladder.ratios) * np.exp(ladder.spread * noise)
    steps = np.where(rng.random(steps.shape) < ladder.diverging, NEVER, steps)
    seen = np.minimum(np.ceil(steps), math.ceil(ladder.evaluations * ladder.budget) + 1)
    return np.log(seen).mean(axis=1)


def list_nulls(rows: int) -> dict[str, Ladder]:
    """Return ladders with equal rows, by name. Any claim between rows with equal ratios is wrong."""
    equal = (1.0,) * rows
    slower, never = (1.0, 1.0, *[1.5] * (rows - 2)), (1.0, 1.0, *[NEVER] * (rows - 2))
    nulls: dict[str, Ladder] = {}
    noises = ("normal", "t with 3 degrees of freedom", "skewed", "bimodal", "one seed in five is late")
    for noise in noises:
        nulls[f"all equal, {noise}"] = Ladder(equal, noise)
        if noise != noises[1]:
            nulls[f"two equal, the others slower, {noise}"] = Ladder(slower, noise)
            nulls[f"two equal, the others never arrive, {noise}"] = Ladder(never, noise)
    wide = tuple(1.0 if row % 2 else 4.0 for row in range(rows))
    nulls |= {
        "all equal, seeds differ by three spreads": Ladder(equal, seed_effect=3.0),
        "equal in pairs": Ladder(tuple(1.5 ** (row // 2) for row in range(rows))),
        "all equal, spreads 1 and 4": Ladder(equal, spread=0.06, spreads=wide),
        "two equal with spreads 1 and 4": Ladder(never, spread=0.06, spreads=(1.0, 4.0, *[1.0] * (rows - 2))),
        "all equal, one row five times as noisy": Ladder(equal, spread=0.05, spreads=(5.0, *[1.0] * (rows - 1))),
        "all equal, evaluations four spreads apart": Ladder(equal, spread=0.03, evaluations=8),
        "two equal, evaluations eight spreads apart": Ladder(never, spread=0.03, evaluations=4),
        "all equal, one run in eight diverges": Ladder(equal, diverging=0.125),
        "two equal, one run in eight diverges": Ladder(never, diverging=0.125),
        "two equal rows that share their noise": Ladder(equal, shared=0.95),
    }
    for budget in (1.15, 1.03, 0.98):
        nulls[f"all equal, budget {budget}"] = Ladder(equal, budget=budget)
        nulls[f"two equal, the others never arrive, budget {budget}"] = Ladder(never, budget=budget)
    return nulls


def list_unequal_shapes(rows: int) -> dict[str, Ladder]:
    """Return ladders outside the assumptions: the first two rows have equal means, and the first one has late seeds."""
    never = (1.0, 1.0, *[NEVER] * (rows - 2))
    return {
        f"a row late in {late:.0%} of seeds": Ladder(never, spread=0.08, evaluations=20, late=late)
        for late in (0.2, 0.4)
    }
