"""Error feedback, and Dion's compressed synchronization."""

import numpy as np
from claimed import holds

from suite.studies import dion_sync, sign_feedback


def test_signs_stay_on_their_line_and_feedback_leaves_it() -> None:
    assert all(holds("karimireddy2019-feedback", name, 1) for name in ("signs", "scaled", "feedback"))


def test_the_slope_is_a_subgradient() -> None:
    random = np.random.default_rng(0)
    for x, y in random.standard_normal((50, 2, 2)):
        assert sign_feedback.value(y) >= sign_feedback.value(x) + sign_feedback.slope(x) @ (y - x) - 1e-12


def test_one_step_of_dion_at_full_rank_is_along_the_gradient() -> None:
    """With all columns of Q, P R' is the momentum, which one step leaves in the columns of Q."""
    gradient = np.random.default_rng(0).standard_normal((1, 1, 6, 4))
    [weights] = dion_sync.run(gradient, np.zeros((6, 4)), np.eye(4), rate=1.0)
    left = np.linalg.qr(gradient[0, 0])[0]
    right = gradient[0, 0].T @ left
    expected = -((6 / 4) ** 0.5) * left @ (right / np.linalg.norm(right, axis=0)).T
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_compressed_and_averaged_gradients_agree_for_three_ranks_too() -> None:
    assert dion_sync.measure(1, ranks=3, rank=2) < 1e-10
    assert holds("dion-compressed-sync", "float64", 5) and holds("dion-compressed-sync", "float32", 5)


def test_ranks_that_keep_their_own_basis_do_not_agree() -> None:
    random = np.random.default_rng(0)
    gradients, start = random.standard_normal((5, 2, 8, 6)), np.zeros((8, 6))
    basis = random.standard_normal((6, 2))
    alone = np.mean([dion_sync.run(gradients[:, [rank]], start, basis) for rank in range(2)], axis=0)
    together = dion_sync.run(gradients, start, basis)
    assert np.linalg.norm(alone - together) > 0.01
