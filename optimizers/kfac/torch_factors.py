"""What is done with factors in torch: damping and inversion."""

from typing import Any

import torch
from torch import Tensor

from suite.optimizers.kfac.plan import SMALLEST, KFACPlan


def certain(flag: Tensor) -> bool:
    """Whether a flag is known to be true. A CPU can be asked for nothing; a GPU would have to be waited for."""
    return flag.device.type == "cpu" and bool(flag)


def usable(inverse: Tensor) -> Tensor:
    """Whether an inverse L⁻ᵀ L⁻¹ is finite: its diagonal holds sums of squares, which bound all others."""
    return inverse.diagonal(dim1=-2, dim2=-1).isfinite().all(-1)


def mean_eigenvalues(plan: KFACPlan, state: dict[str, Any]) -> Tensor:
    """Of each of `plan.factors`; 0 before its first statistics."""
    sizes = state["trace"].new_tensor([plan.sizes.get(name, 1) for name in plan.factors])
    return state["trace"] / state["mass"].clamp_min(torch.finfo(sizes.dtype).tiny) / sizes


def ridges(plan: KFACPlan, state: dict[str, Any], damping: float, split: str) -> Tensor:
    """What is added to the diagonal of each factor: π√λ and √λ/π, or √λ and √λ; λ where there is no partner."""
    means = mean_eigenvalues(plan, state)
    found, mean = torch.full_like(means, damping), means[: plan.paired].clamp_min(SMALLEST)
    ratio = mean / mean[plan.partner] if split == "pi" else torch.ones_like(mean)
    found[: plan.paired] = (damping * ratio).sqrt()
    return found


def damped_inverse(stack: Tensor, ridge: Tensor) -> Tensor:
    """(A + ridge · I)⁻¹ by Cholesky, tried once more with ten times the ridge; NaN where there is none.

    Args:
        stack: symmetric (m, n, n), overwritten.
        ridge: (m,).
    """
    diagonal = stack.diagonal(dim1=1, dim2=2)
    diagonal += ridge[:, None]
    root, failed = torch.linalg.cholesky_ex(stack)
    good = failed == 0
    if not certain(good.all()):
        diagonal += 9.0 * ridge[:, None]
        again, failed = torch.linalg.cholesky_ex(stack)
        root = torch.where(good[:, None, None], root, again)
        good |= failed == 0
    inverse = torch.cholesky_inverse(root)
    if certain(good.all()):
        return inverse
    return torch.where(good[:, None, None], inverse, torch.nan)
