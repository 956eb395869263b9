"""Inverse roots in torch."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from suite.optimizers._linalg import CAP, FAILURE, GROWTH, SOLVER


@torch.no_grad()
def inverse_root(stack: Tensor, order: int, *, epsilon: float, method: str = "auto") -> Tensor:
    """The inverse root of each damped matrix; not finite where there is none.

    Args:
        stack: symmetric positive semidefinite matrices (count, n, n).
        order: p of A^(-1/p).
        epsilon: ridge, relative to the largest eigenvalue.
        method: auto | eigh | eigh32 | newton.

    Returns:
        (count, n, n), row-major, in the type of the stack.
    """
    mean = stack.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    usable = finite(stack) & (mean >= torch.finfo(stack.dtype).tiny)
    safe = torch.where(usable, stack, torch.eye(stack.shape[-1], dtype=stack.dtype, device=stack.device))
    unit = torch.finfo(stack.dtype).eps
    if method == "eigh" or (method == "auto" and stack.device.type == "cpu"):
        factor = torch.where(usable, 1.0, torch.nan).double()
        return _eigh(safe.double(), order, epsilon, factor, unit).to(stack.dtype).contiguous()
    scaled = safe / torch.where(usable, mean, 1.0)
    factor = torch.where(usable, mean, torch.nan) ** (-1.0 / order)
    if method == "eigh32":
        return _eigh(scaled.float(), order, epsilon, factor.float(), unit).to(stack.dtype).contiguous()
    root, top = _newton(scaled, order, epsilon)
    if epsilon <= SOLVER * unit:  # M alone does not tell: its own rounding may converge
        root = torch.where(_regular(safe.double() / (mean * top).double(), root, epsilon, unit), root, torch.nan)
    return (root * factor).contiguous()


def finite(stack: Tensor) -> Tensor:
    """Whether all entries of each matrix are finite (count, 1, 1); extremes hand on NaN, and take no memory."""
    flat = stack.flatten(1)
    return (flat.amax(1).isfinite() & flat.amin(1).isfinite())[:, None, None]


def _eigh(stack: Tensor, order: int, epsilon: float, factor: Tensor, unit: float) -> Tensor:
    """The roots times a factor each (count, 1, 1), in the type of the stack; `unit` is that of its entries."""
    try:
        values, vectors = torch.linalg.eigh(stack)
    except torch.linalg.LinAlgError:  # one matrix that does not converge fails the whole call
        return torch.full_like(stack, torch.nan)
    values = values.clamp(min=0.0)
    shares = values / values[:, -1:]
    regular = shares[:, :1] + epsilon > _noise(torch.linalg.vector_norm(shares, dim=1, keepdim=True), stack, unit)
    values = values + epsilon * values[:, -1:]
    values = torch.where(regular, values, torch.nan)
    return (vectors * (values[:, None] ** (-1.0 / order) * factor)) @ vectors.mT


def _noise(norm: Tensor, stack: Tensor, unit: float) -> Tensor:
    """The largest eigenvalue that rounding alone can have made, as a share of the largest of all, as `norm` is."""
    return (unit / stack.shape[-1] * norm).clamp(min=SOLVER * torch.finfo(stack.dtype).eps)


def _newton(stack: Tensor, order: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """X ← X T, M ← Tᵖ M with T = ((p + 1) I - M) / p: M = Xᵖ D goes to I, X to D^(-1/p) (Iannazzo 2006).

    Each matrix stops by itself, when it has converged or would get worse; a worse iterate is not taken. The second
    result is `largest` of each.
    """
    with _full_precision():
        top = largest(stack)
        identity = torch.eye(stack.shape[-1], dtype=stack.dtype, device=stack.device)
        scale = (1.0 + order) / (2.0 * (1.0 + epsilon))
        m = scale * (stack / top + epsilon * identity)
        x = (scale ** (1.0 / order) * identity).expand_as(stack)
        error, active = torch.full_like(top, torch.inf), torch.ones_like(top, dtype=torch.bool)
        tolerance = 8.0 * torch.finfo(stack.dtype).eps  # 1e-6 in float32, as in the official code
        for iteration in range(CAP):
            t = ((order + 1.0) * identity - m) / order
            x_next, m_next = x @ t, torch.linalg.matrix_power(t, order) @ m
            error_next = (m_next - identity).abs().amax((-2, -1), keepdim=True)
            active = active & (error_next < GROWTH * error)
            x, m = torch.where(active, x_next, x), torch.where(active, m_next, m)
            error = torch.where(active, error_next, error)
            active = active & (error > tolerance)
            if iteration % 4 == 3 and not active.any():  # the one question a GPU has to answer, so asked rarely
                break
        return torch.where(error <= FAILURE, x * top ** (-1.0 / order), torch.nan), top


def _regular(wide: Tensor, root: Tensor, epsilon: float, unit: float) -> Tensor:
    """Whether a matrix in float64 whose largest eigenvalue is about 1 is regular (count, 1, 1), by a root of it.

    Vectors along which the root is longest belong to the least eigenvalues, so that these follow from the matrix
    itself: a column of a high power of the root, and its Rayleigh quotient. `unit` is that of the matrix's entries.
    """
    power = root
    for _ in range(2):  # to the 16th in two goes, as float32 has a range to keep to
        power = torch.linalg.matrix_power(power / torch.linalg.matrix_norm(power, keepdim=True), 4)
    power = power / torch.linalg.matrix_norm(power, keepdim=True)
    longest = power.norm(dim=1).argmax(1)
    vector = torch.nn.functional.normalize(power[torch.arange(len(power)), :, longest].double(), dim=1)[:, :, None]
    return vector.mT @ wide @ vector + epsilon > _noise(torch.linalg.matrix_norm(wide, keepdim=True), wide, unit)


def largest(stack: Tensor) -> Tensor:
    """The largest eigenvalue λ (count, 1, 1), from above: λ ≤ ‖A¹⁶‖^(1/16) ≤ λ n^(1/32) in the Frobenius norm.

    Power iteration needs a vector to start from, and a gradient may be orthogonal to any fixed one: that of a softmax
    layer is orthogonal to the vector of ones. Repeated squaring needs none.
    """
    norm = torch.linalg.matrix_norm(stack, keepdim=True)
    power = torch.linalg.matrix_power(stack / norm, 16)
    return norm * torch.linalg.matrix_norm(power, keepdim=True) ** (1.0 / 16.0)


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """No TF32 inside: its 10 bits do not converge."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
