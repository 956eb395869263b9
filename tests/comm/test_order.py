"""All ranks call their collectives in one order, whatever thread calls them."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import ranks
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
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each rank's collectives by case, recorded once for each backend."""

    def start(backend: str) -> list[dict[str, list[list[str]]]]:
        out = tmp_path_factory.mktemp(backend)
        ranks.launch(Path(__file__).with_name("orders.py"), backend, 2, str(out), json.dumps(CASES))
        return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]

    return functools.cache(start)


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
