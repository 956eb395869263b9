"""Exponential averages of K-FAC's factors, in torch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from suite.contract import Reduce
from suite.optimizers._base.torch import place_numbers
from suite.optimizers.kfac import torch_stale
from suite.optimizers.kfac.plan import KFACPlan
from suite.optimizers.kfac.torch_factors import is_known_true

Tree = dict[str, Tensor]
State = dict[str, Any]


def mix_statistics(
    plan: KFACPlan, state: State, statistics: Tree, *, decay: float, alpha: float, reduce: Reduce[Tensor]
) -> Tree:
    """Average statistics over ranks and take them into the factors; each rank keeps the slices it owns.

    Args:
        plan: where the factors are.
        state: of the optimizer; changed.
        statistics: mean over this rank's samples of the factors to refresh, by name.
        decay: weight of the old averages.
        alpha: relative change below which a factor counts as unchanged.
        reduce: communication between ranks.

    Returns:
        With stale statistics, for each refreshed factor that this rank holds, by name: (2,) booleans, whether it is
        similar to the last one and to the one before.
    """
    names = [name for name in plan.factors if name in statistics]
    if not names:
        return {}
    means = {name: statistics[name] for name in names if name in plan.replicated}
    traces = [statistics[n].trace() if n in plan.buckets.place else statistics[n].sum() for n in names]
    means = reduce.exact(means | {"trace": torch.stack(traces)})
    refresh = Refresh(plan, state, names, means.pop("trace"), decay=decay, alpha=alpha)
    before = state.get("before", {})
    for name, value in means.items():
        refresh.mix(name, state["replicated"][name], value, before.get(name))
    before = state["owned"].get("before", {})
    for key, (sides, owners, _) in plan.exchanges(names).items():
        new = [statistics[side] for side in sides]
        if plan.world > 1:  # nothing is stacked where nothing is sent
            new = reduce.to_owners(f"factor/{key}", new, owners, symmetric=True)
        for side, value in zip(
            select_owned_rows(sides, owners, reduce), new, strict=False
        ):  # further rows of `new` are padding
            row = plan.buckets.place[side][1] % plan.buckets.share[key]
            refresh.mix(side, state["owned"]["factor"][key][row], value, before[key][row] if before else None)
    return refresh.similar


class Refresh:
    """One refresh of some factors; making it updates their traces, masses and counts in the state.

    Args:
        plan: where the factors are.
        state: of the optimizer; changed.
        names: the K factors to refresh, in the order of `plan.factors`.
        trace: (K,), of their new statistics.
        decay: weight of the old averages.
        alpha: relative change below which a factor counts as unchanged.

    Attributes:
        finite: (K,) booleans, whether the new statistics are.
        similar: by name, (2,) booleans for each factor mixed so far.
    """

    def __init__(self, plan: KFACPlan, state: State, names: list[str], trace: Tensor, *, decay: float, alpha: float):
        self.finite = trace.isfinite()  # |a_ij|² ≤ a_ii a_jj: where the trace is finite, all is
        self.all_finite = is_known_true(self.finite.all())
        self.number = {name: number for number, name in enumerate(names)}
        self.decay, self.alpha, self.similar = decay, alpha, dict[str, Tensor]()
        self.tiny = torch.finfo(trace.dtype).tiny
        rows = place_numbers([plan.index[name] for name in names], trace, torch.int64)
        weight = self.finite.to(trace.dtype) * (1.0 - decay)
        self.old_mass = state["mass"][rows]
        self.mass = self.old_mass.lerp(torch.ones_like(trace), weight)
        state["mass"][rows] = self.mass
        state["trace"][rows] = state["trace"][rows].lerp(torch.where(self.finite, trace, 0.0), weight)
        state["refreshed"] += self.finite.sum()
        state["kept"] += (~self.finite).sum()

    def mix(self, name: str, factor: Tensor, new: Tensor, before: Tensor | None) -> None:
        """Mix new statistics into a factor, unless they are not finite; `before` is changed, None without `stale`."""
        number = self.number[name]
        last = factor / self.old_mass[number].clamp_min(self.tiny) if before is not None else None
        factor.lerp_(new if self.all_finite else torch.where(self.finite[number], new, factor), 1.0 - self.decay)
        if before is not None and last is not None:
            now = factor / self.mass[number].clamp_min(self.tiny)
            self.similar[name] = self.finite[number] & torch_stale.compare_factors(now, last, before, self.alpha)


def select_owned_rows(rows: Sequence[Any], owners: tuple[int, ...], reduce: Reduce[Tensor]) -> list[Any]:
    """Those of some rows that this rank owns."""
    return [row for row, owner in zip(rows, owners, strict=True) if owner == reduce.rank]
