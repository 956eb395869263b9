"""Studies of Adam: step bounds, scale, and the online problems on which it diverges."""

import numpy as np
import pytest
from claimed import holds

from suite.studies import adam_bound, adam_online, adam_scale


def test_online_adam_equals_rmsprop_of_torch() -> None:
    """With beta1 = 0, and the step size set in each step, the paper's Adam is torch's RMSprop with epsilon 0."""
    torch = pytest.importorskip("torch")
    x = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.RMSprop([x], lr=0.2, alpha=0.1, eps=0.0)
    for step in range(1, 10):  # nine steps, so that the last tenth is the last step
        optimizer.param_groups[0]["lr"] = 0.2 / step**0.5
        x.grad = torch.tensor([3.0 if step % 3 == 1 else -1.0], dtype=torch.float64)
        optimizer.step()
        with torch.no_grad():
            x.clamp_(-1, 1)
    assert adam_online.measure(0, problem="thirds", start=0.3, rate=0.2, steps=9) == pytest.approx(x.item(), rel=1e-12)


def test_the_last_iterate_of_one_step_is_the_hand_computed_one() -> None:
    """v_1 = (1 - beta2) C^2, so the first move is alpha / sqrt(1 - beta2), to the left."""
    value = adam_online.measure(0, problem="thirds", start=0.9, steps=1, rate=0.3, beta2=0.1)
    assert value == pytest.approx(0.9 - 0.3 / 0.9**0.5, rel=1e-14)


def test_adam_reaches_the_worst_point_and_amsgrad_or_a_large_beta2_the_best() -> None:
    assert holds("reddi2018-adam-diverges-thirds", "c3")
    assert holds("reddi2018-adam-diverges-thirds", "c10")
    assert holds("reddi2018-adam-diverges-thirds", "large-beta2")
    assert adam_online.measure(0, problem="thirds", method="amsgrad") < -0.99


def test_slopes_of_the_other_sign_change_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    original = adam_online.gradients
    monkeypatch.setattr(adam_online, "gradients", lambda *arguments: -original(*arguments))
    assert not holds("reddi2018-adam-diverges-thirds", "c3")


@pytest.mark.parametrize("beta2", [0.999, 0.99])
@pytest.mark.parametrize("steps", [20, 2000])
def test_growing_gradients_attain_the_bound_of_cauchy_and_schwarz(beta2: float, steps: int) -> None:
    beta1 = 0.9
    share = beta1**2 / beta2
    largest = (1 - beta1) / np.sqrt(1 - beta2) * np.sqrt((1 - share**steps) / (1 - share))
    largest *= np.sqrt(1 - beta2**steps) / (1 - beta1**steps)  # of both bias corrections
    gradients = (beta2 / beta1) ** np.arange(steps)
    assert adam_bound.ratios(gradients, beta1, beta2)[-1] == pytest.approx(largest, rel=1e-10)
    for seed in range(5):  # no other sequence exceeds it
        other = gradients * np.random.default_rng(seed).uniform(0.5, 1.5, steps)
        assert abs(adam_bound.ratios(other, beta1, beta2)[-1]) < largest


def test_the_printed_bound_holds_for_sparse_gradients_and_fails_for_growing_ones() -> None:
    assert holds("kingma2015-adam-step-bound", "sparse") and holds("kingma2015-adam-step-bound", "normal")
    assert not holds("kingma2015-adam-step-bound", "growing") and not holds(
        "kingma2015-adam-step-bound", "growing-second"
    )
    assert adam_bound.measure(0, gradients="sparse", steps=20_000) == pytest.approx(1, abs=1e-6)


def test_steps_three_times_as_long_change_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    original = adam_bound.ratios
    monkeypatch.setattr(adam_bound, "ratios", lambda *arguments: 3 * original(*arguments))
    assert not holds("kingma2015-adam-step-bound", "sparse")


def test_steps_equal_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    gradients = np.random.default_rng(1).standard_normal((10, 4))
    x = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([x], lr=1.0, eps=1e-3)
    for gradient in gradients:
        x.grad = torch.from_numpy(gradient)
        optimizer.step()
    np.testing.assert_allclose(-adam_scale.adam(gradients, 1e-3).sum(axis=0), x.detach().numpy(), rtol=1e-12)


def test_scale_matters_only_near_epsilon() -> None:
    assert holds("kingma2015-adam-scale", "exact-zero") and holds("kingma2015-adam-scale-default", "near-one")
    assert not holds("kingma2015-adam-scale-default", "near-epsilon")
    # a constant gradient of epsilon moves by g / (|g| + epsilon) = 1/2
    assert adam_scale.adam(np.full((5, 1), 1e-8), 1e-8)[:, 0] == pytest.approx(np.full(5, 0.5))


def test_an_epsilon_changes_the_verdict_on_scale() -> None:
    assert adam_scale.measure(0, factor=1e-4, epsilon=1e-8) > 1e-9
