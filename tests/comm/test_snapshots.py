"""A snapshot of several ranks and its restoring move nothing but checksums: each rank keeps what is its own."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# what the test runs as a rank, too
if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

import ranks

WORDS = {"residuals and delayed gradients", "carry", "rows of tables", "slices of optimizer state"}
CASES = {
    "kfac": ["kfac", "replicated", ["carry", "residuals and delayed gradients", "slices of optimizer state"]],
    "tables": ["adagrad", "rows", ["carry", "residuals and delayed gradients", "rows of tables"]],
}
SMALL = 512  # bytes: checksums of weights, names and sizes of files


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_no_rank_receives_what_is_anothers(tmp_path: Path, backend: str) -> None:
    """Neither when a snapshot is taken and written, nor when it is read and restored; and each has something."""
    (tmp_path / "run").mkdir()
    ranks.launch(Path(__file__), backend, 2, str(tmp_path))
    for name, (_, _, words) in CASES.items():
        told = [json.loads((tmp_path / f"{name}.{rank}.json").read_text()) for rank in range(2)]
        for one in told:
            assert one["moved"] < SMALL < one["own"], one
            assert one["ledger"] == [], "a snapshot is in the ledger"
            assert one["words"] == words
        assert told[0]["residuals"] != told[1]["residuals"], "both ranks have the same residuals"
        assert told[0]["names"] != told[1]["names"], "rank 1 writes what rank 0 does"


def counted(backend: str) -> Callable[[], int]:
    """Count the bytes that reach this process by the framework's calls from now on."""
    moved = [0]

    def size(value: Any) -> int:
        return getattr(value, "nbytes", 0) or len(json.dumps(value, default=str))

    def wrap(module: Any, name: str, find: Callable[..., Any]) -> None:
        real = getattr(module, name)

        def call(*arguments: Any, **named: Any) -> Any:
            found = real(*arguments, **named)
            moved[0] += sum(map(size, find(found, *arguments)))
            return found

        setattr(module, name, call)

    if backend == "torch":
        import torch.distributed as dist

        for name in ("all_gather_object", "broadcast_object_list"):
            wrap(dist, name, lambda _, values, *rest: values)
        for name in ("all_reduce", "irecv", "recv", "broadcast"):
            wrap(dist, name, lambda _, value, *rest: [value])
        return lambda: moved[0]
    import jax
    from jax.experimental import multihost_utils

    wrap(multihost_utils, "process_allgather", lambda found, *rest: jax.tree.leaves(found))
    wrap(multihost_utils, "broadcast_one_to_all", lambda found, *rest: jax.tree.leaves(found))
    wrap(multihost_utils, "assert_equal", lambda _, value, *rest: jax.tree.leaves(value))
    return lambda: moved[0]


def main(backend: str, rank: str, world: str, address: str, out: str) -> None:
    """One rank."""
    import conftest  # noqa: F401  (environment)

    os.environ.pop("XLA_FLAGS", None)
    import engines

    from suite import load
    from suite.training import checkpoint

    module = load.half("suite.engine.ranks", backend)
    module.connect(int(rank), int(world), address, 60)
    moved = counted(backend)
    comm = engines.comm(codec="onebit", algorithm="all_to_all", feedback=True)
    for name, (optimizer, placement, _) in CASES.items():
        task = engines.tiny(placement=placement)
        made = engines.engine(engines.config(optimizer, backend, world=int(world), comm=comm), task)
        engines.advance(made, range(3))
        before, ledger = moved(), made.facts()["bytes"]["by_name"]
        arrays, skeleton = made.snapshot(replicated=rank == "0")
        how: dict[str, Any] = {"ranks": made.local_ranks, "gather": made.ranks.gather}
        meta = lambda: {"config_hash": "c", "world": int(world)}  # noqa: E731
        checkpoint.save(Path(out) / "run", (arrays, skeleton), meta, step=len(name), **how)
        found = checkpoint.load(Path(out) / "run", "c", ranks=made.local_ranks, world=int(world))
        assert found
        made.restore(found[0], found[1]["skeleton"])
        own = [arrays[key] for key in skeleton["own"]]
        assert all(np.array_equal(found[0][key], arrays[key]) for key in skeleton["own"])
        residuals = [arrays[key].tolist() for key, words in skeleton["own"].items() if words.startswith("residuals")]
        after = made.facts()["bytes"]["by_name"]
        told = {
            "moved": moved() - before,
            "own": sum(value.nbytes for value in own),
            "ledger": [key for key in after if after[key] != ledger.get(key)],
            "words": sorted(set(skeleton["own"].values())),
            "names": sorted(arrays),
            "residuals": residuals,
        }
        (Path(out) / f"{name}.{rank}.json").write_text(json.dumps(told))
    module.disconnect()


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # gloo's threads abort in the interpreter's own clean-up now and then
