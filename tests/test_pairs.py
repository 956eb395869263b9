"""Any task with any optimizer, communication, backend and number of devices: a sample of the pairs, three steps."""

import itertools

import numpy as np
import pairs
import pytest

from suite.contract import UserError

pytestmark = pytest.mark.xdist_group("pairs")
SAMPLE = 5
CELLS = pairs.covering()
REFUSED = ("kbfgs", "leader", "jax", "2")  # needs an all-reduce among some ranks only, which jax does not have


def hold(cells: list[pairs.Cell]) -> None:
    """Every loss is finite, and the first one is the task's, whoever computes it."""
    found = pairs.losses(cells)
    still: dict[str, list[float]] = {}  # losses of the same batches at the initial weights
    for cell in cells:
        task = cell[0]
        if task not in still:
            still[task] = pairs.frozen(task)
        assert np.isfinite(found[cell]).all(), cell
        assert found[cell][0] == pytest.approx(still[task][0], rel=1e-4), cell
        last = still[task][-1]  # double buffering moves one step late
        assert abs(found[cell][-1] - last) > 1e-5 * abs(last), f"{cell} did not move"


def test_the_set_covers_every_pair() -> None:
    for one, other in itertools.combinations(range(len(pairs.AXES)), 2):
        met = {(cell[one], cell[other]) for cell in CELLS}
        assert met == set(itertools.product({cell[one] for cell in CELLS}, {cell[other] for cell in CELLS}))
    assert pairs.covering() == CELLS


def test_a_sample_of_the_pairs() -> None:
    hold(CELLS[:: len(CELLS) // SAMPLE])  # from end to end: neighbours have choices in common


@pytest.mark.slow
def test_all_pairs() -> None:
    hold([cell for cell in CELLS if cell[1:] != REFUSED])


def test_what_a_backend_cannot_do_is_refused() -> None:
    [cell] = [cell for cell in CELLS if cell[1:] == REFUSED]
    with pytest.raises(UserError, match=r"topology leader with algorithm native: jax has no all-reduce"):
        pairs.losses([cell])
