"""Studies that count bytes and FLOPs, and the limits of Muon's iteration, against closed forms."""

import math

import numpy as np
import pytest

from suite.studies import diloco_volume, muon_flops, muon_limit, onebit_volume, zero_volume
from suite.studies.muon_singular import A, B, C, iterate


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("ranks", [2, 8])
def test_sharded_parameters_are_gathered_twice_a_batch(ranks: int, batches: int) -> None:
    ratio = zero_volume.measure(0, ranks=ranks, layers=3, width=16, batches=batches)
    assert ratio == pytest.approx((2 * batches + 1) / 2)


def test_rows_are_padded_to_a_multiple_of_the_ranks() -> None:
    assert zero_volume.measure(0, ranks=64, layers=2, width=100) == pytest.approx(1.5 * 128 / 100)


@pytest.mark.parametrize(("rounds", "interval"), [(2, 3), (1, 5), (4, 1)])
def test_local_steps_send_nothing(rounds: int, interval: int) -> None:
    assert diloco_volume.measure(0, interval=interval, rounds=rounds, workers=4, width=8) == pytest.approx(interval)


@pytest.mark.parametrize("warmup", [0.0, 0.15, 0.5, 1.0])
def test_a_sign_is_a_sixteenth_of_float16(warmup: float) -> None:
    assert onebit_volume.measure(0, warmup=warmup) == pytest.approx(1 / (warmup + (1 - warmup) / 16), rel=1e-6)


@pytest.mark.parametrize(("width", "tokens", "expansion"), [(64, 4096, 1), (64, 4096, 4), (96, 1000, 2)])
def test_an_iteration_multiplies_three_matrices(width: int, tokens: int, expansion: int) -> None:
    matrices = [(width, width)] * 4 + [(expansion * width, width)] * 2
    # X X' and the last product with X have n m^2 multiply-adds, the square of X X' has m^3
    flops = sum(5 * 2 * (2 * long * short**2 + short**3) for long, short in matrices)
    weights = sum(long * short for long, short in matrices)
    expected = 100 * flops / (6 * weights * tokens)
    assert muon_flops.measure(0, width=width, tokens=tokens, expansion=expansion) == pytest.approx(expected)


def test_values_end_between_the_local_minimum_and_its_image() -> None:
    lowest = math.sqrt((-3 * B + math.sqrt(9 * B**2 - 20 * A * C)) / (10 * C))  # where the derivative is 0, right of 1
    least, largest = iterate(np.array([lowest]), 1)[0], iterate(np.array([lowest]), 2)[0]
    assert muon_limit.measure(0, quantity="least") == pytest.approx(least, abs=2e-4)
    assert muon_limit.measure(0, quantity="largest") == pytest.approx(largest, abs=2e-4)
