"""Matrices of a known spectrum, and their inverse roots by every method."""

import numpy as np

METHODS = {"torch": ("eigh", "eigh32", "newton"), "jax": ("eigh", "eigh32", "newton"), "host": ("eigh",)}


def conditioned(size: int, condition: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvectors and logarithmically spaced eigenvalues from 1 / condition to 1."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return q, np.logspace(-np.log10(condition), 0, size)


def stacked(size: int, order: int, conditions: tuple[float, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A matrix for each condition number, in float64, and its inverse root."""
    pairs = [conditioned(size, condition, seed) for condition in conditions]
    matrices = np.stack([(q * values) @ q.T for q, values in pairs])
    return matrices, np.stack([(q * values ** (-1.0 / order)) @ q.T for q, values in pairs])


def root(where: str, stack: np.ndarray, order: int, method: str, epsilon: float = 0.0) -> np.ndarray:
    """Inverse roots in torch, in jax or on the host, in the type of the stack."""
    if where == "host":
        from suite.optimizers._linalg import host

        return host.inverse_root(stack, order, epsilon=epsilon)
    if where == "torch":
        import torch

        from suite.optimizers._linalg.torch import inverse_root as in_torch

        return in_torch(torch.tensor(stack), order, epsilon=epsilon, method=method).numpy()
    import jax
    import jax.numpy as jnp

    from suite.optimizers._linalg.jax import inverse_root as in_jax

    with jax.enable_x64(stack.dtype == np.float64):
        compiled = jax.jit(lambda value: in_jax(value, order, epsilon=epsilon, method=method))
        return np.asarray(compiled(jnp.asarray(stack)))


def errors(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Relative error of each matrix, in the Frobenius norm."""
    return np.linalg.norm(found - exact, axis=(1, 2)) / np.linalg.norm(exact, axis=(1, 2))
