"""Steps on a pretend GPU: nothing mixes devices, all state is there, and the host waits no more often than listed."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("accelerator steps")
CASES = {"resnet50 sgd": ("sgd", "resnet50", "float32")}


@pytest.fixture(scope="module")
def found(on_device: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    return on_device("accelerator.steps.measure", CASES, 2)


@pytest.mark.parametrize("name", CASES)
def test_steps_equal_those_on_the_cpu(found: dict[str, dict[str, Any]], name: str) -> None:
    case = found[name]
    assert "error" not in case, case["error"]
    assert case["gap"] == 0
    assert not case["elsewhere"] and case["kinds"] == ["torch.float32"]
    assert case["waits"] == [{}, {}]
