"""For each kind of layer, the fastest gradient exchange, measured once before the first step.

On the AdaPrec poster's network this chose table-1 for fully connected layers, 8-bit floats for convolutions, and
float32 for biases; `comm=layerwise` is that choice, fixed.

The candidates are measured in turns, so that a temporary load on the machine affects all of them. The first candidate
is kept unless another one's median is smaller by more than `MARGIN` standard deviations.
"""

import statistics
from collections.abc import Generator, Sequence
from typing import Any

from suite.comm.policies._policy import Commit, Estimate, Measure, Situation, choose_smallest
from suite.contract import UserError
from suite.declared import Declared, setting

SUMMARY = "the fastest exchange for each kind of layer, measured before the first step"
CITATION = "Oyama et al., AdaPrec (poster)"
READS = ()  # keys of the configuration that the policy uses beside its options


class Settings(Declared):
    """repeats: our choice."""

    repeats: int = setting(7, "measured exchanges of each candidate; the median is used", at_least=2)


DEFAULTS = Settings()


def decide(
    candidates: Sequence[str], kinds: Sequence[str], situation: Situation, *, repeats: int = DEFAULTS.repeats
) -> Generator[Measure | Commit, Any, None]:
    """Decide once.

    Args:
        candidates: modes to choose from.
        kinds: kinds of the model's parameters.
        situation: not used.
        repeats: number of measured exchanges of each candidate, at least 2; the median is used.

    Returns:
        The generator of the policy's requests and decision.

    Raises:
        UserError: if `repeats` is less than 2.
    """
    if repeats < 2:
        raise UserError(f"comm.policy.repeats={repeats}: one measurement has no spread; set 2 or more")
    return _decide(candidates, kinds, repeats)


def _decide(candidates: Sequence[str], kinds: Sequence[str], repeats: int) -> Generator[Measure | Commit, Any, None]:
    chosen: dict[str, str] = {}
    why: dict[str, dict[str, dict[str, float]]] = {}
    for kind in kinds:
        seconds: dict[str, list[float]] = {mode: [] for mode in candidates}
        for _ in range(repeats):
            for mode in candidates:
                seconds[mode].append((yield Measure(mode, kind, 1)))
        estimates = {mode: Estimate(statistics.median(s), statistics.stdev(s)) for mode, s in seconds.items()}
        chosen[kind] = choose_smallest(estimates)
        why[kind] = {mode: {"seconds": time.value, "spread": time.spread} for mode, time in estimates.items()}
    yield Commit(chosen, None, why)
