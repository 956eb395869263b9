"""Weight decay against L2 regularization."""

import numpy as np
import pytest
from claimed import holds

from suite.studies import weight_decay


def test_each_proposition() -> None:
    assert holds("loshchilov2019-decay-is-l2-for-sgd", "sgd")
    assert holds("loshchilov2019-decay-is-not-l2-for-adam", "adam") and holds(
        "loshchilov2019-decay-is-not-l2-for-adam", "fixed"
    )


def test_equation_2_holds_with_half_of_lambda_prime_and_not_as_printed() -> None:
    """alpha / s times the penalty's gradient must be lambda theta: lambda' / 2 gives it, as lambda' alpha = lambda."""
    assert holds("loshchilov2019-decay-is-scaled-l2", "best") and not holds(
        "loshchilov2019-decay-is-scaled-l2", "printed"
    )
    # with a learning rate of 1 both factors are one number, and the printed one is right
    one = weight_decay.measure(
        0, preconditioner="fixed", penalty="scaled", coefficient="printed", rate=1.0, decay=0.01, steps=1
    )
    assert one < 1e-12


def test_after_one_step_only_a_preconditioner_makes_them_differ() -> None:
    exact = weight_decay.measure(1, preconditioner="identity", steps=1)
    assert exact < 1e-12 < 1e-4 < weight_decay.measure(1, preconditioner="fixed", steps=1)


def test_iterates_with_weight_decay_equal_those_of_torch() -> None:
    """torch's AdamW multiplies by 1 - lr x weight_decay; with lambda = lr x weight_decay it is algorithm 2."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(4)
    start, targets = random.standard_normal(20), random.standard_normal((6, 20)) + 3
    curvature, scale = np.exp(random.uniform(-2, 2, 20)), np.exp(random.uniform(-1, 1, 20))
    problem = weight_decay.Problem(start, targets, curvature, scale)
    x = torch.from_numpy(start.copy()).requires_grad_()
    optimizer = torch.optim.AdamW([x], lr=0.01, weight_decay=1.0)
    for target in targets:
        x.grad = torch.from_numpy(curvature) * (x.detach() - torch.from_numpy(target))
        optimizer.step()
    expected = weight_decay.run(problem, "adam", rate=0.01, decoupled=0.01)
    np.testing.assert_allclose(expected, x.detach().numpy(), rtol=1e-10)
