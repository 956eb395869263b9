"""A rank that trains a small model with DistributedDataParallel and a hook of the suite (a job of pool.py)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

STEPS = 3


def train(backend: str, rank: int, world: int, modes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each mode, the names of the parameters whose means differ from those of `Reduce`, and the bytes sent."""
    return [compare(rank, changes) for changes in modes]


def compare(rank: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Train with the hook, and average the gradients of an equal model without it."""
    import engines
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from suite.comm.reduce.torch import Reduce
    from suite.comm.transport import Ledger
    from suite.comm.transport.torch import Transport
    from suite.engine.torch_ddp import GradientSender

    plain = make_model()
    model = DistributedDataParallel(make_model())
    sender = GradientSender(model, engines.comm(**changes), seed=7)
    model.register_comm_hook(None, sender.send)
    reduce = Reduce(Transport(Ledger(), sender.channels.locals), sender.channels)
    different: set[str] = set()
    for step in range(STEPS):
        inputs = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        for each in (plain, model):
            each.zero_grad()
            each(inputs).square().mean().backward()
        [members] = sender.members.values()  # the model is so small that it has one bucket
        order = dict.fromkeys(reversed(members))
        reduce.channels = dataclasses.replace(
            sender.channels, kind_of={name: sender.channels.kind_of[name] for name in order}
        )
        if step == 1:  # DistributedDataParallel has formed its buckets anew, in another order
            reduce.state.clear()
        reduce.key = (7, step)
        own = {name: value.grad for name, value in plain.named_parameters() if value.grad is not None}
        means: dict[str, Any] = {}
        for place, (_, channel, group) in enumerate(reduce.buckets(own)):
            means |= reduce.bucket(f"gradients/0.{place}", channel, {name: own[name] for name in group})
        for name, value in model.module.named_parameters():
            if not torch.equal(value.grad, means[name]):
                different.add(name)
    return {"different": sorted(different), "sent": sender.ledger.total, "expected": reduce.transport.ledger.total}


def make_model() -> Any:
    """A model with a weight of each kind."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.ReLU(), nn.Linear(20, 7))


def finish(backend: str, rank: int, world: int) -> list[list[float]]:
    """Weights after training with torch's own exchange, and with that of a run, in several buckets."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from suite.engine.torch_ddp import send_gradients

    ends = []
    for hooked in (False, True):
        torch.manual_seed(0)
        model = DistributedDataParallel(
            torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]), bucket_cap_mb=0.02
        )
        if hooked:
            sender = send_gradients(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        ends.append(torch.cat([value.detach().reshape(-1) for value in model.parameters()]).tolist())
    assert len(sender.members) > 1
    return ends


def halve(backend: str, rank: int, world: int) -> list[str]:
    """Return the type of the gradient of a model in bfloat16, and its values."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from suite.engine.torch_ddp import send_gradients

    model = DistributedDataParallel(torch.nn.Linear(8, 8, dtype=torch.bfloat16))
    send_gradients(model, "comm=float32")
    inputs = torch.full((4, 8), 1.0 + rank, dtype=torch.bfloat16)
    model(inputs).sum().backward()
    return [str(model.module.weight.grad.dtype), *map(str, model.module.weight.grad.unique().tolist())]


def refuse(backend: str, rank: int, world: int, cases: Sequence[Sequence[str]]) -> list[str]:
    """Return the messages of modes that a hook cannot follow, and of models that cannot have one."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from suite.contract import UserError
    from suite.engine.torch_ddp import send_gradients

    def make(**options: Any) -> DistributedDataParallel:
        return DistributedDataParallel(torch.nn.Linear(2, 2), **options)

    given = [(make(), words) for words in cases]
    given += [(make(process_group=dist.new_group([0, 1])), []), (torch.nn.Linear(2, 2), [])]
    given += [(DistributedDataParallel(torch.nn.Embedding(3, 2, sparse=True)), []), (make(), [["comm=fp8", ""][rank]])]
    found = []
    for model, words in given:
        try:
            send_gradients(model, *[word for word in words if word])
            found.append("accepted")
        except UserError as error:
            found.append(str(error))
    return found
