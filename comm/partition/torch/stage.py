"""One stage of a pipeline on one device: forward and backward passes, and sums of gradients over micro-batches.

The bits equal those of the unmodified model on the same micro-batches. Three things are needed for that. Values keep
strides and `requires_grad` (`rehearsal.py`). A value's gradient is summed in autograd's order, later uses first:
a stage starts its backward pass from the received gradient and adds its own. And micro-batches are summed in order.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from suite.comm.partition.torch.rehearsal import Cut, find_gradients
from suite.comm.partition.torch.split import Part


@dataclass
class Held:
    """Values that a stage keeps of one micro-batch from forward to backward.

    Attributes:
        inputs: of the model.
        received: from the previous stage.
        sent: results with their autograd graph; None if they are computed again before the backward pass.
        state: of the random number generator before the forward pass; None if the model draws no random numbers.
        buffers: values of the changing buffers before the forward pass.
    """

    inputs: tuple[Tensor, ...]
    received: tuple[Tensor, ...]
    sent: tuple[Tensor, ...] | None
    state: Tensor | None
    buffers: dict[str, Tensor]


@dataclass(frozen=True)
class Returned:
    """Results of a backward pass.

    Attributes:
        values: gradients of the received values that get one, in order.
        tied: gradients of the parameters that an earlier stage owns, by name, summed over this and later stages.
    """

    values: list[Tensor]
    tied: dict[str, Tensor]


class Stage:
    """Runs the passes of one stage, and sums the gradients of its parameters over micro-batches.

    Args:
        part: the stage.
        cut: what it receives.
        after: what the next stage receives; None for the last stage.
        recompute: keep only what it received, and compute the rest again before each backward pass.
        tied: names of the parameters that an earlier stage owns; their gradients are returned for each micro-batch.
        device: on which it runs.
        average_buffers: keep the buffers, and sum what the micro-batches make of them; otherwise, each micro-batch
            starts from what the one before it made.

    Attributes:
        sums: of the gradients of its own parameters, by name.
        buffer_sums: of the changed buffers over micro-batches, by name in the module; empty unless they are averaged.
        losses: of the micro-batches; empty unless it is the last stage.
        outputs: of the micro-batches, the loss first; empty unless it is the last stage.
    """

    def __init__(
        self,
        part: Part,
        cut: Cut,
        after: Cut | None,
        recompute: bool,
        tied: Sequence[str],
        device: torch.device,
        *,
        average_buffers: bool = False,
    ):
        self.part, self.cut, self.after, self.recompute, self.device = part, cut, after, recompute, device
        self.average_buffers = average_buffers
        self.tied = {name: part.parameters[name] for name in tied}
        self.own = {name: parameter for name, parameter in part.parameters.items() if name not in self.tied}
        self.held: dict[int, Held] = {}
        self.sums: dict[str, Tensor] = {}
        self.buffer_sums: dict[str, Tensor] = {}
        self.losses: dict[int, Tensor] = {}
        self.outputs: dict[int, tuple[Tensor, ...]] = {}

    def forward(
        self, micro_batch: int, inputs: Mapping[str, Tensor], received: Sequence[Tensor], state: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Run the forward pass of one micro-batch.

        Args:
            micro_batch: its number.
            inputs: of the model, by name.
            received: from the previous stage.
            state: of the random number generator.

        Returns:
            What the next stage receives, without autograd graph; and the generator's state after the pass.
        """
        values = tuple(inputs[name] for name in self.part.inputs)
        leaves = zip(received, self.cut.values, strict=True)
        received = tuple(value.detach().requires_grad_(form.requires_grad) for value, form in leaves)
        before = {target: buffer.clone() for target, buffer in self.part.changes.items()}
        changing = {target: buffer.clone() for target, buffer in before.items()}  # the graph may keep them unchanged
        with torch.enable_grad(), use_generator(self.device, state) as drawn:
            sent = self.part(*values, *received, changing=changing)
            state_after = drawn()
        self._keep(changing)
        if self.after is None:
            self.losses[micro_batch] = sent[0].detach()
            self.outputs[micro_batch] = tuple(value.detach() for value in sent)
        self.held[micro_batch] = Held(values, received, None if self.recompute else sent, state, before)
        return tuple(value.detach() for value in sent), state_after

    def backward(
        self, micro_batch: int, grads: Sequence[Tensor], later: Mapping[str, Tensor] | None = None
    ) -> Returned:
        """Run the backward pass of one micro-batch, and add the gradients of the stage's parameters to `sums`.

        Args:
            micro_batch: its number.
            grads: gradients of the sent values that get one, in order.
            later: sums of the gradients of later stages, by name of the parameter that they share with this stage.
        """
        held = self.held.pop(micro_batch)
        sent = self._again(held) if held.sent is None else held.sent
        roots: list[tuple[Tensor, Tensor | None]] = []
        if self.after is None:
            roots.append((sent[0], None))
        else:
            targets = [value for value, form in zip(sent, self.after.gradients, strict=True) if form is not None]
            roots = list(zip(targets, grads, strict=True))
        roots += [(self.part.parameters[name], grad) for name, grad in (later or {}).items()]
        returned = [value for value, form in zip(held.received, self.cut.gradients, strict=True) if form is not None]
        wanted = [*returned, *self.own.values(), *self.tied.values()]
        results = find_gradients([root for root in roots if root[0].requires_grad], wanted)
        values, parameters = results[: len(returned)], results[len(returned) :]
        named = dict(zip((*self.own, *self.tied), parameters, strict=True))
        self._add({name: named[name] for name in self.own})
        shared = {name: grad for name in self.tied if (grad := named[name]) is not None}
        return Returned([value for value in values if value is not None], shared)

    @torch.no_grad()
    def _keep(self, changed: Mapping[str, Tensor]) -> None:
        """Keep the buffers that a micro-batch changed, or add them to the sums."""
        for target, buffer in changed.items():
            if not self.average_buffers:
                self.part.changes[target].copy_(buffer)
            elif target in self.buffer_sums:
                self.buffer_sums[target] += buffer
            else:
                self.buffer_sums[target] = buffer.clone()

    @torch.no_grad()
    def _add(self, grads: Mapping[str, Tensor | None]) -> None:
        """Add one micro-batch's gradients to the sums, in the parameters' layout as autograd does."""
        for name, grad in grads.items():
            if grad is None:
                continue
            if name in self.sums:
                self.sums[name] += grad
            else:
                self.sums[name] = torch.empty_like(self.own[name]).copy_(grad)

    def _again(self, held: Held) -> tuple[Tensor, ...]:
        """Repeat a forward pass with the buffers and random numbers that it had."""
        with torch.enable_grad(), use_generator(self.device, held.state):
            return self.part(*held.inputs, *held.received, changing=held.buffers)


def seed_state(device: torch.device, seed: int) -> Tensor:
    """Return the state of a device's random number generator after `torch.manual_seed(seed)`."""
    return torch.Generator(device).manual_seed(seed).get_state()


@contextlib.contextmanager
def use_generator(device: torch.device, state: Tensor | None) -> Iterator[Callable[[], Tensor | None]]:
    """Use this state of the device's default generator inside the context; afterwards, restore its own.

    Yields a function that returns the state at that moment; None if `state` is None.
    """
    if state is None:
        yield lambda: None
        return
    module = torch if device.type == "cpu" else torch.get_device_module(device)
    before = module.get_rng_state()
    module.set_rng_state(state)
    try:
        yield module.get_rng_state
    finally:
        module.set_rng_state(before)
