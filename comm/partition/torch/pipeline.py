"""Stages of a plan on many processes: one process for each device."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from suite.comm.channel import Channels
from suite.comm.codecs._codec import Codec
from suite.comm.partition.calibration import STEPS, Passes, calibrate_plan, check_steps
from suite.comm.partition.orders import Pass
from suite.comm.partition.peers import guard_exchange
from suite.comm.partition.placement import Place
from suite.comm.partition.plan import Plan, list_readers
from suite.comm.partition.torch.alone import micro_batch, outputs_of
from suite.comm.partition.torch.links import Expected, Link
from suite.comm.partition.torch.profile import wait_for_device
from suite.comm.partition.torch.rehearsal import Cut, Form, read_form, rehearse_stage
from suite.comm.partition.torch.replicas import Replicas
from suite.comm.partition.torch.split import split_graph
from suite.comm.partition.torch.stage import Stage, seed_state
from suite.comm.partition.torch.trace import Inputs, Traced
from suite.comm.transport import Ledger, torch_messages
from suite.contract import UserError

Context = contextlib.AbstractContextManager[None]


@dataclass(frozen=True)
class Shared:
    """A parameter that several stages read; the first stage owns it.

    In each micro-batch, the last of these stages sends its gradient to the one before it, which adds its own and sends
    the sum on, up to the first. Autograd adds in the same order.
    """

    name: str
    stages: tuple[int, ...]
    form: Form

    def before(self, stage: int) -> int | None:
        """Return the last earlier stage that reads the parameter; None if none does, or `stage` does not."""
        earlier = [reader for reader in self.stages if reader < stage]
        return earlier[-1] if stage in self.stages and earlier else None

    def after(self, stage: int) -> int | None:
        """Return the next stage that reads the parameter; None if none does, or `stage` does not."""
        later = [reader for reader in self.stages if reader > stage]
        return later[0] if stage in self.stages and later else None


class Pipeline:
    """This rank's stage of a partitioned model, and its exchange with other stages and replicas.

    Every rank makes its pipeline from the same model and plan, and calls `step` with the same batch.

    Args:
        traced: the model.
        plan: for as many devices as there are ranks.
        device: of this rank.
        channels: how gradients are averaged over the replicas of a stage; None: exactly, in their own type.
        activations: encodes the values that cross a cut, and their gradients; None: they keep their bits.
        ledger: counts the bytes that this rank sends.
        average_buffers: every micro-batch starts from the step's old buffers, and their means over all micro-batches
            are the new ones; otherwise, each replica's micro-batches change its buffers one after another.
        seed: of the random numbers of dropout and the like, see `seed_of`, and of codecs.
        deadline: seconds that a rank waits for another; None: torch's default.
        checked: how near the stages are to the unmodified model, in words.

    Attributes:
        plan: how the model is cut; `print(pipeline.plan)` shows it.
        place: this rank's pipeline, stage and replica.
        ledger: bytes sent, by name.
        replicas: the ranks of this stage; they hold the residuals of error feedback.
        steps: number of the next step, from 0, for random numbers.
    """

    def __init__(
        self,
        traced: Traced,
        plan: Plan,
        device: torch.device,
        *,
        channels: Channels | None = None,
        activations: Codec | None = None,
        ledger: Ledger | None = None,
        average_buffers: bool = False,
        seed: int = 0,
        deadline: float | None = None,
        checked: str = "",
    ):
        self.plan, self.grid, self.seed, self.checked = plan, plan.grid, seed, checked
        rank, world = dist.get_rank(), dist.get_world_size()
        if world != self.grid.world:
            raise UserError(f"the plan is for {self.grid.world} devices, and there are {world} processes")
        self.rank, self.place, self.ledger = rank, self.grid.place(rank), ledger or Ledger()
        parts = split_graph(traced, plan)
        cuts = rehearse_stage(traced, parts, device)
        shared = {
            name: numbers
            for name, numbers in list_readers(part.parameters for part in parts).items()
            if len(numbers) > 1
        }
        part, stage = parts[self.place.stage], self.place.stage
        part.module.to(device)
        self.cut = cuts[stage]
        self.after: Cut | None = cuts[stage + 1] if stage + 1 < len(cuts) else None
        tied = [name for name, numbers in shared.items() if stage in numbers[1:]]
        recompute = plan.stages[stage].recompute
        self.stage = Stage(part, self.cut, self.after, recompute, tied, device, average_buffers=average_buffers)
        self.shared = [
            Shared(name, tuple(numbers), read_form(parts[numbers[0]].parameters[name].detach()))
            for name, numbers in shared.items()
        ]
        first = next((number for number, other in enumerate(parts) if other.random), len(parts))
        self.draws = first <= stage  # whether the generator's state comes along
        self.seeds_here = first == stage
        self.state_form = read_form(seed_state(device, 0)) if first < stage else None
        self.sends_state = first <= stage < len(parts) - 1
        if activations and activations.draws:
            raise UserError("activations: the codec rounds at random; pass a codec that rounds to nearest")
        common = self.ledger, device, deadline, self.grid.words
        self.values, self.gradients = (Link(name, *common, activations) for name in ("values", "gradients"))
        self.tied = Link("tied", *common)
        self.replicas = Replicas(self.grid, stage, self.stage.own, self.ledger, channels, deadline)
        self.traced, self.steps = traced, 0
        self.passes: Passes | None = None  # their seconds, while they are measured

    # ------------------------------------------------------------------------------------------------- parameters
    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """This rank's trainable parameters, with their names in the model. A shared parameter is at its owner only."""
        yield from self.stage.own.items()

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Buffers that this rank's stage changes, with their names in the model."""
        for target, buffer in self.stage.part.changes.items():
            yield self.traced.names[target], buffer

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """This rank's trainable parameters, for an optimizer."""
        yield from self.stage.own.values()

    def state_dict(self) -> dict[str, Tensor]:
        """This rank's parameters and buffers, with their names in the model."""
        tensors = {**self.stage.own, **self.stage.part.buffers}
        return {name: tensor.detach() for name, tensor in tensors.items()}

    @property
    def outputs(self) -> dict[int, Any]:
        """Model's outputs in the last step, by number of the micro-batch; at other stages than the last, empty."""
        first = self.place.pipeline * self.grid.micro_batches
        return {first + own: outputs_of(self.traced, values) for own, values in sorted(self.stage.outputs.items())}

    # ------------------------------------------------------------------------------------------------------ a step
    def seed_of(self, step: int, micro_batch: int) -> int:
        """Return the seed of one micro-batch's random numbers.

        The unmodified model draws the same numbers after `torch.manual_seed(pipeline.seed_of(step, number))`.
        """
        return (self.seed * 1_000_003 + step) * 1_000_003 + micro_batch

    def step(self, inputs: Inputs, targets: Any = None) -> Tensor:
        """Run forward and backward for a batch, and leave the mean gradients in `.grad` of this rank's parameters.

        Args:
            inputs: of the model, for the whole batch. Every rank passes the same batch and uses what its stage needs.
            targets: of the loss.

        Returns:
            The mean loss of all micro-batches, on every rank. If the loss is (sum, weight): the sum of all sums over
            the sum of all weights.

        Raises:
            PeerLost: if another rank ended or did not answer.
        """
        self.begin()
        self.run(inputs, targets, self.replicas.last_pass)
        total, weight = self._totals()
        self.average(weight)
        return total / weight

    def begin(self) -> None:
        """Begin a step; delayed gradients of the last step are sent while it computes."""
        self.replicas.begin((self.seed, self.steps))

    def run(self, inputs: Inputs, targets: Any = None, last: Callable[[], Context] = contextlib.nullcontext) -> None:
        """Run forward and backward for a batch, and keep the sums of this rank's gradients and buffers; see `step`.

        Args:
            inputs: of the model, for the whole batch.
            targets: of the loss.
            last: makes a context for this rank's last backward pass; also called on a rank without one. It must not
                wait for other ranks, which may need the result of this pass.
        """
        count = self.grid.pipelines * self.grid.micro_batches
        self.stage.sums.clear()
        self.stage.buffer_sums.clear()
        self.stage.losses.clear()
        self._copy_shared()
        self._expect()
        offset = self.place.pipeline * self.grid.micro_batches
        jobs = self.grid.passes(self.place)
        for job in jobs:
            number = offset + job.micro_batch
            with self._timed(job):
                if job.kind == "forward":
                    self._forward(job.micro_batch, micro_batch(self.traced, (inputs, targets), number, count), number)
                else:
                    with last() if job is jobs[-1] else contextlib.nullcontext():
                        self._backward(job.micro_batch)
        if not jobs:  # a stage may have more replicas than micro-batches
            with last():
                pass
        for link in (self.values, self.gradients, self.tied):
            link.finish()

    @torch.no_grad()
    def average(self, divisor: float | Tensor) -> None:
        """Set each parameter's gradient: the sum over all micro-batches of `run`, divided by `divisor`.

        Also set the buffers, if they are averaged.

        Args:
            divisor: number of micro-batches, or the summed weight of their samples; the same on all ranks.
        """
        ranks = self.replicas.transport.world
        sums, self.stage.sums = self.stage.sums, {}
        if ranks > 1:
            sums = {name: sums.get(name, torch.zeros_like(p)) for name, p in self.stage.own.items()}
        means = self.replicas.mean(sums, torch.as_tensor(divisor / ranks, device=self.stage.device))
        for name, parameter in self.stage.own.items():
            parameter.grad = means.get(name)
        self._average_buffers()
        self.steps += 1

    def _average_buffers(self) -> None:
        """Set the changed buffers to their means over all micro-batches of the step, if they are averaged."""
        changes, sums = self.stage.part.changes, self.stage.buffer_sums
        if not self.stage.average_buffers or not changes:
            return
        parts = [sums.get(target, torch.zeros_like(buffer)) for target, buffer in changes.items()]
        total = self.replicas.sum(torch.cat([part.reshape(-1).double() for part in parts]))  # also exact for integers
        means = total / (self.grid.pipelines * self.grid.micro_batches)
        for buffer, mean in zip(changes.values(), means.split([part.numel() for part in parts]), strict=True):
            buffer.copy_(mean.view_as(buffer))

    def calibrate(self, inputs: Inputs, targets: Any = None, steps: int = STEPS) -> Plan:
        """Predict a step from the times of the stages, measured while all of them run.

        Every rank calls this with the same batch. Parameters, buffers and gradients stay as they are.

        Args:
            inputs: of the model, for the whole batch.
            targets: of the loss.
            steps: that are measured, after one that is not.

        Returns:
            The plan with measured times, on every rank. `plan` has the times of single operations.

        Raises:
            PeerLost: if another rank ended or did not answer.
        """
        check_steps(steps)
        stage, changes = self.stage, self.stage.part.changes
        kept = stage.sums, stage.losses, stage.outputs
        stage.sums, stage.losses, stage.outputs = {}, {}, {}
        before = {name: buffer.clone() for name, buffer in changes.items()}
        with self.ledger.paused():
            self.run(inputs, targets)
            self.passes = Passes()
            for _ in range(steps):
                self.run(inputs, targets)
        passes, self.passes = self.passes, None
        for name, buffer in before.items():
            changes[name].copy_(buffer)
        stage.sums, stage.losses, stage.outputs = kept
        gathered = guard_exchange("a rank while exchanging times", lambda: torch_messages.gather(passes))
        return calibrate_plan(self.plan, dict(enumerate(gathered)))

    @contextlib.contextmanager
    def _timed(self, job: Pass) -> Iterator[None]:
        """Record the seconds of a pass, without the waiting for messages, while `calibrate` measures."""
        if self.passes is None:
            yield
            return
        links = self.values, self.gradients, self.tied
        began = time.perf_counter() - sum(link.waited for link in links)
        yield
        wait_for_device(self.stage.device)
        seconds = time.perf_counter() - sum(link.waited for link in links) - began
        (self.passes.forward if job.kind == "forward" else self.passes.backward).append(seconds)

    def _expect(self) -> None:
        """Announce the messages of this step."""
        own = [job.micro_batch for job in self.grid.passes(self.place) if job.kind == "forward"]
        stage = self.place.stage
        before = [self.grid.peer(self.place, stage - 1, number) for number in own] if stage else []
        self.values.expect(Expected(rank, self._received_forms()) for rank in before)
        after = [self.grid.peer(self.place, stage + 1, number) for number in own] if self.after else []
        self.gradients.expect(Expected(rank, self._returned_forms()) for rank in after)
        self.tied.expect(
            Expected(self.grid.peer(self.place, later, number), (shared.form,))
            for number in own
            for shared in self.shared
            if (later := shared.after(stage)) is not None
        )

    def _received_forms(self) -> tuple[Form, ...]:
        return (*self.cut.values, *((self.state_form,) if self.state_form else ()))

    def _returned_forms(self) -> tuple[Form, ...]:
        return tuple(form for form in self.after.gradients if form is not None) if self.after else ()

    def _forward(self, own: int, inputs: Mapping[str, Tensor], number: int) -> None:
        """Run the forward pass of micro-batch `own` of this pipeline, which is `number` of the step."""
        forms = self._received_forms()
        received: tuple[Tensor, ...] = self.values.receive() if self.place.stage and forms else ()
        state: Tensor | None = None
        if self.seeds_here:
            state = seed_state(self.stage.device, self.seed_of(self.steps, number))
        elif self.state_form:
            state = received[len(self.cut.values)].cpu()
            received = received[: len(self.cut.values)]
        inputs = {name: inputs[name].to(self.stage.device) for name in self.stage.part.inputs}
        sent, state = self.stage.forward(own, inputs, received, state)
        if self.after is None:
            return
        peer = self.grid.peer(self.place, self.place.stage + 1, own)
        forms, values = self.after.values, list(sent)
        if self.sends_state and state is not None:
            forms, values = (*forms, read_form(state)), [*values, state]
        self.values.send(peer, values, forms)

    def _backward(self, own: int) -> None:
        """Run the backward pass of one micro-batch."""
        grads = self.gradients.receive() if self._returned_forms() else ()
        read_later = [shared for shared in self.shared if shared.after(self.place.stage) is not None]
        later = {shared.name: self.tied.receive()[0] for shared in read_later}
        returned = self.stage.backward(own, list(grads), later)
        if self.place.stage:
            forms = [form for form in self.cut.gradients if form is not None]
            self.gradients.send(self.grid.peer(self.place, self.place.stage - 1, own), returned.values, forms)
        for shared in self.shared:
            earlier = shared.before(self.place.stage)
            if earlier is not None:
                peer = self.grid.peer(self.place, earlier, own)
                self.tied.send(peer, [returned.tied[shared.name]], [shared.form])

    @torch.no_grad()
    def _copy_shared(self) -> None:
        """Send the shared parameters from their owners to the other stages that read them."""
        for shared in self.shared:
            owner = self.grid.rank(Place(self.place.pipeline, shared.stages[0], 0))
            if self.rank == owner:
                for stage in shared.stages[1:]:
                    for replica in range(self.grid.replicas[stage]):
                        peer = self.grid.rank(Place(self.place.pipeline, stage, replica))
                        self.tied.send(peer, [self.stage.own[shared.name].detach()], [shared.form])
            elif self.place.stage in shared.stages[1:]:
                self.tied.expect([Expected(owner, (shared.form,))])
                self.stage.tied[shared.name].copy_(self.tied.receive()[0])

    def _totals(self) -> tuple[Tensor, Tensor]:
        """Return the sums of losses and of weights over all micro-batches; a loss without a weight counts 1."""
        totals = torch.zeros(2, dtype=torch.float64, device=self.stage.device)
        for number, loss in sorted(self.stage.losses.items()):
            weight = self.stage.outputs[number][1] if self.traced.weighted else torch.ones_like(loss)
            totals += torch.stack([loss, weight])
        guard_exchange("a rank while exchanging losses", lambda: dist.all_reduce(totals))
        return totals[0], totals[1]
