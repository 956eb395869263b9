"""Each factor's own interval between statistics, in torch (SP-NGD, algorithms 1 and 2); see reference.py."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from suite.contract import Reduce
from suite.optimizers._base.torch import place_numbers
from suite.optimizers._linalg.torch import compute_norms
from suite.optimizers.kfac.plan import KFACPlan

State = dict[str, Any]


def add_intervals(state: State) -> None:
    """Add to the state what the intervals are computed from.

    These are `before`, the factor before the last, beside each factor; `wait` (F,), steps until each factor is due; and
    `interval` (2, F), its last interval and the one before.
    """
    state["owned"]["before"] = {key: torch.zeros_like(value) for key, value in state["owned"]["factor"].items()}
    state["before"] = {name: torch.zeros_like(value) for name, value in state["replicated"].items()}
    state["wait"] = torch.zeros_like(state["mass"], dtype=torch.int64)
    state["interval"] = torch.ones_like(state["wait"]).repeat(2, 1)


def compare_factors(now: Tensor, last: Tensor, before: Tensor, alpha: float) -> Tensor:
    """Return whether a factor differs by less than `alpha` from the last one, and from the one before (2,).

    `before` then holds the last one.
    """
    norms = compute_norms([now - last, now - before, last, before])
    before.copy_(last)
    return norms[:2] < alpha * norms[2:]


def update_intervals(
    plan: KFACPlan, state: State, names: tuple[str, ...], similar: dict[str, Tensor], reduce: Reduce[Tensor]
) -> None:
    """Set the waiting times of the factors just refreshed; equal on all ranks.

    Args:
        plan: where factors stand.
        state: changed.
        names: the factors, in the order of `plan.factors`.
        similar: (2,) booleans for each of them that this rank holds, by name.
        reduce: communication between ranks, which sends the owners' booleans to all.
    """
    owner: dict[str, int] = {}
    for key, members in plan.buckets.members.items():
        rows, owners = plan.chosen(key, names)
        owner |= zip((members[row] for row in rows), owners, strict=True)
    if plan.world > 1 and owner:
        owned = [similar[name] for name, rank in owner.items() if rank == reduce.rank]
        padding = [torch.zeros(2, dtype=torch.bool, device=state["mass"].device)]
        sent = torch.stack(owned + padding * (max(Counter(owner.values()).values()) - len(owned)))
        gathered = reduce.gather("stale", sent, tuple(owner.values()), exact=True)
        similar = similar | dict(zip(owner, gathered, strict=True))
    numbers = place_numbers([plan.index[name] for name in names], state["wait"], torch.int64)
    last, older = state["interval"][:, numbers]
    to_last, to_before = torch.stack([similar[name] for name in names]).unbind(1)
    longer = torch.where(to_before, last + older, last)
    chosen = torch.where(to_last, longer, (last // 2).clamp_min(1))
    state["interval"][:, numbers] = torch.stack([chosen, last])
    state["wait"][numbers] = chosen
