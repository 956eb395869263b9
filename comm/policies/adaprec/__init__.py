"""AdaPrec: try each precision for some steps, predict its progress, and use the best gain per second.

1. From the same state, train `probe_steps` in each candidate. 2. From the run's scores and the probe's, predict the
score at the next decision. 3. Train `commit_steps` in the candidate with the largest expected gain per second of
training, and begin again. The first candidate is kept unless another one's gain is positive and exceeds the first's by
more than `MARGIN` standard deviations. Only positive gains count, because among negative ones the gain per second would
prefer the slowest candidate. A candidate whose probe diverges is never preferred to another.

The poster predicts with the Bayesian network of Klein et al. 2017; here the predictor is an ensemble of that paper's
basis functions, each fitted by least squares. After the probes, the run continues from the state before them, so that
the chosen candidate's probe steps are repeated as part of step 3; the poster is not clear on this.
"""

import math
from collections.abc import Generator, Sequence
from typing import Any

from suite.comm.policies._curves import predict_score
from suite.comm.policies._policy import Commit, Estimate, Probe, Situation, choose_largest
from suite.contract import UserError
from suite.declared import Declared, setting

SUMMARY = "train in the precision with the largest predicted gain per second"
CITATION = "Oyama et al., AdaPrec (poster); Klein et al. 2017 (ICLR)"
READS = ()  # keys of the configuration that the policy uses beside its options


class Settings(Declared):
    """probe_steps: after 10 steps, 1,024 validation samples do not separate table-1 from the others."""

    probe_steps: int = setting(25, "updates of each probe", at_least=1)
    probe_scores: int = setting(5, "evaluations in each probe", at_least=1)
    commit_steps: int = setting(100, "updates between decisions", at_least=1)


DEFAULTS = Settings()


def decide(
    candidates: Sequence[str],
    kinds: Sequence[str],
    situation: Situation,
    *,
    probe_steps: int = DEFAULTS.probe_steps,
    probe_scores: int = DEFAULTS.probe_scores,
    commit_steps: int = DEFAULTS.commit_steps,
) -> Generator[Probe | Commit, Any, None]:
    """Decide every `commit_steps` updates.

    Args:
        candidates: modes to choose from.
        kinds: not used.
        situation: the state of the run.
        probe_steps: number of updates of each probe, at least 1.
        probe_scores: number of evaluations in each probe, from 1 to `probe_steps`.
        commit_steps: number of updates between decisions, at least 1.

    Returns:
        The generator of the policy's requests and decisions.

    Raises:
        UserError: if a number is out of its range.
    """
    for name, value in (("probe_steps", probe_steps), ("commit_steps", commit_steps)):
        if value < 1:
            raise UserError(f"comm.policy.{name}={value}: must be at least 1")
    if not 1 <= probe_scores <= probe_steps:
        raise UserError(f"comm.policy.probe_scores={probe_scores}: must be from 1 to probe_steps={probe_steps}")
    return _decide(candidates, situation, probe_steps, probe_scores, commit_steps)


def _decide(
    candidates: Sequence[str], situation: Situation, probe_steps: int, probe_scores: int, commit_steps: int
) -> Generator[Probe | Commit, Any, None]:
    while True:
        now, steps = situation.points[-1].score, min(commit_steps, situation.total - situation.step)
        probes: dict[str, dict[str, float]] = {}
        if now == -math.inf:  # the run has diverged, and its loop will end it
            situation = yield Commit(candidates[0], commit_steps, probes)
            continue
        for mode in candidates:
            probed = yield Probe(mode, probe_steps, probe_scores)
            if any(point.score == -math.inf for point in probed.points):
                lost = dict.fromkeys(("score", "predicted", "gain"), -math.inf)
                probes[mode] = {"seconds": probed.seconds, **lost, "spread": 0.0, "gain_spread": 0.0}
                continue
            curve = [(point.step, point.score) for point in (*situation.points, *probed.points)]
            score, spread = predict_score(curve, situation.step + steps, situation.best)
            probes[mode] = {
                "seconds": probed.seconds,
                "score": probed.points[-1].score,
                "predicted": score,
                "spread": spread,
                "gain": (score - now) / (steps * probed.seconds),
            }
            probes[mode]["gain_spread"] = spread / (steps * probed.seconds)
        gains = {
            mode: Estimate(probe["gain"], probe["gain_spread"])
            for mode, probe in probes.items()
            if mode == candidates[0] or probe["gain"] > 0.0
        }
        situation = yield Commit(choose_largest(gains), commit_steps, probes)
