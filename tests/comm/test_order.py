"""All ranks call their collectives in one order, whatever thread calls them."""

import functools
from typing import Any

import pool
import pytest
from engines import comm
from orders_torch import MESSAGES

from suite import load

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

MODES = {path.stem: ("kfac", f"comm={path.stem}") for path in load.find_files("comm")}
MODES |= {
    f"{optimizer} {schedule}": (optimizer, f"comm.schedule.module=suite.comm.schedules.{schedule}")
    for optimizer in ("shampoo", "soap", "kbfgs", "vogn", "muon")
    for schedule in ("overlap", "stale")
}
STALE = {"stale": True, "factor_interval": 1, "inverse_interval": 1}


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


@pytest.mark.sample(6, keep=("[overlap]", "[shampoo overlap]", "[kfac_overlap]", "[kfac_hierarchical]"))
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_uses_each_process_group_in_one_order(mode: str) -> None:
    """As NCCL needs it: same operation, same bytes; and every message is received in the order in which it was sent."""
    optimizer, word = MODES[mode]
    words = [word, "comm.bucket_mib=0", "comm.ranks_per_host=1"]  # many buckets, and two levels where a mode has them
    hyper = STALE if mode == "kfac_stale" else {}
    first, second = pool.run("torch", 2, "orders_torch.record", optimizer, words, hyper)
    shared = {group for group in first if "[0, 1]" in group}
    assert shared == {group for group in second if "[0, 1]" in group}
    assert sum(len(first[group]) for group in shared) > 20
    for group in shared:
        one, other = first[group], second[group]
        together = [[call for call in calls if call[0] not in MESSAGES] for calls in (one, other)]
        assert together[0] == together[1], group
        for sender, receiver in ((one, other), (other, one)):
            sent = [call[-1] for call in sender if call[0] == "send"]
            assert sent == [call[-1] for call in receiver if call[0] == "recv"], group
