"""The two engines; nothing else in `suite/` imports a framework.

Each offers the same few names: `connect`, `disconnect`, and an `Engine` with `warm`, `step`, `losses`, `evaluate`,
`agree`, `synchronize`, `snapshot`, `restore` and `facts`.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from suite.contract import Task, UserError


def parameters(task: Task) -> int:
    """How many numbers are trained, over all devices."""
    return sum(math.prod(spec.shape) for spec in task.shapes().values() if spec.kind == "parameter")


def tables(task: Task, needs: tuple[str, ...], optimizer: Mapping[str, Any]) -> list[str]:
    """The parameters that are placed by rows.

    Raises:
        UserError: where the optimizer does not update each element by itself.
    """
    found = [name for name, spec in task.shapes().items() if spec.placement == "rows"]
    if found and "rows" not in needs:
        raise UserError(
            f"optimizer={optimizer.get('name', optimizer['module'])}: cannot update a table by rows; "
            "type task.placement=replicated, or optimizer=sgd"
        )
    return found


def share(task: Task, seed: int, name: str, rank: int, world: int) -> np.ndarray:
    """Rank's initial rows of a table, (k, d), with zeros below its end."""
    rows = task.shapes()[name].shape[0]
    each = -(-rows // world)
    made = task.init(seed, name, slice(min(rank * each, rows), min((rank + 1) * each, rows)))
    return np.concatenate([made, np.zeros((each - len(made), *made.shape[1:]), made.dtype)])
