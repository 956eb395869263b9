"""Moves the cuts of a solution while the simulated step becomes shorter."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from suite.comm.partition.planner.describe import stage_times
from suite.comm.partition.planner.stages import Array, Cut, Problem
from suite.comm.partition.timeline import bound_step, simulate_step

MOVES = (-3, -2, -1, 1, 2, 3)  # blocks by which one boundary, or two neighbouring ones, are moved
Table = tuple[Array, npt.NDArray[np.bool_]]  # of one stage: seconds, infinite if impossible; whether it recomputes
ROUNDING = 1e-9  # relative, of sums of times in another order


def improve_cuts(problem: Problem, cuts: Sequence[Cut], seconds: float) -> tuple[Sequence[Cut], float]:
    """Return the cuts that no move of a boundary improves, and the seconds of a step.

    Args:
        problem: that the cuts solve.
        cuts: the stages, in order.
        seconds: of a step with them.
    """
    tables = [problem.busy(len(cuts) - number, cut.replicas) for number, cut in enumerate(cuts)]
    better = True
    while better:
        better = False
        for moved in list(_move(cuts, tables)):
            times = stage_times(moved, problem)
            if bound_step(times, problem.micro_batches) >= seconds * (1 - ROUNDING):
                continue  # the step cannot be shorter
            step = simulate_step(times, problem.schedule, problem.micro_batches).seconds
            if step < seconds * (1 - ROUNDING):
                cuts, seconds, better = moved, step, True
    return cuts, seconds


def _move(cuts: Sequence[Cut], tables: Sequence[Table]) -> Iterator[Sequence[Cut]]:
    """Yield the neighbours of a solution that are possible, by the tables of each stage."""
    bounds = [cut.first for cut in cuts] + [cuts[-1].last]
    for first in range(1, len(cuts)):
        for last in range(first, min(first + 2, len(cuts))):
            for move in MOVES:
                moved = [*bounds[:first], *(bound + move for bound in bounds[first : last + 1]), *bounds[last + 1 :]]
                spans = list(itertools.pairwise(moved))
                ordered = all(one < other for one, other in spans)
                if ordered and all(np.isfinite(busy[span]) for span, (busy, _) in zip(spans, tables, strict=True)):
                    yield [
                        Cut(*span, cut.replicas, bool(short[span]))
                        for span, cut, (_, short) in zip(spans, cuts, tables, strict=True)
                    ]
