"""For each kind of layer, the fastest gradient exchange by the cost model, among the candidates that are exact enough.

No steps are trained for the choice. The time of an exchange is the time of its messages and bytes on the network
(latency α, bandwidth 1 / β) plus encoding and decoding (γ, each codec's speed on this machine). The time of a step is
compute, which is the same in every mode, plus the exchanges of all kinds one after another. The fastest exchange of
each kind therefore gives the fastest step; the time that a schedule hides is ignored. The first candidate that is exact
enough is kept unless another one is faster by more than `MARGIN` standard deviations.

A candidate is exact enough if it sends at least `bits` bits per value and its codec declares an error of at most
`error`. The effect of the precision on the accuracy is not predicted; `adaprec` does that.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import asdict
from typing import Any

from suite.comm.policies._policy import Commit, Estimate, Predict, Predicted, Situation, choose_smallest
from suite.contract import UserError
from suite.declared import Declared, setting

SUMMARY = "the fastest exchange for each kind of layer by the cost model, among those exact enough"
CITATION = "costs: comm/projection/cost.py; codecs pay only on slow networks: Agarwal et al. 2022 (MLSys)"
READS = ("network",)  # keys of the configuration that the policy uses beside its options


class Settings(Declared):
    """bits: excludes table-1 alone among the presets."""

    bits: float = setting(8, "least bits per value of a candidate", at_least=0)
    error: float | None = setting(None, "largest relative error that a codec may declare; null: any", at_least=0)
    by_kind: bool = setting(True, "choose for each kind of layer, or once for all")
    repeats: int = setting(5, "measurements of each codec; the median counts", at_least=1)


DEFAULTS = Settings()


def decide(
    candidates: Sequence[str],
    kinds: Sequence[str],
    situation: Situation,
    *,
    bits: float = DEFAULTS.bits,
    error: float | None = DEFAULTS.error,
    by_kind: bool = DEFAULTS.by_kind,
    repeats: int = DEFAULTS.repeats,
) -> Generator[Predict | Commit, Any, None]:
    """Decide once.

    Args:
        candidates: modes to choose from.
        kinds: kinds of the model's parameters.
        situation: not used.
        bits: smallest number of bits per value of a candidate.
        error: largest error that a codec may declare, as a share of the values (`Predicted.error`); None: any.
        by_kind: choose for each kind; False: one mode for all kinds.
        repeats: number of measurements of each codec's speed, at least 1.

    Returns:
        The generator of the policy's requests and decision.

    Raises:
        UserError: if a number is out of its range; from the generator, if no candidate is exact enough.
    """
    if repeats < 1:
        raise UserError(f"comm.policy.repeats={repeats}: must be at least 1")
    if error is not None and error < 0:
        raise UserError(f"comm.policy.error={error}: must be at least 0, or null for any")
    return _decide(candidates, kinds, bits, error, by_kind, repeats)


def _decide(
    candidates: Sequence[str], kinds: Sequence[str], bits: float, error: float | None, by_kind: bool, repeats: int
) -> Generator[Predict | Commit, Any, None]:
    predictions: dict[str, dict[str, Predicted]] = {}
    for mode in candidates:
        predictions[mode] = {}
        for kind in kinds:
            predictions[mode][kind] = yield Predict(mode, kind, repeats)

    def enough(predicted: Predicted) -> bool:
        return predicted.bits >= bits and (error is None or predicted.error <= error)

    chosen: dict[str, str] = {}
    for group in [[kind] for kind in kinds] if by_kind else [list(kinds)]:
        times = {
            mode: Estimate(
                sum(by_kinds[kind].coding + by_kinds[kind].transfer for kind in group),
                math.hypot(*(by_kinds[kind].spread for kind in group)),
            )
            for mode, by_kinds in predictions.items()
            if all(enough(by_kinds[kind]) for kind in group)
        }
        if not times:
            raise UserError(
                f"comm.policy: no candidate has {bits:g} bits per value"
                + (f" and an error of at most {error:g}" if error is not None else "")
                + "; relax comm.policy.bits or comm.policy.error, or add float32 to comm.candidates"
            )
        chosen |= dict.fromkeys(group, choose_smallest(times))
    why = {
        mode: {kind: asdict(predicted) for kind, predicted in by_kinds.items()}
        for mode, by_kinds in predictions.items()
    }
    yield Commit(chosen, None, why)
