"""Norms and inner products of large float32 tensors in torch: no sum has more terms than a CPU adds up rightly."""

from typing import Any

import engines
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suite import load
from suite.optimizers._linalg import torch as linalg

REDUCTIONS = ("linalg_vector_norm", "_foreach_norm", "norm", "dot", "vdot", "dist")
WIDTHS = ("kbfgs",)  # its norm is of one vector of a layer's inputs, which is never long


@pytest.mark.quick
@pytest.mark.parametrize("count", [1, linalg.LARGE, linalg.LARGE + 1, 2**22, 2**22 + 5])
def test_norms_and_products_are_right_at_every_size(count: int) -> None:
    """torch's own norm of 2²² values is 1e-4 too short."""
    draws = np.random.default_rng(0)
    one, other = (torch.from_numpy(draws.standard_normal(count, np.float32)) for _ in range(2))
    small = torch.arange(6.0).view(2, 3)
    norms = linalg.compute_norms([one, small, one.view(1, -1).T, -one])
    right = one.double().norm()
    assert (norms[[0, 2, 3]].double() / right - 1.0).abs().max() < 1e-6
    assert norms[1] == small.norm()
    assert linalg.multiply_values(one, one).item() == pytest.approx(right.square().item(), rel=1e-6)
    exact = torch.dot(one.double(), other.double())
    assert abs(linalg.multiply_values(one, other) - exact) < 1e-6 * right * other.double().norm()


@pytest.mark.quick
def test_norms_of_what_is_not_finite_are_not() -> None:
    large = torch.ones(linalg.LARGE + 9)
    for value in (torch.inf, torch.nan):
        large[-1] = value
        assert not linalg.compute_norms([large]).isfinite().any()
    assert linalg.compute_norms([torch.zeros(2, linalg.LARGE)]).tolist() == [0.0]


@pytest.mark.parametrize("optimizer", ["lamb", "lars", "shampoo"])
def test_a_step_of_a_large_matrix_has_the_length_that_it_has_in_float64(optimizer: str) -> None:
    """Few rows have most of the gradient, as those of frequent words: torch's own norms are off by 4e-4 and 9e-4."""
    draws, steps = np.random.default_rng(0), []
    weight, grad = (draws.standard_normal((2**14, 256), np.float32) for _ in range(2))
    weight *= 0.02
    grad[50:] *= 0.01
    make = load.load_half(f"suite.optimizers.{optimizer}", "torch").make
    for kind in (torch.float32, torch.float64):
        parameter = torch.nn.Parameter(torch.from_numpy(weight).to(kind, copy=True))
        made = make([("weight", parameter)], lr=1.0)
        parameter.grad = torch.from_numpy(grad).to(kind)
        before = parameter.detach().double().clone()
        made.step()
        steps.append(parameter.detach().double() - before)
    assert torch.sum(steps[0] * steps[1]) / steps[1].square().sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("optimizer", [name for name in engines.INSIDE if name not in (*WIDTHS, "external")])
def test_no_optimizer_and_no_clipping_reduces_more_terms(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linalg, "LARGE", 8)
    monkeypatch.setattr(linalg, "PART", 4)
    made = engines.engine(engines.config(optimizer, "torch", clip_norm=1.0))
    with Watch() as watch:
        engines.advance(made, range(4))
    assert 0 < watch.terms <= 8


class Watch(TorchDispatchMode):
    """Finds the most terms that a norm or an inner product has added up."""

    terms = 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function.name().removeprefix("aten::").split(".")[0] in REDUCTIONS:
            inputs = [value.numel() for value in tree_leaves(args[0]) if isinstance(value, torch.Tensor)]
            results = [value.numel() for value in tree_leaves(result)]
            self.terms = max(self.terms, *(n / m for n, m in zip(inputs, results, strict=True) if m))
        return result
