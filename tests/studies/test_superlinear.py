"""Tests of how the projected step time falls, against the printed times."""

import pytest
from claimed import check_of, holds

from suite import published
from suite.studies import superlinear


def test_the_claim_holds_and_the_published_ratios_are_those_of_the_rows() -> None:
    for name, first, last in (("fall", "A3-26", "A3-29"), ("level", "A3-30", "A3-33")):
        assert holds("osawa2020-super-linear", name)
        times = [published.find_row(id).value for id in (last, first)]
        assert check_of("osawa2020-super-linear", name).published == pytest.approx(times[0] / times[1], abs=5e-3)


def test_the_projection_depends_on_the_inverses_that_are_shared() -> None:
    assert superlinear.measure(0, first=64, last=8) == pytest.approx(1 / superlinear.measure(0, first=8, last=64))
    assert superlinear.measure(0, first=8, last=64, series="emp + unit BN") > superlinear.measure(0, first=8, last=64)


def test_a_number_of_devices_that_the_figure_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="figure 5 has 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024 devices"):
        superlinear.measure(0, first=8, last=48)
