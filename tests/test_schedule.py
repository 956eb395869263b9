"""Schedules in plain Python: the published shapes at their published points."""

import itertools
from typing import Any

import pytest

from suite.contract import UserError
from suite.nodes import OptimizerSettings
from suite.settings.rates import Scheduled, compute_factor, schedule_values
from suite.settings.schedule import ScheduleSettings

pytestmark = pytest.mark.quick


def schedule(**values: Any) -> ScheduleSettings:
    return ScheduleSettings.given({"warmup": 0, **values}, "schedule.")


def optimizer(name: str = "sgd", **values: Any) -> OptimizerSettings:
    node = {"name": name, "module": f"suite.optimizers.{name}", **values}
    return OptimizerSettings.chosen(node).given(node)


def test_linear_warms_up_and_ends_at_zero() -> None:
    config = schedule(shape="linear", warmup=10)
    assert [compute_factor(step, 110, config) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert compute_factor(10, 110, config) == 1.0
    assert compute_factor(60, 110, config) == pytest.approx(0.5)
    assert compute_factor(109, 110, config) == pytest.approx(0.01)


def test_exponential_decay_loses_the_same_share_each_epoch() -> None:
    config = schedule(shape="exponential", factor=0.97**50)
    epochs = [compute_factor(step, 500, config) for step in range(0, 500, 10)]
    assert all(abs(b / a - 0.97) < 1e-12 for a, b in itertools.pairwise(epochs)) and epochs[0] == 1


def test_goyal_staircase() -> None:
    """lr 3.2 at batch 8,192 from 0.1 in 5 epochs; a tenth from epochs 30, 60 and 80 of 90 (arXiv:1706.02677, §5.1)."""
    config = schedule(shape="staircase", boundaries=[1 / 3, 2 / 3, 8 / 9], factor=0.1)
    config = config.model_copy(update={"warmup": 50, "warmup_start": 0.03125, "begin": 0})
    at = [3.2 * compute_factor(step, 900, config) for step in (0, 49, 50, 299, 301, 599, 601, 799, 801)]
    assert at[0] == pytest.approx(0.1 + (3.2 - 0.1) / 50)
    assert at[1:] == pytest.approx([3.2, 3.2, 3.2, 0.32, 0.32, 0.032, 0.032, 0.0032])


def test_spngd_decay_and_momentum() -> None:
    """η(e) = η0 (1 - (e - e_start) / (e_end - e_start))^p and m(e) = m0 / η0 · η(e) (arXiv:2002.06015)."""
    config = schedule(shape="polynomial", power=3.5, warmup=0, begin=59, end=1935, momentum_follows=True)
    values = schedule_values(1000, 1760, config, optimizer(lr=0.03, momentum=0.97))
    expected = (1 - (1000 - 59) / (1935 - 59)) ** 3.5
    assert values == pytest.approx({"lr": 0.03 * expected, "momentum": 0.97 * expected})
    assert schedule_values(30, 1760, config, optimizer(lr=0.03, momentum=0.97)) == {"lr": 0.03, "momentum": 0.97}
    assert schedule_values(30, 1760, config, optimizer(lr=0.03, momentum=0.0)) == {"lr": 0.03}, (
        "nothing follows that is not there"
    )


def test_quadratic_warmup_and_floor() -> None:
    """Nado et al. 2021 (arXiv:2102.06356): peak 7.05 after 706 quadratic steps, 6e-6 at the end of 2,512."""
    config = schedule(shape="polynomial", power=2, warmup=706, warmup_power=2, floor=8.51e-7)
    assert 7.05 * compute_factor(352, 2512, config) == pytest.approx(7.05 * 0.25)
    assert 7.05 * compute_factor(2512, 2512, config) == pytest.approx(6e-6, rel=1e-3)


def test_transformer_inverse_square_root() -> None:
    """d_model**-0.5 · min(step**-0.5, step · warmup**-1.5) (Vaswani et al. 2017, eq. 3) from its peak at step 4,000."""
    config = schedule(shape="inverse_sqrt", warmup=4000)
    for step in (1000, 4000, 8000, 16_000, 99_999):
        published = min(step**-0.5, step * 4000**-1.5) / 4000**-0.5
        assert compute_factor(step, 100_000, config) == pytest.approx(
            published, rel=1.1e-3
        )  # the rise counts steps from 1
    assert compute_factor(16_000, 100_000, config) == pytest.approx(0.5)
    assert compute_factor(16_000, 20_000, config) == pytest.approx(0.5)  # it does not depend on the run's length


def test_cosine_is_half_way_at_half_time() -> None:
    config = schedule(shape="cosine", warmup=0)
    assert [compute_factor(step, 100, config) for step in (0, 50, 100)] == pytest.approx([1.0, 0.5, 0.0])


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(UserError, match=r"schedule\.shape=triangle"):
        schedule(shape="triangle")


def test_a_momentum_that_is_not_there_cannot_follow() -> None:
    config = schedule(shape="constant", momentum_follows=True)
    with pytest.raises(UserError, match=r"optimizer=adamw has no momentum; set schedule\.momentum_follows=false"):
        schedule_values(0, 1, config, optimizer("adamw", lr=0.1))


def test_a_warmup_below_one_is_a_share_of_the_run() -> None:
    config = schedule(shape="cosine", warmup=0.05)
    assert [compute_factor(step, 1000, config) for step in (0, 49, 50, 1000)] == pytest.approx([1 / 50, 1.0, 1.0, 0.0])


def test_the_rates_of_a_long_run_are_computed_one_by_one() -> None:
    """Two million steps of DLRM would take half a gigabyte as a list."""
    config, sgd = schedule(shape="linear"), optimizer(lr=2.0, momentum=0.9)
    rates = Scheduled(2_048_437, config, sgd, rate=0.5)
    assert len(rates) == 2_048_437 and rates[0] == schedule_values(0, 2_048_437, config, sgd, 0.5) == {"lr": 1.0}
    assert rates[-1] == rates[2_048_436] and rates[1:3] == [rates[1], rates[2]]
    with pytest.raises(IndexError):
        rates[2_048_437]
