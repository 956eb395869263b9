"""A policy outside the tree: tries everything, and takes the modes in turn."""

from suite.comm.policies._policy import Commit, Measure, Probe

SUMMARY, CITATION, READS = "a policy outside the tree", "", ()


def decide(candidates, kinds, situation, *, steps, order):
    while True:
        why = {"seen": len(situation.points)}
        for mode in candidates:
            why[mode] = (yield Probe(mode, 2, 2)).points[-1].score
            for kind in kinds:
                why[kind] = yield Measure(mode, kind, 1)
        mode = order[situation.step // steps % len(order)]
        situation = yield Commit(mode, steps, why)
