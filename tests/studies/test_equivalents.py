"""Optimizers of torch and optax that documentation calls equivalent, and Schedule-Free descent."""

import numpy as np
import pytest
from claimed import holds

from suite.studies import equivalents, muon_rms, schedule_free

torch = pytest.importorskip("torch")
pytest.importorskip("optax")


def test_the_switch_of_adam_and_the_threshold_of_radam() -> None:
    assert holds("torch-adam-decoupled", "adamw")
    assert holds("torch-radam-threshold", "five", 1) and holds("torch-radam-threshold", "four", 1)


def test_radam_rectifies_first_in_step_6_and_with_the_paper_s_threshold_in_step_5() -> None:
    gradients = np.ones((6, 1))
    five, four = (equivalents.rectify(gradients[:5], above) for above in (5.0, 4.0))
    assert five == pytest.approx(-0.05) and abs(four) < 0.045  # a step of 0.01 each, if none is rectified
    assert abs(equivalents.rectify(gradients, 5.0)) < 0.055


def nadam(gradients: np.ndarray, schedule: float) -> np.ndarray:
    """Compute how far torch's formulas of NAdam move parameters; with `schedule` 0, beta1 is the same in all steps."""
    first = second = moved = np.zeros(gradients.shape[1])
    product = 1.0
    for step, gradient in enumerate(gradients, start=1):
        now, after = (0.9 * (1 - schedule * 0.5 * 0.96 ** (0.004 * number)) for number in (step, step + 1))
        product *= now
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        mean = after * first / (1 - product * after) + (1 - now) * gradient / (1 - product)
        moved = moved - 0.01 * mean / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return moved


def test_a_schedule_of_the_momentum_is_all_that_separates_the_two_nadams() -> None:
    from suite.studies.equivalents.jax import move_nadam as in_optax
    from suite.studies.equivalents.torch import move_nadam as in_torch

    gradients = np.random.default_rng(0).standard_normal((8, 5))
    np.testing.assert_allclose(
        in_torch(gradients), nadam(gradients, 1.0), rtol=1e-6
    )  # its product of momenta is single
    np.testing.assert_allclose(in_optax(gradients), nadam(gradients, 0.0), rtol=1e-9)
    assert not holds("optax-nadam-dozat", "defaults")


def test_schedule_free_descent_has_its_two_limits_and_optax_s_weights() -> None:
    assert all(holds("defazio2024-limits", name, 1) for name in ("beta-0", "beta-1", "between"))
    assert holds("optax-schedule-free-weights", "docstring", 1) and holds("optax-schedule-free-weights", "readme", 1)
    assert schedule_free.measure(0, compared="primal-averaging", beta=0.0) > 0.001


def test_torchs_muon_has_the_size_of_its_orthogonalized_update() -> None:
    from suite.studies.muon_rms.torch import make_update

    gradient = np.random.default_rng(0).standard_normal((16, 64))
    update = make_update(gradient)
    values = np.linalg.svd(update, compute_uv=False) / (0.2 * 64**0.5)
    assert values.min() > 0.6 and values.max() < 1.3
    assert muon_rms.measure(0, rows=16, columns=64) == pytest.approx(0.2, rel=0.15)
    assert muon_rms.measure(0, rows=16, columns=64, rank=4) == pytest.approx(0.1, rel=0.15)


def test_forms_of_momentum_differ_where_the_documentation_says_and_nowhere_else() -> None:
    for claim, names in {
        "torch-sgd-momentum": ("decaying", "constant"),
        "torch-sgd-first-buffer": ("dampened", "default"),
    }.items():
        assert all(holds(claim, name, 1) for name in names)
    from suite.studies.momentum_forms.torch import move

    in_torch = move(np.ones((2, 1)), np.array([1.0, 1.0]), 0.9, 0.5)
    assert in_torch == pytest.approx(-(1 + 0.9 + 0.5))  # the first gradient is whole, the second is halved


def test_schedule_free_adamw_stores_z_and_the_second_moment() -> None:
    assert all(holds("optax-schedule-free-memory", name) for name in ("sgd", "adamw"))
    from suite.studies.schedule_free_adam.jax import PARAMETERS, count_bytes

    assert [count // (4 * PARAMETERS) for count in count_bytes(True)] == [2, 2]
    assert holds("optax-schedule-free-rms", "updates", 1)
