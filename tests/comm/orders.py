"""One rank of several: records the order of its collectives, while each rank is slow at places of its own.

python orders.py BACKEND RANK WORLD ADDRESS OUT CASES, where CASES is JSON: {name: changes of `engines.config`}; writes
OUT/RANK.json: {name: [[operation, name, level], …]}.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

STEPS = 4
LONGEST = 0.01  # seconds that a rank waits before a collective; a step of the tiny task takes less


def main(backend: str, rank: str, world: str, address: str, out: str, cases: str) -> None:
    """One rank."""
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    import conftest  # noqa: F401  (environment)

    os.environ.pop("XLA_FLAGS", None)
    from engines import advance, config, engine

    from suite import load
    from suite.comm.transport import Ledger

    module = load.half("suite.engine.ranks", backend)
    module.connect(int(rank), int(world), address, 60)
    draw, add, found = random.Random(int(rank)), Ledger.add, {}

    for name, changes in json.loads(cases).items():
        order: list[list[str]] = []

        def recorded(self: Ledger, entries: Any, order: list[list[str]] = order) -> None:
            entries = list(entries)
            time.sleep(LONGEST * draw.random())
            order.extend([item.operation, item.name, item.level] for item in entries)
            add(self, entries)

        Ledger.add = recorded  # type: ignore[method-assign]
        made = engine(config(changes.pop("optimizer"), backend, world=int(world), **changes))
        advance(made, range(STEPS))
        found[name] = order
    (Path(out) / f"{rank}.json").write_text(json.dumps(found))
    module.disconnect()


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # gloo's threads abort in the interpreter's own clean-up now and then
