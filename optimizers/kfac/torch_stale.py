"""Each factor's own interval between statistics, in torch (SP-NGD, algorithms 1 and 2); see reference.py."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from suite.optimizers.kfac.plan import KFACPlan

State = dict[str, Any]


def begin(state: State) -> None:
    """Add to the state what intervals are found by.

    That is `before`, the factor before the last, beside each factor; `wait`, steps until it is due; and `interval`
    (2, factors), its last interval and the one before.
    """
    state["owned"]["before"] = {key: torch.zeros_like(value) for key, value in state["owned"]["factor"].items()}
    state["before"] = {name: torch.zeros_like(value) for name, value in state["replicated"].items()}
    state["wait"] = torch.zeros_like(state["mass"], dtype=torch.int64)
    state["interval"] = torch.ones_like(state["wait"]).repeat(2, 1)


def similar(now: Tensor, last: Tensor, before: Tensor, alpha: float) -> Tensor:
    """Whether a factor is similar to the last one, and to the one before (2,), which the last one replaces."""
    found = [(now - past).norm() < alpha * past.norm() for past in (last, before)]
    before.copy_(last)
    return torch.stack(found)


def settle(plan: KFACPlan, state: State, names: tuple[str, ...], alike: dict[str, Tensor], reduce: Any) -> None:
    """Set the waiting times of the factors just refreshed; equal on all ranks.

    Args:
        plan: where factors stand.
        state: changed.
        names: the factors, in the order of `plan.factors`.
        alike: what `similar` said of those that this rank holds.
        reduce: tells the ranks what the owners found.
    """
    owner: dict[str, int] = {}
    for key, members in plan.buckets.members.items():
        rows, owners = plan.chosen(key, names)
        owner |= zip((members[row] for row in rows), owners, strict=True)
    if plan.world > 1 and owner:
        found = [alike[name] for name, rank in owner.items() if rank == reduce.rank]
        nothing = [torch.zeros(2, dtype=torch.bool, device=state["mass"].device)]
        sent = torch.stack(found + nothing * (max(Counter(owner.values()).values()) - len(found)))
        told = reduce.gather("stale", sent, tuple(owner.values()), exact=True)
        alike = alike | dict(zip(owner, told, strict=True))
    at = torch.tensor([plan.index[name] for name in names], device=state["wait"].device)
    last, older = state["interval"][:, at]
    to_last, to_before = torch.stack([alike[name] for name in names]).unbind(1)
    longer = torch.where(to_before, last + older, last)
    chosen = torch.where(to_last, longer, (last // 2).clamp_min(1))
    state["interval"][:, at] = torch.stack([chosen, last])
    state["wait"][at] = chosen
