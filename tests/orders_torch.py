"""Calls of torch on one rank, group by group, while each rank is slow at different places (a job of pool.py)."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

STEPS = 4
LONGEST = 0.004  # seconds that a rank waits before a collective
TOGETHER = ("allreduce", "allgather", "_allgather_base", "broadcast", "gather", "alltoall_base", "reduce_scatter")
MESSAGES = ("send", "recv")  # (tensors, the other rank of the group, tag)
Calls = dict[str, list[list[Any]]]  # by the group's name and ranks: [operation, bytes], or with the other rank between


def record(backend: str, rank: int, world: int, optimizer: str, words: list[str], hyper: dict[str, Any]) -> Calls:
    """Return what a rank sends in some steps of the tiny task in each communication mode of a run."""
    from engines import advance, config, engine

    from suite.settings import configure

    comm = configure.resolve(["task=resnet50", "optimizer=kfac", f"world={world}", *words]).comm
    options: dict[str, Any] = {"precision": "float32", "accumulate": 2, "hyper": hyper}
    made = engine(config(optimizer, backend, world=world, comm=comm, **options))
    with recording(random.Random(rank)) as calls:
        for number, mode in enumerate(made.modes):
            made.use(mode)
            advance(made, range(number * STEPS, (number + 1) * STEPS))
            for kind in sorted(set(made.kinds.values())) if comm.policy else ():
                made.exchange(kind)
    return calls


@contextlib.contextmanager
def recording(draw: random.Random) -> Iterator[Calls]:
    """Note each call of a process group, in the order in which it is made."""
    kind: Any = dist.ProcessGroup
    unbound = {name: vars(kind)[name] for name in (*TOGETHER, *MESSAGES)}  # getattr loses that they are methods
    originals, calls, lock = {name: getattr(kind, name) for name in (*TOGETHER, *MESSAGES)}, Calls(), threading.Lock()

    def replace(name: str) -> None:
        def call(group: Any, *arguments: Any, **options: Any) -> Any:
            time.sleep(LONGEST * draw.random())
            size = sum(value.nbytes for value in tree_leaves(arguments) if isinstance(value, Tensor))
            other = arguments[1:2] if name in MESSAGES else ()
            with lock:
                key = f"{group.group_name}: {dist.get_process_group_ranks(group)}"
                calls.setdefault(key, []).append([name, *other, size])
                return originals[name](group, *arguments, **options)

        setattr(kind, name, call)

    for name in originals:
        replace(name)
    try:
        yield calls
    finally:
        for name, original in unbound.items():
            setattr(kind, name, original)
