"""Newton-Schulz schedules, spectral descent, and the size of updates."""

import numpy as np
import pytest
from claimed import holds

from suite.studies import adam_rms, newton_schulz, spectral_descent


@pytest.mark.parametrize("schedule", newton_schulz.SCHEDULES)
def test_the_scalar_steps_are_those_of_matrices(schedule: newton_schulz.Schedule) -> None:
    matrix = np.random.default_rng(3).standard_normal((12, 12))
    step = matrix / np.linalg.norm(matrix)
    for a, b, c in newton_schulz.SCHEDULES[schedule][:5]:
        square = step @ step.T
        step = a * step + (b * square + c * square @ square) @ step
    error = np.abs(np.linalg.svd(step, compute_uv=False) - 1).max()
    assert newton_schulz.measure(3, schedule=schedule, steps=5, size=12) == pytest.approx(error, rel=1e-9)


def test_polar_express_is_better_after_each_step_and_would_not_be_with_the_triples_reversed() -> None:
    assert all(holds("amsel2025-worst-case", name) for name in ("first", "fifth", "eighth"))
    values = np.geomspace(1e-3, 1, 1001)
    printed = newton_schulz.SCHEDULES["polar-express"][:5]
    assert newton_schulz.iterate(values, printed[::-1]) > newton_schulz.iterate(values, (newton_schulz.MUON,) * 5)


def test_the_last_two_steps_make_the_values_precise_unless_they_start_too_small() -> None:
    assert holds("deepseek2026-precise", "from-1e-3")
    assert newton_schulz.measure(0, schedule="muon", steps=10) > 0.1
    assert newton_schulz.iterate(np.array([1e-6]), newton_schulz.SCHEDULES["deepseek"]) > 0.9


def test_shampoo_equals_spectral_descent_for_its_power_only_and_without_accumulation_only() -> None:
    assert holds("optax-muon-shampoo", "equal", 1) and holds("optax-muon-shampoo", "accumulated", 1)
    assert spectral_descent.measure(1, power=0.5) > 0.1


def test_the_root_mean_square_of_noise_is_that_of_an_exponential_mean() -> None:
    """Noise gives the numerator the variance (1 - b) / (1 + b); the denominator is 1 if beta2 is near 1."""
    small = adam_rms.measure(0, beta1=0.5, beta2=0.9999, parameters=5000, steps=100)
    assert small == pytest.approx((0.5 / 1.5) ** 0.5, rel=0.02)
    signal = adam_rms.measure(0, beta1=0.9, beta2=0.999, signal=3.0, parameters=1000, steps=300)
    assert signal == pytest.approx((9.05 / 10) ** 0.5, rel=0.01)  # (mean^2 + variance / 19) / (mean^2 + variance)
