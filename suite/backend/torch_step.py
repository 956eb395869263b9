"""A step's maths in torch on one rank: loss, gradients and statistics of a batch."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from suite.backend.torch_taps import Observer, Statistics, Taps, tapped
from suite.comm.reduce.torch import Reduce
from suite.comm.tables import torch as by_rows

Tree = dict[str, Tensor]
Watch = Callable[[Tensor], contextlib.AbstractContextManager[None]]


@dataclass
class Share:
    """What one evaluation yields on one rank; over ranks, means of these are sums divided by summed weights."""

    loss: Tensor
    sums: Tree  # of gradients, to be divided by `weight`
    weight: Tensor
    statistics: Tree
    tables: dict[str, list[tuple[Tensor, Tensor]]]  # of each micro-batch: ids, and the gradient of what they named
    buffers: Tree
    carry: list[Tree]

    @property
    def grads(self) -> Tree:
        """This rank's share of the gradients."""
        return dict(zip(self.sums, torch._foreach_div(list(self.sums.values()), self.weight), strict=True))


@dataclass(frozen=True)
class Maths:
    """Loss, gradients and statistics.

    Attributes:
        model: the task's model.
        forward: the same, perhaps compiled.
        named: its parameters.
        buffers: what it changes while it trains.
        tables: names of parameters placed by rows, of which this rank holds its share.
        reduce: over ranks.
        clip_norm: largest norm of the whole gradient, 0 for any.
        narrow: compute in bfloat16.
        device: of all of it.
    """

    model: Any
    forward: Callable[..., Any]
    named: Tree
    buffers: Tree
    tables: Sequence[str]
    reduce: Reduce
    clip_norm: float
    narrow: bool
    device: torch.device

    def evaluate(
        self,
        micro: list[Tree],
        carried: list[Tree],
        key: tuple[int, int],
        *,
        labels: str = "given",
        observe: Observer | None,
        observed: Callable[[str, Tensor], None],
        watch: Watch | None = None,
        known: bool = False,
    ) -> Share:
        """Loss, gradients and statistics at the current weights; `.grad` and buffers are left as they were.

        Args:
            micro: the micro-batches.
            carried: what each of them goes on from.
            key: of random numbers.
            labels: "given", or "sampled" from the model.
            observe: which layers to tap, and what makes sums of a layer's taps and the samples' weights.
            observed: is told of each statistic that is complete.
            watch: around the last backward pass, given what gradients are to be divided by.
            known: yield the means over all ranks of loss and buffers. They travel in one message with the weights,
                before the last backward pass: each further one has the faster rank wait once more.
        """
        self.model.train()
        kept = {name: parameter.grad for name, parameter in self.named.items()}
        before = {name: value.clone() for name, value in self.buffers.items()}
        total = weight = micro[0]["weight"].new_zeros(())
        statistics = Statistics(observe[1] if observe else _nothing, observed)
        buffers = {name: torch.zeros_like(value) for name, value in before.items()}
        carry = []
        looked_up: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in self.tables}
        samples = torch.stack([part["weight"].sum() for part in micro]).sum()
        for parameter in self.named.values():
            parameter.grad = None
        for number, (part, state) in enumerate(zip(micro, carried, strict=True), 1):
            for name, value in before.items():
                self.buffers[name].copy_(value)
            part, fetched = self.fetched(part)
            statistics.weight = part["weight"]
            with tapped(self.model, observe[0] if observe else {}, statistics.add) as rest, torch.enable_grad():
                with self.autocast():
                    outputs, after = (self.model if observe else self.forward)(part, state, key)
                if labels == "sampled":
                    outputs = self.model.sample(outputs, key, part)
                loss, count = self.model.loss(outputs, part)
                total, weight, last = total + loss.detach(), weight + count.detach(), number == len(micro)
                for name, value in self.buffers.items():
                    buffers[name] += value / len(micro)
                if last:  # means over ranks: the mean of shares is sum / sum
                    total, weight, samples, buffers = self._means(total, weight, samples, buffers, known)
                    statistics.divisor = samples  # `weight` is what the loss counts, perhaps words
                with watch(weight) if last and watch else contextlib.nullcontext():
                    loss.backward()
                    rest()
            for name, (ids, rows) in fetched.items():
                looked_up[name].append((ids, cast(Tensor, rows.grad)))
            carry.append({name: value.detach() for name, value in after.items()})
        sums = {name: cast(Tensor, parameter.grad) for name, parameter in self.named.items() if name not in self.tables}
        for name, value in before.items():
            self.buffers[name].copy_(value)
        for name, grad in kept.items():
            self.named[name].grad = grad
        each = {name: [(ids, rows / weight) for ids, rows in parts] for name, parts in looked_up.items()}
        return Share(total / weight, sums, weight, statistics.values(), each, buffers, carry)

    def _means(
        self, total: Tensor, weight: Tensor, samples: Tensor, buffers: Tree, known: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tree]:
        """Over ranks: of weight and samples, and where they are to be known of the loss and the buffers."""
        small = {"weight": weight, "samples": samples} | ({"loss": total} if known else {})
        means = self.reduce.exact(small | {f"buffer/{name}": value for name, value in buffers.items() if known})
        if known:
            total, buffers = means["loss"], {name: means[f"buffer/{name}"] for name in buffers}
        return total, means["weight"], means["samples"], buffers

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision of what is computed inside."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.narrow)

    def clipped(self, grads: Tree) -> Tree:
        """The gradient, scaled down to a norm of `clip_norm` where it is larger (Pascanu et al. 2013, algorithm 1)."""
        if not self.clip_norm:
            return grads
        square = torch.stack(torch._foreach_norm([g for g in grads.values() if not g.is_sparse])).square().sum()
        if self.tables:  # each rank holds other rows
            own = torch.stack([grads[name].values().square().sum() for name in self.tables]).sum()
            square = square + self.reduce.world * self.reduce.exact({"norm": own})["norm"]
        factor = (self.clip_norm / square.sqrt()).clamp(max=1.0)
        return {name: grad * factor for name, grad in grads.items()}

    def fetched(self, batch: Tree) -> tuple[Tree, dict[str, tuple[Tensor, Tensor]]]:
        """The batch with the rows of the tables that it names, and these as (ids, rows) to be differentiated by."""
        if not self.tables:
            return batch, {}
        found = {}
        for name, ids in self.model.lookups(batch).items():
            rows = by_rows.fetch(name, self.named[name].detach(), ids, self.reduce.transport)
            found[name] = ids, rows.requires_grad_()
        return batch | {f"{name}.rows": rows for name, (_, rows) in found.items()}, found

    def table_gradients(self, looked_up: dict[str, list[tuple[Tensor, Tensor]]]) -> Tree:
        """Of this rank's rows, from every rank's share of (ids, gradient)."""
        found = {}
        for name, parts in looked_up.items():
            ids, rows = (torch.cat(values) for values in zip(*parts, strict=True))
            transport = self.reduce.transport
            found[name] = by_rows.gradient(name, ids, rows / self.reduce.world, self.named[name], transport)
        return found


def _nothing(taps: Taps, weight: Tensor) -> Tree:
    return {}
