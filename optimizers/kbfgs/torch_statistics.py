"""Sums over samples of a aᵀ, â and ĝ of each covered layer, in torch."""

from collections.abc import Mapping

import torch
from torch import Tensor

from suite.optimizers._base.torch import widen_floats
from suite.optimizers.kbfgs.plan import KBFGSPlan

Tree = dict[str, Tensor]
Taps = Mapping[tuple[str, int], tuple[Tensor, Tensor]]


def sum_statistics(plan: KBFGSPlan, taps: Taps, weight: Tensor) -> Tree:
    """Sums over samples of a aᵀ, â and ĝ, by `<layer>/factor`, `<layer>/middle` and `<layer>/slope`.

    Args:
        plan: which layers are covered.
        taps: of one backward pass: a layer's input, and the gradient of the summed weighted loss by its output.
        weight: of the samples, (N,).
    """
    factors = {
        f"{name}/factor": _factor(x, weight, plan.inputs[plan.place[name]])
        for name, (x, _) in _positions(plan, taps).items()
    }
    return sum_means(plan, taps, weight) | factors


def sum_means(plan: KBFGSPlan, taps: Taps, weight: Tensor) -> Tree:
    """Sums over samples of â and ĝ alone, which are all that the second pass needs; see `sum_statistics`."""
    statistics: Tree = {}
    for name, (x, dy) in _positions(plan, taps).items():
        statistics[f"{name}/middle"] = _middle(x, weight, plan.inputs[plan.place[name]])
        statistics[f"{name}/slope"] = dy.mean(1).sum(0)  # dy holds the samples' weights already
    return statistics


def _positions(plan: KBFGSPlan, taps: Taps) -> dict[str, tuple[Tensor, Tensor]]:
    """Of each covered layer x (N, T, in) and dy (N, T, out), the positions of its calls one after another."""
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for (name, _), pair in taps.items():
        if name in plan.place:
            x, dy = (widen_floats(value).reshape(len(value), -1, value.shape[-1]) for value in pair)
            calls.setdefault(name, []).append((x, dy))
    joined = {name: zip(*pairs, strict=True) for name, pairs in calls.items()}
    return {name: (_joined(x), _joined(dy)) for name, (x, dy) in joined.items()}


def _joined(calls: tuple[Tensor, ...]) -> Tensor:
    """Return the positions (N, T, …) of one call as they are, or those of several."""
    return calls[0] if len(calls) == 1 else torch.cat(calls, 1)


def _middle(x: Tensor, weight: Tensor, size: int) -> Tensor:
    """Σ â (size,) of a layer; its last entry belongs to the bias, if there is one."""
    middle = weight @ x.mean(1)
    return torch.cat([middle, weight.sum()[None]]) if size > x.shape[-1] else middle


def _factor(x: Tensor, weight: Tensor, size: int) -> Tensor:
    """Σ a aᵀ (size, size) of a layer."""
    flat = x * weight.sqrt()[:, None, None]
    if size > x.shape[-1]:
        ones = weight.sqrt()[:, None, None].expand(*flat.shape[:2], 1)
        flat = torch.cat([flat, ones], 2)
    rows = flat.flatten(0, 1)
    return rows.T @ rows
