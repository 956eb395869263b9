"""Networks of convolutions keep their images with channels last on a GPU, and compute the same values."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("accelerator images")
CASES = [("resnet50", 0), ("resnet50", 1), ("caffenet", 0), ("cifar10", 0)]  # ResNet-50's second form carries images
ROUNDING = 1e-10  # in float64; a CPU has other convolutions for this order


@pytest.fixture(scope="module")
def found(on_device: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    return on_device("accelerator.images.compare", CASES)


@pytest.mark.parametrize("case", [f"{task} {form}" for task, form in CASES])
def test_every_convolution_has_its_channels_last(found: dict[str, dict[str, Any]], case: str) -> None:
    """Also after a run is continued, and in an evaluation; on a CPU, nothing is stored otherwise."""
    one = found[case]
    assert one["stated"] == [True, False] and one["gap"] <= ROUNDING
    assert one["device"] and not [name for name in one["device"] if "other order" in name]
    assert any("other order" in name for name in one["cpu"])
