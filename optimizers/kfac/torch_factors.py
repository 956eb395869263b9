"""Damping and inversion of K-FAC's factors, in torch."""

from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import place_numbers
from suite.optimizers.kfac.plan import SMALLEST, KFACPlan


def is_known_true(flag: Tensor) -> bool:
    """Return whether a boolean is known to be true without waiting for a GPU: false on every device but a CPU."""
    return flag.device.type == "cpu" and bool(flag)


def is_usable(inverse: Tensor) -> Tensor:
    """Return whether an inverse L⁻ᵀ L⁻¹ (…, n, n) is finite (…,): its diagonal bounds all other entries."""
    return inverse.diagonal(dim1=-2, dim2=-1).isfinite().all(-1)


def mean_eigenvalues(plan: KFACPlan, state: dict[str, Any]) -> Tensor:
    """Return the mean eigenvalue of each of `plan.factors` (F,); 0 before its first statistics."""
    sizes = place_numbers([plan.sizes.get(name, 1) for name in plan.factors], state["trace"])
    return state["trace"] / state["mass"].clamp_min(torch.finfo(sizes.dtype).tiny) / sizes


def compute_ridges(plan: KFACPlan, state: dict[str, Any], damping: float | Tensor) -> Tensor:
    """Compute each diagonal's ridge (F,): π√λ and √λ/π, or √λ and √λ; λ for a factor without partner."""
    means = mean_eigenvalues(plan, state)
    added, mean = torch.ones_like(means) * damping, means[: plan.paired].clamp_min(SMALLEST)
    partner = place_numbers(plan.partner, means, torch.int64)
    ratio = mean / mean[partner] if plan.settings.damping_split == "pi" else torch.ones_like(mean)
    added[: plan.paired] = (damping * ratio).sqrt()
    return added


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
    if not is_known_true(good.all()):
        diagonal += 9.0 * ridge[:, None]
        again, failed = torch.linalg.cholesky_ex(stack)
        root = torch.where(good[:, None, None], root, again)
        good |= failed == 0
    if is_known_true(good.all()):
        return torch.cholesky_inverse(root)
    # cholesky_inverse raises an error for a root with a zero on its diagonal, as a failed factorisation may leave
    whole = torch.where(good[:, None, None], root, torch.eye(stack.shape[-1], dtype=stack.dtype, device=stack.device))
    return torch.where(good[:, None, None], torch.cholesky_inverse(whole), torch.nan)
