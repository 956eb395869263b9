"""All ranks call their collectives in one order, whatever thread calls them."""

import functools
from typing import Any

import pool
import pytest
from engines import comm

SMALL = {"precision": "float32", "accumulate": 2}
CASES = {
    "stale": {"optimizer": "sgd", **SMALL, "comm": comm(schedule="stale", bucket_mib=0)},
    "stale, kfac": {"optimizer": "kfac", **SMALL, "comm": comm(schedule="stale", bucket_mib=0)},
    "stale, hosts": {
        "optimizer": "sgd",
        **SMALL,
        "comm": comm(schedule="stale", bucket_mib=0, topology="two_level", ranks_per_host=1, algorithm="ring"),
    },
    "overlap, kfac": {"optimizer": "kfac", **SMALL, "comm": comm(schedule="overlap", bucket_mib=0)},
}


@pytest.fixture(scope="module")
def recorded() -> Any:
    """Each rank's collectives by case, recorded once for each backend."""

    return functools.cache(lambda backend: pool.run(backend, 2, "orders.record", CASES))


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_collectives_have_one_order(backend: str, recorded: Any) -> None:
    """In torch a schedule's thread sends while the engine sends; in jax the order is that of the compiled program."""
    first, second = recorded(backend)
    for name in CASES:
        assert len(first[name]) > 8, name
        assert first[name] == second[name], name


def test_gradients_of_the_last_step_travel_on_both_sides_of_the_engines_own_message(recorded: Any) -> None:
    """Otherwise the schedule would hide nothing behind forward, or nothing behind backward."""
    order = [name for _, name, _ in recorded("torch")[0]["stale"]]
    last = max(place for place, name in enumerate(order) if name == "exact")
    assert order[last - 1].startswith("gradients") and order[last + 1].startswith("gradients")
