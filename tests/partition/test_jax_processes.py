"""A pipeline of several processes has the bits of the same stages in one process; a lost process is named."""

from typing import Any

import pool
import pytest

pytestmark = pytest.mark.xdist_group("world")
KEPT, AGAIN = False, True
TWO = {
    "tied": ["tied", 2, 2, KEPT, "1f1b"],
    "all at once": ["tied", 2, 2, AGAIN, "gpipe"],
    "skipping": ["skipping", 2, 2, KEPT, "1f1b"],
    "dropout": ["dropout", 2, 2, KEPT, "1f1b"],
    "two pipelines": ["forked", 1, 2, KEPT, "1f1b"],
}
THREE = {
    "bert": ["bert", 3, 3, KEPT, "1f1b"],
    "skipping": ["skipping", 3, 3, AGAIN, "1f1b"],
    "uneven": ["tied", 2, 3, KEPT, "1f1b"],
    "at once": ["residual", 3, 3, KEPT, "gpipe"],
}


@pytest.mark.slow
@pytest.mark.parametrize("world, cases", [(2, TWO), (3, THREE)], ids=["two", "three"])
def test_processes_have_the_bits_of_one(world: int, cases: dict[str, Any]) -> None:
    ranks = pool.run("jax", world, "jax_ranks.compare", cases)
    for title in cases:
        assert len({rank[title]["loss"] for rank in ranks}) == 1
        assert [rank[title]["different"] for rank in ranks] == [[]] * world, title
        owned = {path for rank in ranks for path in rank[title]["paths"]}
        assert sorted(owned) == ranks[0][title]["all"]


def test_all_processes_use_the_plan_of_the_first() -> None:
    """Operations are measured, so that each process would make another plan."""
    first, second = pool.run("jax", 2, "jax_ranks.partition")
    assert first == second and "stages=3: there are 2 devices" in first["error"]


def test_a_killed_stage_is_named_by_the_others() -> None:
    first, killed, last = pool.ask("jax", 3, "jax_ranks.die")
    assert killed == pool.Failure("rank 1 died")
    for said in (first, last):
        assert said["error"].startswith("lost rank 1 (stage 1, replica 0, pipeline 0) while exchanging")
        assert said["seconds"] < 60
