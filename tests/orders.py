"""Order of a rank's collectives, while each rank is slow at different places (a job of pool.py).

Cases are {name: changes of `engines.config`}; a rank answers {name: [[operation, name, level], …]}.
"""

import random
import time
from typing import Any

STEPS = 4
LONGEST = 0.01  # seconds that a rank waits before a collective; a step of the tiny task takes less


def record(backend: str, rank: int, world: int, cases: dict[str, Any]) -> dict[str, list[list[str]]]:
    """One rank."""
    from engines import advance, config, engine

    from suite.comm.transport import Ledger

    draw, add, found = random.Random(rank), Ledger.add, {}
    for name, changes in cases.items():
        order: list[list[str]] = []

        def recorded(self: Ledger, entries: Any, order: list[list[str]] = order) -> None:
            entries = list(entries)
            time.sleep(LONGEST * draw.random())
            order.extend([item.operation, item.name, item.level] for item in entries)
            add(self, entries)

        Ledger.add = recorded  # type: ignore[method-assign]
        try:
            made = engine(config(changes.pop("optimizer"), backend, world=world, **changes))
            advance(made, range(STEPS))
        finally:
            Ledger.add = add  # type: ignore[method-assign]
        found[name] = order
    return found
