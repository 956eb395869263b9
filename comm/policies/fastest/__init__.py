"""For each kind of layer, whatever exchanges its gradients in the least time, measured once before the first step.

On the AdaPrec poster's network this chose table-1 for fully connected layers, 8-bit floats for convolutions, and
float32 for biases; `comm=layerwise` is that choice, fixed.
"""

from collections.abc import Generator, Sequence
from typing import Any

from suite.comm.policies._policy import Commit, Measure, Situation

SUMMARY = "for each kind of layer the fastest exchange, measured at the start"
CITATION = "Oyama et al., AdaPrec (poster)"


def decide(
    candidates: Sequence[str], kinds: Sequence[str], situation: Situation, *, repeats: int
) -> Generator[Any, Any, None]:
    """Decide once.

    Args:
        candidates: modes to choose from.
        kinds: kinds of the model's parameters.
        situation: not looked at.
        repeats: exchanges of which the median counts.
    """
    seconds: dict[str, dict[str, float]] = {}
    for kind in kinds:
        seconds[kind] = {}
        for mode in candidates:
            seconds[kind][mode] = yield Measure(mode, kind, repeats)
    yield Commit({kind: min(found, key=lambda mode: found[mode]) for kind, found in seconds.items()}, None, seconds)
