"""Inverse roots: relative error and milliseconds by method, size, order and condition number.

On one thread, or on BENCH_DEVICE. Errors are of float32 matrices, against eigenvalues in float64 of the matrix before
it was rounded, without a ridge.
"""

import statistics
import time
from typing import Any

import numpy as np
import pytest
from engines import DEVICE
from matrices import METHODS, errors, stacked

from .measure import ONCE

pytestmark = pytest.mark.bench
CONDITIONS = (1e2, 1e4, 1e6, 1e8)
COUNT = 4  # matrices in a stack that is timed
ROUNDS = 1 if ONCE else 3


def compiled(where: str, order: int, method: str) -> Any:
    """Return a function that takes a stack (count, n, n) to its roots and waits for them."""
    if where == "host":
        from suite.optimizers._linalg import host

        return lambda stack: host.inverse_root(stack, order, epsilon=0.0)
    if where == "torch":
        import torch

        from suite.optimizers._linalg.torch import inverse_root as in_torch

        torch.set_num_threads(1)
        on = lambda stack: torch.from_numpy(stack).to(DEVICE)  # noqa: E731
        return lambda stack: in_torch(on(stack), order, epsilon=0.0, method=method).cpu().numpy()
    import jax

    from suite.optimizers._linalg.jax import inverse_root as in_jax

    program = jax.jit(lambda stack: in_jax(stack, order, epsilon=0.0, method=method))
    return lambda stack: np.asarray(program(stack))


@pytest.mark.parametrize("size", [32, 128, 512])
@pytest.mark.parametrize("order", [2, 4, 8])
def test_roots(size: int, order: int, benchmark: Any, capsys: Any) -> None:
    matrices, exact = stacked(size, order, CONDITIONS)
    narrow, found = matrices.astype(np.float32), {}
    for where, methods in METHODS.items():
        for method in methods:
            call = compiled(where, order, method)
            ends = errors(call(narrow), exact)
            stacks, each = [np.tile(matrix, (COUNT, 1, 1)) for matrix in narrow], []
            for stack in stacks:
                taken = []
                for _ in range(ROUNDS):
                    began = time.perf_counter()
                    call(stack)
                    taken.append((time.perf_counter() - began) / COUNT)
                each.append(1e3 * statistics.median(taken))
            found[f"{where} {method}"] = {"errors": ends.tolist(), "milliseconds": each}
    benchmark.pedantic(lambda: compiled("torch", order, "eigh")(narrow), rounds=1)
    benchmark.extra_info |= found
    with capsys.disabled():
        print(f"\nn {size}, p {order:<18}" + "".join(f"{condition:>17.0e}" for condition in CONDITIONS))
        for name, row in found.items():
            cells = zip(row["errors"], row["milliseconds"], strict=True)
            print(f"  {name:<18}" + "".join(f"{error:>9.1e} {spent:>5.1f} ms" for error, spent in cells))
    for fast, slow in ("torch eigh", "torch newton"), ("jax eigh", "jax newton"):
        assert found[fast]["errors"][0] < found[slow]["errors"][0]
