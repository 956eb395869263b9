"""Schedules in plain Python: the published shapes at their published points."""

import bisect
import itertools
from typing import Any

import pytest

from suite.contract import UserError
from suite.nodes import OptimizerSettings
from suite.settings.configure import resolve_training
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
    config = config.model_copy(update={"warmup": 50, "warmup_start": 0.03125})
    at = [3.2 * compute_factor(step, 900, config) for step in (0, 49, 50, 299, 300, 599, 600, 799, 800)]
    assert at[0] == pytest.approx(0.1 + (3.2 - 0.1) / 50)
    assert at[1:] == pytest.approx([3.2, 3.2, 3.2, 0.32, 0.32, 0.032, 0.032, 0.0032])


def list_drops(total: int, config: ScheduleSettings) -> list[int]:
    """Updates, from 0, at which the rate is lower than before; found by bisection after the warm-up."""
    drops, step = [], int(config.warmup)
    while True:
        reached = compute_factor(step, total, config)
        step = bisect.bisect_right(
            range(total), -reached, step, key=lambda later: -compute_factor(later, total, config)
        )
        if step == total:
            return drops
        drops.append(step)


@pytest.mark.parametrize("warmup", [0, 10, 0.05, 120])
def test_boundaries_are_shares_of_the_run_whatever_the_warm_up(warmup: float) -> None:
    """Those that the warm-up covers take effect at its end. torch's MultiStepLR is the independent schedule."""
    torch = pytest.importorskip("torch")
    config = schedule(shape="staircase", warmup=warmup, boundaries=[0.5, 0.75], factor=0.1)
    rates = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.MultiStepLR(rates, milestones=[100, 150], gamma=0.1)
    for step in range(200):
        if step >= (10 if warmup == 0.05 else warmup):
            assert compute_factor(step, 200, config) == pytest.approx(theirs.get_last_lr()[0]), step
        rates.step()
        theirs.step()


def test_a_warm_up_that_is_not_whole_never_exceeds_the_rate() -> None:
    """2.5 steps of warm-up gave 1.2 times the rate in the third."""
    config = schedule(shape="constant", warmup=2.5)
    assert [compute_factor(step, 10, config) for step in range(4)] == [0.4, 0.8, 1.0, 1.0]


@pytest.mark.parametrize("warmup", [30, 0.5])
def test_a_shape_that_ends_within_the_warm_up_is_refused(warmup: float) -> None:
    with pytest.raises(UserError, match=r"schedule\.end=20: must be after the warm-up of \d+ steps"):
        compute_factor(0, 100, schedule(shape="linear", warmup=warmup, end=20))
    assert compute_factor(0, 100, schedule(shape="constant", warmup=warmup, end=20)) < 1  # which does not read it


@pytest.mark.parametrize("shape", ["linear", "cosine", "inverse_sqrt"])
def test_a_run_within_its_warm_up_is_the_same_with_a_later_end(shape: str) -> None:
    """A search cuts a run of 8 steps to 2 and keeps its end: all of them are steps of the warm-up."""
    short, whole = schedule(shape=shape, warmup=10, end=8), schedule(shape=shape, warmup=10)
    assert [compute_factor(step, 2, short) for step in range(2)] == [compute_factor(step, 8, whole) for step in (0, 1)]
    assert [compute_factor(step, 8, short) for step in range(8)] == [
        compute_factor(step, 8, whole) for step in range(8)
    ]


def test_options_of_a_shape_are_asked_for_in_a_run_within_its_warm_up() -> None:
    with pytest.raises(UserError, match=r"needs boundaries; set schedule\.boundaries=VALUE"):
        compute_factor(0, 2, schedule(shape="staircase", warmup=10, factor=0.1))


def test_shares_are_rounded_to_the_nearest_step() -> None:
    """Shares with seven digits were rounded up, one update late."""
    for total in (40, 900, 14_076, 450_000):
        for share in (0.2222222, 0.3333333, 0.6666667, 0.8888889):
            (drop,) = list_drops(total, schedule(shape="staircase", boundaries=[share], factor=0.5))
            assert abs(drop - share * total) <= 0.5, (total, share)
    assert list_drops(40, schedule(shape="staircase", boundaries=[0.5], factor=0.1)) == [20]
    assert list_drops(200, schedule(shape="staircase", boundaries=[0.4], end=300, factor=0.1)) == [120]
    assert list_drops(200, schedule(shape="staircase", boundaries=[0.5], end=400, factor=0.1)) == []


IMAGES = 1_281_167  # of ImageNet's training split
EPOCHS = {
    "goyal-256": (30, 60, 80),  # Goyal et al. 2017, §5.1
    "goyal-8k": (30, 60, 80),
    "bvlc-caffenet": tuple(100_000 * passed * 256 / IMAGES for passed in range(1, 5)),  # every 100,000 updates of 256
}


@pytest.mark.parametrize("recipe", EPOCHS)
def test_published_staircases_fall_at_the_published_updates(recipe: str) -> None:
    """At the first update after a number of epochs, or the one before it."""
    run = resolve_training(
        [f"task={'caffenet' if 'caffe' in recipe else 'resnet50'}", "scale=paper", f"recipe={recipe}"]
    )
    drops = list_drops(run.max_steps, run.schedule)
    published = [epochs * IMAGES / run.task.batch_size for epochs in EPOCHS[recipe]]
    assert len(drops) == len(published)
    assert all(abs(drop - update) < 1 for drop, update in zip(drops, published, strict=True)), (drops, published)


POLYNOMIALS = {  # the updates at which the decay begins and ends, and its power
    # epochs of table 2 in Osawa et al. 2020
    **{
        f"spngd-{size}": (begin * IMAGES / batch, end * IMAGES / batch, power)
        for size, batch, begin, end, power in (
            ("4k", 4096, 1, 53, 11.0),
            ("8k", 8192, 1, 53.5, 8.0),
            ("16k", 16_384, 1, 53.5, 8.0),
            ("32k", 32_768, 1.5, 49.5, 3.5),
            ("65k", 65_536, 2, 64.5, 2.9),
            ("131k", 131_072, 3, 100, 2.9),
        )
    },
    "mlperf-lars-32k": (706, 2512, 2),  # Nado et al. 2021, §3
    "nado-nesterov-32k": (706, 2512, 2),
    "anil-shampoo-32k": (196, 1729, 2),
    "bert-lamb-phase1": (0, 7038, 0.5),
    "bert-lamb-phase2": (0, 1563, 0.5),
    "oyama-caffenet": (0, 8125, 2),
}


@pytest.mark.parametrize("recipe", POLYNOMIALS)
def test_published_polynomials_begin_and_end_at_the_published_updates(recipe: str) -> None:
    """torch's PolynomialLR, started at the published update, is the independent schedule."""
    torch = pytest.importorskip("torch")
    task = {"bert": "bert", "oyama": "caffenet"}.get(recipe.partition("-")[0], "resnet50")
    run = resolve_training([f"task={task}", "scale=paper", f"recipe={recipe}"])
    begin, end, power = POLYNOMIALS[recipe]
    assert run.schedule.power == power and run.schedule.shape == "polynomial"
    first = round(begin)
    rates = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.PolynomialLR(rates, total_iters=round(end) - first, power=power)
    for step in range(first, run.max_steps):
        if step >= run.schedule.warmup and not step % 7:
            expected = max(theirs.get_last_lr()[0], run.schedule.floor)
            assert compute_factor(step, run.max_steps, run.schedule) == pytest.approx(expected, rel=1e-6), step
        rates.step()
        theirs.step()


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


@pytest.mark.parametrize("shape", [shape for shape in ScheduleSettings.choices("shape") if shape != "constant"])
def test_the_floor_is_the_smallest_factor_after_the_warm_up(shape: str) -> None:
    """And it is reached: by no shape is the factor scaled to end there. A warm-up begins where it is told to."""
    further = {"polynomial": {"power": 2}, "exponential": {"factor": 0.1}}
    further["staircase"] = {"boundaries": [0.3, 0.6], "factor": 0.1}
    config = schedule(shape=shape, warmup=10, **further.get(shape, {}))
    bare, floored = (
        [compute_factor(step, 1000, config.model_copy(update={"floor": floor})) for step in range(1000)]
        for floor in (0.0, 0.25)
    )
    assert floored[10:] == [max(factor, 0.25) for factor in bare[10:]] and floored[-1] == 0.25
    assert floored[:10] == bare[:10] == pytest.approx([step / 10 for step in range(1, 11)])


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


def test_a_momentum_that_follows_stays_within_its_range() -> None:
    steps = schedule(shape="staircase", boundaries=[0.5], factor=3.0, warmup=0, momentum_follows=True)
    start = schedule(shape="constant", warmup=4, warmup_start=5.0, momentum_follows=True)
    for config, step in ((steps, 9), (start, 0)):
        with pytest.raises(UserError, match=rf"momentum of step {step + 1} would be .* more than 1; .* up to 1\.111"):
            schedule_values(step, 10, config, optimizer(lr=0.1, momentum=0.9))
        assert schedule_values(step, 10, config, optimizer(lr=0.1, momentum=0.1))["momentum"] <= 0.5


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
