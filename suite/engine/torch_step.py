"""Maths of a step in torch on one rank: loss, gradients and statistics of a batch."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from suite.comm.reduce.torch import Reduce
from suite.comm.tables import torch as by_rows
from suite.engine.torch_taps import Observer, Statistics, Taps, tap_layers
from suite.optimizers._base.torch import widen_floats
from suite.optimizers._linalg.torch import compute_norms

Tree = dict[str, Tensor]
Watch = Callable[[Tensor], contextlib.AbstractContextManager[None]]


@dataclass
class Share:
    """Results of one evaluation on one rank. Their means over ranks are Σ sum / Σ weight."""

    loss: Tensor
    sums: Tree  # gradients before the division by `weight`
    weight: Tensor
    statistics: Tree
    tables: dict[str, list[tuple[Tensor, Tensor]]]  # (ids, gradients of these rows) of each micro-batch
    buffers: Tree
    carry: list[Tree]

    @property
    def grads(self) -> Tree:
        """This rank's share of the gradients: `sums` divided by `weight`."""
        return dict(zip(self.sums, torch._foreach_div(list(self.sums.values()), self.weight), strict=True))


def compile_model(model: torch.nn.Module) -> Callable[..., Any]:
    """Return a compiled model that receives its key (seed, step) as tensors; numbers would be compiled again."""
    compiled = torch.compile(model)

    def forward(batch: Any, carry: Any, key: tuple[int, int]) -> Any:
        return compiled(batch, carry, tuple(map(torch.tensor, key)))

    return forward


@dataclass(frozen=True)
class Maths:
    """Loss, gradients and statistics.

    Attributes:
        model: the task's model.
        forward: the model, compiled if the run compiles.
        named: its parameters by name.
        buffers: its buffers by name.
        tables: names of the parameters placed by rows; this rank holds some of their rows.
        reduce: communication between ranks.
        clip_norm: largest norm of the whole gradient; 0: no clipping.
        narrow: the model computes in bfloat16; loss, gradients and statistics are float32.
        device: this rank's device.
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
        per_term: bool = False,
    ) -> Share:
        """Compute loss, gradients and statistics at the current weights; `.grad` and buffers do not change.

        Args:
            micro: the micro-batches.
            carried: the carry of each micro-batch.
            key: (seed, step), for random numbers.
            labels: "given", or "sampled" from the model's distribution.
            observe: the layers to tap, and the function of (taps, weights of the samples) that computes the sums of
                their statistics.
            observed: called with each statistic when it is complete.
            watch: makes a context for the last backward pass, from the divisor of the gradients.
            known: average loss and buffers over ranks. They are sent in one message with the weights, before the last
                backward pass, because ranks wait for each other at each message. Gradients are summed in the arrays
                that will be sent.
            per_term: divide the statistics by the number of terms of the loss, not by the samples' weight.
        """
        self.model.train()
        replicated = {name: value for name, value in self.named.items() if name not in self.tables}
        sums = self.reduce.make_sums(replicated) if known and self.reduce.world > 1 else {}
        statistics = Statistics(observe[1] if observe else _nothing, observed)
        buffers = {name: torch.zeros_like(value) for name, value in self.buffers.items()}
        looked_up: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in self.tables}
        samples = torch.stack([part["weight"].sum() for part in micro]).sum()
        total = weight = samples.new_zeros(())
        carry = []
        with self._set_aside(sums) as before:
            for number, (part, state) in enumerate(zip(micro, carried, strict=True), 1):
                for name, value in before.items():
                    self.buffers[name].copy_(value)
                part, fetched = self.fetched(part)
                statistics.weight = part["weight"]
                with tap_layers(self.model, observe[0] if observe else {}, statistics.add) as rest, torch.enable_grad():
                    outputs, after = self._predict(part, state, key, compiled=not observe)
                    if labels == "sampled":
                        outputs = self.model.sample(outputs, key, part)
                    loss, count = self.model.loss(outputs, part)
                    total, weight, last = total + loss.detach(), weight + count.detach(), number == len(micro)
                    for name, value in self.buffers.items():
                        buffers[name] += value / len(micro)
                    if last:  # with the mean of the weights as divisor, the mean of shares is Σ sum / Σ weight
                        total, weight, samples, buffers = self._means(total, weight, samples, buffers, known)
                        statistics.divisor = weight if per_term else samples  # `weight` may count words
                    with watch(weight) if last and watch else contextlib.nullcontext():
                        loss.backward()
                        rest()
                for name, (ids, rows) in fetched.items():
                    looked_up[name].append((ids, cast(Tensor, rows.grad)))
                carry.append({name: widen_floats(value.detach()) for name, value in after.items()})
            sums = {name: cast(Tensor, parameter.grad) for name, parameter in replicated.items()}
        tables = {name: [(ids, rows / weight) for ids, rows in parts] for name, parts in looked_up.items()}
        return Share(total / weight, sums, weight, statistics.values(), tables, buffers, carry)

    @contextlib.contextmanager
    def _set_aside(self, sums: Tree) -> Iterator[Tree]:
        """Inside, gradients are added to `sums`, or to new arrays; afterwards, `.grad` and buffers are as before.

        Yields:
            Copies of the buffers.
        """
        grads = {name: parameter.grad for name, parameter in self.named.items()}
        buffers = {name: value.clone() for name, value in self.buffers.items()}
        for name, parameter in self.named.items():
            parameter.grad = sums.get(name)
        try:
            yield buffers
        finally:
            for name, value in buffers.items():
                self.buffers[name].copy_(value)
            for name, grad in grads.items():
                self.named[name].grad = grad

    def _predict(self, part: Tree, state: Tree, key: tuple[int, int], *, compiled: bool) -> tuple[Tree, Tree]:
        """Return the model's outputs in at least float32, in which the loss is computed, and its new carry."""
        with self.autocast():
            outputs, after = (self.forward if compiled else self.model)(part, state, key)
        return {name: widen_floats(value) for name, value in outputs.items()}, after

    def _means(
        self, total: Tensor, weight: Tensor, samples: Tensor, buffers: Tree, known: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tree]:
        """Means over ranks of weight and samples, and if `known` also of the loss and the buffers."""
        small = {"weight": weight, "samples": samples} | ({"loss": total} if known else {})
        means = self.reduce.exact(small | {f"buffer/{name}": value for name, value in buffers.items() if known})
        if known:
            total, buffers = means["loss"], {name: means[f"buffer/{name}"] for name in buffers}
        return total, means["weight"], means["samples"], buffers

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which the model computes in the run's precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.narrow)

    def clipped(self, grads: Tree) -> Tree:
        """Scale the gradient to the norm `clip_norm` if its norm is larger (Pascanu et al. 2013, algorithm 1)."""
        if not self.clip_norm:
            return grads
        square = compute_norms(g for g in grads.values() if not g.is_sparse).square().sum()
        if self.tables:  # ranks hold different rows
            local_square = torch.stack([grads[name].values().square().sum() for name in self.tables]).sum()
            square = square + self.reduce.world * self.reduce.exact({"norm": local_square})["norm"]
        factor = (self.clip_norm / square.sqrt()).clamp(max=1.0)
        return {name: grad * factor for name, grad in grads.items()}

    def fetched(self, batch: Tree) -> tuple[Tree, dict[str, tuple[Tensor, Tensor]]]:
        """Add the rows of tables that a batch reads to it; return the batch, and {table: (ids, rows)}."""
        if not self.tables:
            return batch, {}
        fetched = {}
        for name, ids in self.model.lookups(batch).items():
            rows = by_rows.fetch_rows(name, self.named[name].detach(), ids, self.reduce.transport)
            fetched[name] = ids, rows.requires_grad_()
        return batch | {f"{name}.rows": rows for name, (_, rows) in fetched.items()}, fetched

    def table_gradients(self, looked_up: dict[str, list[tuple[Tensor, Tensor]]]) -> Tree:
        """Return the gradients of this rank's rows, summed from every rank's (ids, gradients)."""
        grads = {}
        for name, parts in looked_up.items():
            ids, rows = (torch.cat(values) for values in zip(*parts, strict=True))
            transport = self.reduce.transport
            grads[name] = by_rows.sum_gradient(name, ids, rows / self.reduce.world, self.named[name], transport)
        return grads


def _nothing(taps: Taps, weight: Tensor) -> Tree:
    return {}
