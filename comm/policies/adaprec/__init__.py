"""AdaPrec: try each precision for some steps, predict what more of it would reach, and take the best gain per second.

1. From one and the same state, train `probe_steps` in each candidate. 2. From the run's scores and the probe's, predict
the score at the next decision. 3. Train `commit_steps` in the candidate with the largest expected gain per second of
training, and begin again. The poster predicts with the Bayesian network of Klein et al. 2017; here the predictor is an
ensemble of that paper's basis functions, each fitted by least squares. After the probes the run goes back to the state
they began from, so the chosen candidate's probe is made again as part of step 3; the poster is not clear on this.
"""

from collections.abc import Generator, Sequence
from typing import Any

from suite.comm.policies._curves import predict
from suite.comm.policies._policy import Commit, Probe, Situation

SUMMARY = "train in the precision that a probe predicts to gain most per second"
CITATION = "Oyama et al., AdaPrec (poster); Klein et al. 2017 (ICLR)"


def decide(
    candidates: Sequence[str],
    kinds: Sequence[str],
    situation: Situation,
    *,
    probe_steps: int,
    probe_scores: int,
    commit_steps: int,
) -> Generator[Any, Any, None]:
    """Decide every `commit_steps` updates.

    Args:
        candidates: modes to choose from.
        kinds: not looked at.
        situation: where the run is.
        probe_steps: updates of each probe.
        probe_scores: how often a probe is scored.
        commit_steps: updates between decisions.
    """
    while True:
        now, steps = situation.points[-1].score, min(commit_steps, situation.total - situation.step)
        found: dict[str, dict[str, float]] = {}
        for mode in candidates:
            probed = yield Probe(mode, probe_steps, probe_scores)
            curve = [(point.step, point.score) for point in (*situation.points, *probed.points)]
            score, spread = predict(curve, situation.step + steps, situation.best)
            found[mode] = {
                "seconds": probed.seconds,
                "score": probed.points[-1].score,
                "predicted": score,
                "spread": spread,
                "gain": (score - now) / (steps * probed.seconds),
            }
        situation = yield Commit(max(found, key=lambda mode: found[mode]["gain"]), commit_steps, found)
