"""For each kind of layer, the exchange that the cost model takes for the fastest of those that are exact enough.

Nothing is trained for it. The time of an exchange is that of its messages and bytes on the network (latency α,
bandwidth 1 / β) and of encoding and decoding (γ, each codec's own speed here); the time of a step is compute, the same
in every mode, and the exchanges of all kinds one after another. So the fastest exchange of each kind makes the fastest
step; what a schedule hides is not looked at. Of equally fast ones the more exact is taken.

Exact enough is a candidate with at least `bits` bits a value on the wire whose codec declares at most `error`. That is
about numbers: what the loss of precision does to the accuracy is not predicted, which only `adaprec` tries.
"""

from collections.abc import Generator, Sequence
from dataclasses import asdict
from typing import Any

from suite.comm.policies._policy import Commit, Predict, Predicted, Situation
from suite.contract import UserError

SUMMARY = "for each kind of layer the fastest exchange by the cost model, of those that are exact enough"
CITATION = "costs: comm/projection/cost.py; that codecs pay on slow networks alone: Agarwal et al. 2022 (MLSys)"
READS = ("network",)  # of a run's configuration, beside the policy's own options


def decide(
    candidates: Sequence[str],
    kinds: Sequence[str],
    situation: Situation,
    *,
    bits: float,
    error: float | None,
    by_kind: bool,
    repeats: int,
) -> Generator[Any, Any, None]:
    """Decide once.

    Args:
        candidates: modes to choose from.
        kinds: kinds of the model's parameters.
        situation: not looked at.
        bits: fewest bits of a value that are enough.
        error: largest error that a codec may declare, as a share of the values (`Predicted.error`); None: any.
        by_kind: choose for each kind, and not one mode for all.
        repeats: how often each codec is tried for its speed.

    Raises:
        UserError: where no candidate is exact enough.
    """
    found: dict[str, dict[str, Predicted]] = {}
    for mode in candidates:
        found[mode] = {}
        for kind in kinds:
            found[mode][kind] = yield Predict(mode, kind, repeats)

    def enough(one: Predicted) -> bool:
        return one.bits >= bits and (error is None or one.error <= error)

    chosen: dict[str, str] = {}
    for group in [[kind] for kind in kinds] if by_kind else [list(kinds)]:
        times = {
            mode: (sum(each[kind].coding + each[kind].transfer for kind in group), max(each[k].error for k in group))
            for mode, each in found.items()
            if all(enough(each[kind]) for kind in group)
        }
        if not times:
            raise UserError(
                f"comm.policy: no candidate has {bits:g} bits a value"
                + (f" and an error of at most {error:g}" if error is not None else "")
                + "; ask for less, or type comm.candidates with float32 among them"
            )
        chosen |= dict.fromkeys(group, min(times, key=lambda mode: times[mode]))
    yield Commit(
        chosen, None, {mode: {kind: asdict(one) for kind, one in each.items()} for mode, each in found.items()}
    )
