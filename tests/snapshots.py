"""Bytes that a snapshot of several ranks and its restoring move (a job of pool.py)."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

CASES = {
    "kfac": ["kfac", "replicated", ["carry", "residuals and delayed gradients", "slices of optimizer state"]],
    "tables": ["adagrad", "rows", ["carry", "residuals and delayed gradients", "rows of tables"]],
}


@contextmanager
def counted(backend: str) -> Iterator[Callable[[], int]]:
    """Count the bytes that reach this process by the framework's calls inside the context."""
    moved, patches = [0], ExitStack()

    def size(value: Any) -> int:
        return getattr(value, "nbytes", 0) or len(json.dumps(value, default=str))

    def wrap(module: Any, name: str, find: Callable[..., Any]) -> None:
        real = getattr(module, name)

        def call(*arguments: Any, **named: Any) -> Any:
            found = real(*arguments, **named)
            moved[0] += sum(map(size, find(found, *arguments)))
            return found

        patches.enter_context(mock.patch.object(module, name, call))

    if backend == "torch":
        import torch.distributed as dist

        for name in ("all_gather_object", "broadcast_object_list"):
            wrap(dist, name, lambda _, values, *rest: values)
        for name in ("all_reduce", "irecv", "recv", "broadcast"):
            wrap(dist, name, lambda _, value, *rest: [value])
    else:
        import jax
        from jax.experimental import multihost_utils

        wrap(multihost_utils, "process_allgather", lambda found, *rest: jax.tree.leaves(found))
        wrap(multihost_utils, "broadcast_one_to_all", lambda found, *rest: jax.tree.leaves(found))
        wrap(multihost_utils, "assert_equal", lambda _, value, *rest: jax.tree.leaves(value))
    with patches:
        yield lambda: moved[0]


def restore(backend: str, rank: int, world: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Train, save, load and restore each case; returns what was moved and what is this rank's own."""
    import engines

    from suite.training import checkpoint

    answers = {}
    with counted(backend) as moved:
        comm = engines.comm(codec="onebit", algorithm="all_to_all", feedback=True)
        for name, (optimizer, placement, _) in CASES.items():
            task = engines.tiny(placement=placement)
            made = engines.engine(engines.config(optimizer, backend, world=world, comm=comm), task)
            engines.advance(made, range(3))
            before, ledger = moved(), made.facts()["bytes"]["by_name"]
            arrays, skeleton = made.snapshot(replicated=rank == 0)
            how: dict[str, Any] = {"ranks": made.local_ranks, "gather": made.ranks.gather}
            meta = lambda: {"config_hash": "c", "world": world}  # noqa: E731
            checkpoint.save_checkpoint(folder, (arrays, skeleton), meta, step=len(name), **how)
            found = checkpoint.load_checkpoint(folder, "c", ranks=made.local_ranks, world=world)
            assert found
            made.restore(found[0], found[1]["skeleton"])
            own = [arrays[key] for key in skeleton["own"]]
            assert all(np.array_equal(found[0][key], arrays[key]) for key in skeleton["own"])
            residuals = [
                arrays[key].tolist() for key, words in skeleton["own"].items() if words.startswith("residuals")
            ]
            after = made.facts()["bytes"]["by_name"]
            answers[name] = {
                "moved": moved() - before,
                "own": sum(value.nbytes for value in own),
                "ledger": [key for key in after if after[key] != ledger.get(key)],
                "words": sorted(set(skeleton["own"].values())),
                "names": sorted(arrays),
                "residuals": residuals,
            }
    return answers


def save(backend: str, rank: int, world: int, folder: Path) -> dict[str, Any]:
    """Train with a split table and save the weights; returns the bytes that this rank received, and its parts."""
    import engines
    from safetensors.numpy import load_file

    from suite.training import weights

    task = engines.tiny(placement="rows", batch_size=12, eval_batch_size=6)
    made = engines.engine(engines.config("sgd", backend, world=world), task)
    engines.advance(made, range(2))
    expected, lengths = engines.weights(made), []
    table = "embed.weight"

    def seen(parts: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for part in parts:
            lengths.append(len(part))
            yield part

    with counted(backend) as moved:
        values = made.weights()
        values[table] = seen(values[table])
        if rank:
            weights.send_rows(values)
        else:
            weights.save_weights(folder, 2, values, {})
            rows = made.task.shapes()[table].shape[0]
            assert engines.same(load_file(folder / weights.NAME), expected | {table: expected[table][:rows]})
    return {"moved": moved(), "lengths": lengths}
