"""Operators, FLOPs, bytes and memory of a step at `scale=gpu` are at most a tenth from the accepted ones."""

from typing import Any

import costs
import pytest

LARGEST = 0.1  # share by which a cost may differ
SLOW = ("bert lamb torch", "bert lamb jax", "resnet50 kfac jax", "resnet50 lars jax")
CASES = [f"{case} {backend}" for case in costs.CASES for backend in costs.MEASURES]


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CASES])
def test_a_step_costs_what_was_accepted(name: str) -> None:
    case, _, backend = name.rpartition(" ")
    accepted, found = costs.read_golden()[case][backend], costs.MEASURES[backend](case)
    grown = {key: f"{found[key] / accepted[key] - 1:+.1%}" for key in accepted}
    assert found == {key: pytest.approx(value, rel=LARGEST) for key, value in accepted.items()}, grown


@pytest.mark.parametrize("case", costs.CASES)
def test_the_frameworks_agree(case: str) -> None:
    """On memory, and where products dominate on FLOPs: XLA also counts elementwise operations."""
    found: Any = costs.read_golden()[case]
    assert found["torch"]["held"] == found["jax"]["held"]
    if not case.startswith("dlrm"):
        assert found["torch"]["flops"] == pytest.approx(found["jax"]["flops"], rel=LARGEST)


def test_the_page_has_the_bounds() -> None:
    page = (costs.GOLDEN.parents[2] / "docs" / "accelerators.md").read_text(encoding="utf-8")
    assert "\n".join(costs.list_bounds()) in page
