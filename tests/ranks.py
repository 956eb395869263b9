"""Cases of `engines.py` on several ranks that stay (pool.py), and the weights that came out.

Cases are {name: [optimizer, steps, changes]} on the tiny task, or {name: [None, steps, configuration]}. With
`"restored": [3, 5]` among the changes a new engine, restored from the last one, takes over after 3 and after 5 steps.
With `"apart": ["sent"]` ranks need not have sent equally much.
"""

import hashlib
import itertools
from typing import Any

import numpy as np
import pool

Found = dict[str, tuple[str, dict[str, np.ndarray] | None]]


def start(backend: str, world: int, cases: dict[str, Any], deadline: float = 480) -> dict[str, dict[str, Any]]:
    """Run the cases on `world` processes; returns each case's weights, checked to be equal bits on all ranks."""
    answers = pool.run(backend, world, "ranks.train", cases, deadline=deadline)
    for name in cases:
        assert len({answer[name][0] for answer in answers}) == 1, f"{name}: ranks hold different bits"
    return {name: answers[0][name][1] for name in cases}


def train(backend: str, rank: int, world: int, cases: dict[str, Any]) -> Found:
    """One rank's part: a digest of each case, and of rank 0 the arrays too."""
    import engines

    from suite.launch.job import make_task

    ends_with: Found = {}
    for name, (optimizer, steps, changes) in cases.items():
        ends, apart = [steps], []
        if optimizer is None:
            run, task = changes, make_task(changes)
        else:
            ends, apart = [*changes.pop("restored", []), steps], changes.pop("apart", [])
            task = engines.tiny(**changes.pop("task", {}))
            run = engines.config(optimizer, backend, world=world, **changes)
        made = engines.engine(run, task)
        losses = engines.advance(made, range(ends[0]))
        for begin, end in itertools.pairwise(ends):
            arrays, skeleton = made.snapshot()
            made = engines.engine(run, task)
            made.restore({name: array.copy() for name, array in arrays.items()}, skeleton)
            losses += engines.advance(made, range(begin, end))
        found = engines.weights(made) | {
            "losses": np.asarray(losses),
            "sent": np.asarray(made.facts()["bytes"]["by_name"]["gradients"]),
        }
        digest = hashlib.sha256(b"".join(found[key].tobytes() for key in sorted(found) if key not in apart)).hexdigest()
        ends_with[name] = digest, found if rank == 0 else None
    return ends_with
