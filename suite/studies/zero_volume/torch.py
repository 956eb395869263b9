"""Counts the bytes of collectives in torch."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode


class Ledger(TorchDispatchMode):
    """Adds up the bytes of what ranks gather, reduce and scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; count the whole array of a collective, which is its longer argument; an all-reduce twice."""
        if function is torch.ops.c10d.allreduce_.default:
            self.bytes += 2 * sum(array.nbytes for array in args[0])
        elif function.namespace == "c10d":
            self.bytes += max(array.nbytes for array in args[:2])
        return function(*args, **(kwargs or {}))

    def count_bucket(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Count a bucket of DistributedDataParallel twice: an all-reduce scatters, then gathers (section 7.1)."""
        self.bytes += 2 * bucket.buffer().nbytes
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future


def count_bytes(sharded: bool, ranks: int, layers: int, width: int, batches: int) -> int:
    """Return the bytes of the collectives in one step."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    ledger = Ledger()
    try:
        if sharded:
            _shard(model, ranks)
            replicas: nn.Sequential | DistributedDataParallel = model
        else:
            replicas = DistributedDataParallel(model)
            replicas.register_comm_hook(None, ledger.count_bucket)
        with ledger:
            _train(replicas, width, batches)
    finally:
        dist.destroy_process_group()
    return ledger.bytes


def _shard(model: nn.Sequential, ranks: int) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _train(model: nn.Sequential | DistributedDataParallel, width: int, batches: int) -> None:
    """Compute the gradients of a step; the ranks exchange them after the last batch."""
    for number in range(batches):
        with _exchange(model, number == batches - 1):
            model(torch.ones(1, width)).sum().backward()


@contextlib.contextmanager
def _exchange(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Exchange the gradients of a batch, or keep them."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(wanted)
    with contextlib.ExitStack() as stack:
        if isinstance(model, DistributedDataParallel) and not wanted:
            stack.enter_context(model.no_sync())
        yield
