"""One rank of several: runs cases of `engines.py` and saves what came out.

python ranks.py BACKEND RANK WORLD ADDRESS OUT CASES, where CASES is JSON: {name: [optimizer, steps, changes]} on the
tiny task, or {name: [null, steps, configuration]}. With `"restored": [3, 5]` among the changes a new engine, restored
from the last one, takes over after 3 and after 5 steps. With `"apart": ["sent"]` ranks need not have sent equally much.
"""

import hashlib
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def launch(script: Path, backend: str, world: int, *arguments: str, deadline: float = 480) -> None:
    """Run `script BACKEND RANK WORLD ADDRESS …` as every rank, and wait for all."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    variables = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, str(script), backend]
    children = [
        subprocess.Popen([*command, str(rank), str(world), address, *arguments], env=variables) for rank in range(world)
    ]
    until = time.monotonic() + deadline
    try:
        for child in children:
            assert child.wait(max(1.0, until - time.monotonic())) == 0, f"a rank of {backend} failed"
    finally:
        for child in children:
            child.kill()  # jax processes ignore SIGTERM


def start(
    backend: str, world: int, out: Path, cases: dict[str, Any], deadline: float = 480
) -> dict[str, dict[str, Any]]:
    """Run the cases on `world` processes; returns each case's weights, checked to be equal bits on all ranks."""
    launch(Path(__file__), backend, world, str(out), json.dumps(cases), deadline=deadline)
    found = {}
    for name in cases:
        hashes = {(out / f"{name}.{rank}.hash").read_text() for rank in range(world)}
        assert len(hashes) == 1, f"{name}: ranks hold different bits"
        found[name] = dict(np.load(out / f"{name}.npz"))
    return found


def main(backend: str, rank: str, world: str, address: str, out: str, cases: str) -> None:
    """One rank."""
    sys.path.insert(0, str(Path(__file__).parent))
    import conftest  # noqa: F401  (environment)

    os.environ.pop("XLA_FLAGS", None)
    import engines

    from suite import load
    from suite.launch import run

    module = load.half("suite.engine.ranks", backend)
    module.connect(int(rank), int(world), address, 60)
    for name, (optimizer, steps, changes) in json.loads(cases).items():
        ends, apart = [*changes.pop("restored", []), steps], changes.pop("apart", [])
        if optimizer is None:
            task = run.make_task(changes)
        else:
            task = engines.tiny(**changes.pop("task", {}))
            changes = engines.config(optimizer, backend, world=int(world), **changes)
        made = engines.engine(changes, task)
        losses = engines.advance(made, range(ends[0]))
        for begin, end in itertools.pairwise(ends):
            arrays, skeleton = made.snapshot()
            made = engines.engine(changes, task)
            made.restore({name: array.copy() for name, array in arrays.items()}, skeleton)
            losses += engines.advance(made, range(begin, end))
        found = engines.weights(made) | {
            "losses": np.asarray(losses),
            "sent": np.asarray(made.facts()["bytes"]["by_name"]["gradients"]),
        }
        digest = hashlib.sha256(b"".join(found[key].tobytes() for key in sorted(found) if key not in apart))
        (Path(out) / f"{name}.{rank}.hash").write_text(digest.hexdigest())
        if rank == "0":
            np.savez(Path(out) / f"{name}.npz", **found)
    module.disconnect()


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # gloo's threads abort in the interpreter's own clean-up now and then
