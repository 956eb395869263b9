"""Counts the bytes of DiLoCo and of DistributedDataParallel in torch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.testing._internal.distributed.fake_pg import FakeStore

from suite.studies.zero_volume.torch import Ledger


def count_synchronous_bytes(steps: int, workers: int, width: int) -> int:
    """Return the bytes of training whose workers average their gradients in every step."""
    ledger = Ledger()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=workers)
    try:
        replicas = DistributedDataParallel(_make_model(width))
        replicas.register_comm_hook(None, ledger.count_bucket)
        _train(replicas, AdamW(replicas.parameters()), steps, width)
    finally:
        dist.destroy_process_group()
    return ledger.bytes


def count_local_bytes(rounds: int, interval: int, workers: int, width: int) -> int:
    """Return the bytes of DiLoCo: AdamW alone, and Nesterov's momentum on the averaged change of the weights."""
    ledger = Ledger()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=workers)
    try:
        model = _make_model(width)
        inner = AdamW(model.parameters())
        kept = [parameter.detach().clone() for parameter in model.parameters()]
        outer = SGD(kept, lr=0.7, momentum=0.9, nesterov=True)
        with ledger:
            for _ in range(rounds):
                _train(model, inner, interval, width)
                _synchronize(model, kept, outer)
    finally:
        dist.destroy_process_group()
    return ledger.bytes


def _make_model(width: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))


def _train(model: nn.Module, optimizer: AdamW, steps: int, width: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, width)).sum().backward()
        optimizer.step()


@torch.no_grad()
def _synchronize(model: nn.Module, kept: list[torch.Tensor], outer: SGD) -> None:
    """Make the outer step from the weights that all workers kept, and continue from its result."""
    for shared, parameter in zip(kept, model.parameters(), strict=True):
        shared.grad = shared - parameter
        dist.all_reduce(shared.grad, op=dist.ReduceOp.AVG)
    outer.step()
    for shared, parameter in zip(kept, model.parameters(), strict=True):
        parameter.copy_(shared)
