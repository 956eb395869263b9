"""Inverse roots, products of narrow matrices, and norms and inner products of large ones, in torch."""

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from suite.optimizers._base.torch import widen_type
from suite.optimizers._base.torch_shards import is_sharded
from suite.optimizers._linalg import CAP, FAILURE, GROWTH, SOLVER

# In float32 on a CPU, torch adds up a norm or an inner product in a few running sums: the norm of 2^20 normal values is
# 1e-5 too short, that of 2^27 1.6 % (torch 2.13; pytorch#169237). Larger tensors than LARGE are added up in parts of
# PART values, which is as fast; the norm is then right to 1e-6 also where few values are large.
LARGE, PART = 2**16, 2**12


@torch.no_grad()
def inverse_root(stack: Tensor, order: int, *, epsilon: float, method: str = "auto") -> Tensor:
    """Compute the inverse root of each damped matrix.

    Args:
        stack: symmetric positive semidefinite matrices (count, n, n).
        order: p of A^(-1/p).
        epsilon: ridge, relative to the largest eigenvalue.
        method: auto | eigh | eigh32 | newton.

    Returns:
        (count, n, n), row-major, in the type of the stack; not finite for a matrix without a usable root.
    """
    mean = stack.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    usable = are_finite(stack) & (mean >= torch.finfo(stack.dtype).tiny)
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
    if epsilon <= SOLVER * unit:  # M can converge by its rounding errors alone
        root = torch.where(_regular(safe.double() / (mean * top).double(), root, epsilon, unit), root, torch.nan)
    return (root * factor).contiguous()


def multiply_matrices(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return left right, of matrices or of stacks of them; in float32 if they are in bfloat16 or float16.

    Products of two such numbers are exact in float32, and only CUDA has kernels that sum them in it. Elsewhere, the
    matrices are widened first.
    """
    kind = widen_type(left.dtype)
    if left.dtype == kind or not left.is_cuda:
        return torch.matmul(left.to(kind), right.to(kind), out=out)
    multiply = torch.mm if left.ndim == 2 else torch.bmm
    return multiply(left, right, out_dtype=kind, out=out)


def compute_norms(values: Iterable[Tensor]) -> Tensor:
    """Return the Euclidean norm of each tensor, (count,)."""
    return torch.stack(torch._foreach_norm([_norms_of_parts(v) if v.numel() > LARGE else v for v in values]))


def _norms_of_parts(value: Tensor) -> Tensor:
    """A vector with the norm of a large tensor."""
    if is_sharded(value):
        return torch.linalg.vector_norm(value.flatten(1), dim=1) if value.ndim > 1 else value
    rest = value.numel() % PART
    whole, last = value.reshape(-1).split([value.numel() - rest, rest])
    norms = torch.linalg.vector_norm(whole.view(-1, PART), dim=1)
    norms = torch.cat([norms, torch.linalg.vector_norm(last)[None]]) if rest else norms
    return _norms_of_parts(norms) if len(norms) > LARGE else norms


def multiply_values(one: Tensor, other: Tensor) -> Tensor:
    """Return the inner product ⟨v, u⟩ of two tensors of one shape."""
    return torch.vdot(one.flatten(), other.flatten()) if one.numel() <= LARGE else (one * other).sum()


def are_finite(stack: Tensor) -> Tensor:
    """Test whether each matrix is finite (count, 1, 1), by its extremes, which keep NaN and need no memory."""
    flat = stack.flatten(1)
    return (flat.amax(1).isfinite() & flat.amin(1).isfinite())[:, None, None]


def _eigh(stack: Tensor, order: int, epsilon: float, factor: Tensor, unit: float) -> Tensor:
    """Compute the roots times `factor` (count, 1, 1), in the stack's type; `unit` is the entries' machine epsilon."""
    try:
        values, vectors = torch.linalg.eigh(stack)
    except torch.linalg.LinAlgError:  # torch raises if one matrix of the stack does not converge
        return torch.full_like(stack, torch.nan)
    values = values.clamp(min=0.0)
    shares = values / values[:, -1:]
    regular = shares[:, :1] + epsilon > _noise(torch.linalg.vector_norm(shares, dim=1, keepdim=True), stack, unit)
    values = values + epsilon * values[:, -1:]
    values = torch.where(regular, values, torch.nan)
    return (vectors * (values[:, None] ** (-1.0 / order) * factor)) @ vectors.mT


def _noise(norm: Tensor, stack: Tensor, unit: float) -> Tensor:
    """Return the error of the eigenvalues by rounding, relative to the largest eigenvalue, as is `norm`."""
    return (unit / stack.shape[-1] * norm).clamp(min=SOLVER * torch.finfo(stack.dtype).eps)


def _newton(stack: Tensor, order: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """X ← X T, M ← Tᵖ M with T = ((p + 1) I - M) / p: M = Xᵖ D goes to I, X to D^(-1/p) (Iannazzo 2006).

    The iteration of a matrix stops when it has converged, or when its next iterate would be worse. A worse iterate is
    rejected. Returns the roots, and `bound_largest_eigenvalue` of each matrix.
    """
    with _full_precision():
        top = bound_largest_eigenvalue(stack)
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
            if iteration % 4 == 3 and not active.any():  # rarely, because the host waits for a GPU here
                break
        return torch.where(error <= FAILURE, x * top ** (-1.0 / order), torch.nan), top


def _regular(wide: Tensor, root: Tensor, epsilon: float, unit: float) -> Tensor:
    """Return whether each matrix is regular (count, 1, 1), from its inverse root.

    The largest eigenvalues of the root belong to the least eigenvalues of the matrix. The longest column of a high
    power of the root is therefore close to an eigenvector of the least eigenvalue, which is its Rayleigh quotient.

    Args:
        wide: matrices in float64 with a largest eigenvalue of about 1.
        root: their inverse roots.
        epsilon: ridge, relative to the largest eigenvalue.
        unit: machine epsilon of the type of the entries.
    """
    power = root
    for _ in range(2):  # the 16th power in two steps, against overflow in float32
        power = torch.linalg.matrix_power(power / torch.linalg.matrix_norm(power, keepdim=True), 4)
    power = power / torch.linalg.matrix_norm(power, keepdim=True)
    longest = power.norm(dim=1).argmax(1)
    vector = torch.nn.functional.normalize(power[torch.arange(len(power)), :, longest].double(), dim=1)[:, :, None]
    return vector.mT @ wide @ vector + epsilon > _noise(torch.linalg.matrix_norm(wide, keepdim=True), wide, unit)


def bound_largest_eigenvalue(stack: Tensor) -> Tensor:
    """An upper bound of the largest eigenvalue λ (count, 1, 1): λ ≤ ‖A¹⁶‖^(1/16) ≤ λ n^(1/32) in the Frobenius norm.

    Power iteration would need a start vector, and gradients can be orthogonal to any fixed vector: those of a softmax
    layer are orthogonal to the vector of ones. Repeated squaring needs no start vector.
    """
    norm = torch.linalg.matrix_norm(stack, keepdim=True)
    power = torch.linalg.matrix_power(stack / norm, 16)
    return norm * torch.linalg.matrix_norm(power, keepdim=True) ** (1.0 / 16.0)


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Disable TF32, with whose 10 mantissa bits the iteration does not converge."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
