"""Communication modes of the suite in your own training loop, as communication hooks of DistributedDataParallel.

model = DistributedDataParallel(model)
sender = send_gradients(model, "comm=fp8")
for x, y in batches:
    ...
print(sender.ledger.total)
"""

import itertools
import zlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from suite.comm import setup
from suite.comm.contract import Channel
from suite.comm.reduce.torch import Reduce
from suite.comm.settings import CommSettings
from suite.comm.transport import Ledger
from suite.comm.transport.torch import Transport
from suite.contract import UserError
from suite.engine.modes import Description, compose_mode

__all__ = ["GradientSender", "send_gradients"]

KINDS = {
    nn.Linear: "linear",
    nn.Conv2d: "conv2d",
    nn.Embedding: "embedding",
    nn.modules.batchnorm._NormBase: "batchnorm",
}


def send_gradients(model: DistributedDataParallel, *overrides: str, seed: int = 0) -> "GradientSender":
    """Send the gradients of a model as a communication mode does, and register this as the model's hook.

    Call it on every rank, after the model is wrapped and before the first step.

    Args:
        model: the wrapped model, over the default process group.
        overrides: as in a command: `comm=NAME`, and its parts, such as `comm.feedback=true`.
        seed: of codecs that round at random; the same on every rank.

    Raises:
        UserError: an override is no setting of the exchange of gradients, parts do not fit together, ranks have
            different ones, or the model is not wrapped, uses another process group or has sparse gradients.
    """
    if not isinstance(model, DistributedDataParallel):
        raise UserError(f"send_gradients: takes a DistributedDataParallel, and not a {type(model).__name__}; wrap it")
    comm = compose_mode(*overrides)
    if model.process_group not in (None, dist.group.WORLD):
        raise UserError("send_gradients: the model must use the default process group; leave process_group out")
    tables = ((n, m) for n, m in model.module.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag))
    if sparse := [path for path, module in tables if module.sparse]:
        name = sparse[0] or "the model"
        raise UserError(f"send_gradients: the gradient of {name} is sparse, which no codec encodes; set sparse=False")
    _compare_ranks(repr((overrides, seed)), next(model.parameters()).device)
    sender = GradientSender(model, comm, seed)
    model.register_comm_hook(None, sender.send)
    return sender


def _compare_ranks(settings: str, device: torch.device) -> None:
    """Compare the settings of all ranks by their checksums.

    Raises:
        UserError: if a rank has other settings than rank 0.
    """
    mine = torch.tensor([zlib.crc32(settings.encode())], device=device)
    sums = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, mine)
    if different := [rank for rank, one in enumerate(sums) if not torch.equal(one, sums[0])]:
        raise UserError(
            f"send_gradients: rank {different[0]} has other settings or another seed than rank 0; set the same"
        )


def describe_parameters(model: nn.Module) -> Description:
    """Describe a model's trained parameters, and the kinds of its weights."""
    kinds = {
        f"{name}.weight" if name else "weight": kind
        for name, module in model.named_modules()
        for base, kind in KINDS.items()
        if isinstance(module, base)
    }
    return Description({name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}, kinds)


class GradientSender:
    """Takes the means of buckets of gradients over ranks.

    DistributedDataParallel decides which gradients are in a bucket and when it is complete. Buckets are sent one after
    another, in its order. After the first step it forms new buckets; error feedback then starts again from zero.
    Gradients in half precision are encoded, sent and averaged as float32.

    Args:
        model: the wrapped model.
        comm: the communication mode.
        seed: of codecs that round at random.

    Attributes:
        ledger: counts the bytes that this rank sends.
    """

    def __init__(self, model: DistributedDataParallel, comm: CommSettings, seed: int):
        self.ledger = Ledger()
        self.channels = setup.make_channels(comm, describe_parameters(model.module), dist.get_world_size(), "torch")
        self.reduce = Reduce(Transport(self.ledger, self.channels.locals), self.channels)
        self.names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        self.members: dict[int, list[str]] = {}
        self.seed, self.step = seed, 0

    def send(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Return a bucket's mean over ranks, as a communication hook does."""
        gradients = bucket.buffer()
        number, members = bucket.index(), [self.names[id(parameter)] for parameter in bucket.parameters()]
        if self.members.setdefault(number, members) != members:
            self.members = {number: members}
            self.reduce.state.clear()
        self.reduce.key = (self.seed, self.step)
        wide = gradients.float() if gradients.element_size() < 4 else gradients
        sizes = [parameter.numel() for parameter in bucket.parameters()]
        for place, (channel, part) in enumerate(self._cut(wide, members, sizes)):
            name = f"gradients/{number}.{place}"
            part.copy_(self.reduce.bucket(name, channel, {name: part.clone()})[name])
        self.step += bucket.is_last()
        done = torch.futures.Future[Tensor](devices=[gradients.device] if gradients.is_cuda else [])
        done.set_result(wide.to(gradients.dtype))
        return done

    def _cut(self, values: Tensor, members: list[str], sizes: list[int]) -> Iterator[tuple[Channel, Tensor]]:
        """Yield the parts of a bucket to send: those of consecutive parameters with one channel."""
        begin = 0
        pairs = zip(map(self.channels.of, members), sizes, strict=True) if self.reduce.world > 1 else ()
        for channel, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
            end = begin + sum(size for _, size in group)
            yield channel, values[begin:end]
            begin = end
