"""Stages of a plan on many devices, of one process or of several."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from suite.comm.channel import Channels
from suite.comm.codecs._codec import Codec
from suite.comm.partition.calibration import STEPS, Passes, calibrate_plan, check_steps
from suite.comm.partition.jax.alone import micro_batch, stage_of, sum_results
from suite.comm.partition.jax.links import Item, Links
from suite.comm.partition.jax.messages import count_bytes
from suite.comm.partition.jax.processes import gather_values, meet_processes
from suite.comm.partition.jax.replicas import Replicas
from suite.comm.partition.jax.split import split_graph
from suite.comm.partition.jax.stages import Device, Grads, Stage, divide_values
from suite.comm.partition.jax.tape import Tree, by_path
from suite.comm.partition.jax.trace import Traced
from suite.comm.partition.meetings import meet_ranks
from suite.comm.partition.orders import Pass
from suite.comm.partition.peers import guard_exchange
from suite.comm.partition.placement import Place, place_passes, ranks_per_host
from suite.comm.partition.plan import Plan, list_readers
from suite.comm.partition.timeline import simulate_step
from suite.comm.transport import Ledger, make_entry
from suite.contract import UserError


class Pipeline:
    """This process's stages of a partitioned function, and their exchange with other stages and replicas.

    Every process makes its pipeline from the same function and plan, and calls `step` with the same batch.

    Args:
        traced: the function.
        plan: for as many devices as `devices`.
        params: initial values; each process needs only the parameters of its own stages.
        devices: one for each rank, of all processes; None: `jax.devices()` in the order of processes.
        channels: how gradients are averaged over the ranks of a stage; None: exactly, in their own type.
        activations: encodes the values that cross a cut, and their gradients; None: they keep their bits.
        ledger: counts the bytes that this process's first rank sends.
        seed: of codecs that draw random numbers.

    Attributes:
        plan: how the function is cut; `print(pipeline.plan)` shows it.
        stages: of this process, by rank.
        gradients: of the last step's loss, by path, of the parameters that this process's stages own.
        steps: number of the next step, for codecs that draw random numbers.
        ledger: bytes sent by this process's first rank, by name.
    """

    def __init__(
        self,
        traced: Traced,
        plan: Plan,
        params: Tree,
        devices: Sequence[Device] | None = None,
        *,
        channels: Channels | None = None,
        activations: Codec | None = None,
        ledger: Ledger | None = None,
        seed: int = 0,
    ):
        self.traced, self.plan, self.grid, self.ledger = traced, plan, plan.grid, ledger or Ledger()
        self.devices = list(devices or sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))
        if len(set(self.devices)) != self.grid.world:
            raise UserError(f"the plan is for {self.grid.world} devices; devices names {len(set(self.devices))}")
        self.parts = split_graph(traced, plan)
        self.readers = list_readers(part.trainable for part in self.parts)
        self.shared = {name: numbers for name, numbers in self.readers.items() if len(numbers) > 1}
        if activations and activations.draws:
            raise UserError("activations: the codec rounds at random; pass a codec that rounds to nearest")
        self.links = Links(self.devices, self.ledger, self.grid.words, activations)
        self.replicas = self._replicas(channels, seed)
        self.world = Replicas(self.devices)
        named, here = by_path(params), jax.process_index()
        self.stages: dict[int, Stage] = {
            rank: stage_of(traced, plan, self.parts, self.grid.place(rank).stage, named, device)
            for rank, device in enumerate(self.devices)
            if device.process_index == here
        }
        self.busy: dict[int, Tree] = {}  # what each rank computed last
        self.gradients: Grads = {}
        self.steps, self.compiled = 0, False
        self.passes: dict[int, Passes] | None = None  # their seconds, by rank, while they are measured

    def _replicas(self, channels: Channels | None, seed: int) -> list[Replicas]:
        """Return the ranks of each stage."""
        groups = [self.grid.group(number) for number in range(len(self.parts))]
        devices = [[self.devices[rank] for rank in group] for group in groups]
        locals = channels.locals if channels else None
        counts = ranks_per_host(groups, locals) if locals else [None] * len(groups)
        return [Replicas(own, channels, seed, count) for own, count in zip(devices, counts, strict=True)]

    # ------------------------------------------------------------------------------------------------- parameters
    @property
    def parameters(self) -> Grads:
        """Trainable parameters that this process's stages own, by path. Assign new values after each update."""
        first = reversed(self.stages.values())  # of several ranks of one stage, the first one's
        return {name: stage.parameters[name] for stage in first for name in stage.own}

    @parameters.setter
    def parameters(self, values: Mapping[str, Array]) -> None:
        if unknown := values.keys() - self.parameters.keys():
            raise UserError(f"parameters: this process does not own {', '.join(sorted(unknown))}")
        for stage in self.stages.values():
            stage.parameters |= stage.put({name: values[name] for name in stage.own if name in values})

    @property
    def buffers(self) -> Grads:
        """Buffers that this process's stages change, by path. Each step sets them."""
        return {name: value for stage in reversed(self.stages.values()) for name, value in stage.buffers.items()}

    @buffers.setter
    def buffers(self, values: Mapping[str, Array]) -> None:
        for stage in self.stages.values():
            stage.buffers |= stage.put({name: values[name] for name in stage.buffers if name in values})

    def whole(self) -> Grads:
        """All parameters and buffers that change, by path; each is equal on all devices. Every process calls this."""
        gathered: Grads = {}
        for number in range(len(self.parts)):
            names, owner = [*self.owned(number), *self.parts[number].changes], self.grid.group(number)[0]
            if not names:
                continue
            shapes = tuple(self._shapes(names))
            messages = {
                stage.device: stage.put(jnp.zeros(count_bytes(shapes), jnp.uint8)) for stage in self.stages.values()
            }
            if owner in self.stages:
                stage = self.stages[owner]
                held = stage.parameters | stage.buffers
                [messages[stage.device]] = self.links.pack([held[name] for name in names])
            values = self.links.unpack(self.world.sums(messages)[None], shapes=shapes)
            self.ledger.add([make_entry("all_reduce", "weights", "uint8", count_bytes(shapes), self.grid.world)])
            gathered |= zip(names, values, strict=True)
        return gathered

    def owned(self, stage: int) -> list[str]:
        """Return the trainable parameters that a stage owns: of those that several stages read, the first stage's."""
        return [name for name in self.parts[stage].trainable if self.readers[name][0] == stage]

    # ------------------------------------------------------------------------------------------------------ a step
    def warm(self, *inputs: Tree) -> None:
        """Run a step and discard what it changes, so that no later step has to compile. Every process calls this."""
        before, buffers = [replicas.residuals for replicas in self.replicas], self.buffers
        with self.ledger.paused():
            self.step(*inputs)
        for replicas, residuals in zip(self.replicas, before, strict=True):
            replicas.residuals = residuals or jax.tree.map(jnp.zeros_like, replicas.residuals)
        self.steps, self.gradients, self.buffers = self.steps - 1, {}, buffers

    def calibrate(self, *inputs: Tree, steps: int = STEPS) -> Plan:
        """Predict a step from the times of the stages, measured while all of them run. Every process calls this.

        Parameters, buffers, gradients and residuals stay as they are.

        Args:
            inputs: of the function, for the whole batch.
            steps: that are measured; if none has run before, after one that is not.

        Returns:
            The plan with measured times, in every process. `plan` has the times of single operations.

        Raises:
            PeerLost: if another process ended.
        """
        check_steps(steps)
        gradients = self.gradients
        if not self.compiled:
            self.warm(*inputs)
        self.passes = {}
        for _ in range(steps):
            self.warm(*inputs)
        passes, self.passes, self.gradients = self.passes, None, gradients
        one_each = jax.process_count() == self.grid.world
        return calibrate_plan(
            self.plan, gather_values(passes, self.grid.world), meet_ranks if one_each else simulate_step
        )

    def step(self, *inputs: Tree) -> Array:
        """Run forward and backward for a batch, and leave the gradients of its loss in `gradients`.

        Every micro-batch starts from the same `buffers`; afterwards these are the means of the new ones.

        Args:
            inputs: of the function, for the whole batch. Every process passes the same batch; its stages use what they
                need.

        Returns:
            The mean loss of all micro-batches, on every process. If the function returns (sum, weight): the sum of all
            sums over the sum of all weights.

        Raises:
            PeerLost: if another process ended.
        """
        count = self.grid.pipelines * self.grid.micro_batches
        if not self.compiled:
            self._compile(micro_batch(self.traced, inputs, 0, count))
        self._copy_shared()
        for event in place_passes(self.grid.replicas, self.grid.schedule, self.grid.micro_batches):
            for pipeline in range(self.grid.pipelines):
                replica = event.job.micro_batch % self.grid.replicas[event.stage]
                place = Place(pipeline, event.stage, replica)
                if event.kind == "transfer":
                    self._transfer(place, event.job)
                elif event.job.kind == "forward":
                    self._forward(place, event.job.micro_batch, inputs, count)
                else:
                    self._backward(place, event.job.micro_batch)
        self.links.finish()
        total, weight = guard_exchange("a rank while exchanging losses", lambda: self._totals(count))
        self._average(np.float64(weight))
        self._average_buffers(np.float64(count))
        self.steps += 1
        return total / weight

    def _compile(self, inputs: Mapping[str, Array]) -> None:
        """Compile this process's stages before any process waits for another, because some take longer."""
        with meet_processes():
            for stage in self.stages.values():
                shapes = tuple(self._shapes(stage.part.receives))
                message = stage.put(jnp.zeros((1, count_bytes(shapes)), jnp.uint8))
                stage.compile(inputs, self.links.unpack(message, shapes=shapes))
        self.compiled = True

    def _transfer(self, place: Place, job: Pass) -> None:
        """Pass the result of a pass on to the stage after or before it."""
        after = place.stage + (1 if job.kind == "forward" else -1)
        names = self.parts[place.stage].sends if job.kind == "forward" else self._moving(place.stage)
        item = (_values if job.kind == "forward" else _gradients)(job.micro_batch)
        receiver = self.grid.peer(place, after, job.micro_batch)
        self.links.exchange(item, self.grid.rank(place), receiver, self._shapes(names))

    def _shapes(self, names: Sequence[str]) -> list[jax.ShapeDtypeStruct]:
        return [self.traced.shapes[name] for name in names]

    def _moving(self, stage: int) -> list[str]:
        """Return the received values of a stage that get a gradient."""
        return [name for name in self.parts[stage].receives if self.traced.graph.values[name].differentiable]

    def _forward(self, place: Place, number: int, inputs: Sequence[Tree], count: int) -> None:
        rank = self.grid.rank(place)
        if rank in self.stages:
            whole = place.pipeline * self.grid.micro_batches + number
            received = self.links.take(_values(number), rank)
            self._wait(rank)
            with self._timed(rank, "forward"):
                sent = self.stages[rank].forward(number, micro_batch(self.traced, inputs, whole, count), received)
                self.busy[rank] = sent
            self.links.leave(_values(number), rank, sent)

    def _backward(self, place: Place, number: int) -> None:
        """Run a backward pass, after the gradients of the stage's parameters at later stages have come."""
        rank, tied = self.grid.rank(place), self._shared_by(place.stage)
        for name, reader in tied:
            sender = self.grid.peer(place, reader, number)
            self.links.exchange(Item("tied", number, f"{name} of {reader}"), sender, rank, self._shapes([name]))
        if rank in self.stages:
            grads = self.links.take(_gradients(number), rank)
            parts: dict[str, list[Array]] = {}
            for name, reader in tied:
                parts.setdefault(name, []).extend(self.links.take(Item("tied", number, f"{name} of {reader}"), rank))
            self._wait(rank)
            with self._timed(rank, "backward"):
                returned = self.stages[rank].backward(number, grads, parts)
                self.busy[rank] = self.stages[rank].sums, returned.values, returned.tied
            self.links.leave(_gradients(number), rank, returned.values)
            for name, grad in returned.tied.items():
                self.links.leave(Item("tied", number, f"{name} of {place.stage}"), rank, [grad])

    @contextlib.contextmanager
    def _timed(self, rank: int, kind: Literal["forward", "backward"]) -> Iterator[None]:
        """Record the seconds of a pass, up to the end of its computation, while `calibrate` measures."""
        if self.passes is None:
            yield
            return
        began = time.perf_counter()
        yield
        jax.block_until_ready(self.busy[rank])
        passes = self.passes.setdefault(rank, Passes())
        (passes.forward if kind == "forward" else passes.backward).append(time.perf_counter() - began)

    def _wait(self, rank: int) -> None:
        """Wait for the last pass of a rank: jax on CPUs would run several at once, and hold all their activations."""
        jax.block_until_ready(self.busy.pop(rank, None))

    def _shared_by(self, owner: int) -> list[tuple[str, int]]:
        """List the parameters that a stage owns and later stages read, with these stages, the last one first."""
        return [
            (name, reader)
            for name, numbers in self.shared.items()
            if numbers[0] == owner
            for reader in reversed(numbers[1:])
        ]

    def _copy_shared(self) -> None:
        """Send each shared parameter from its owner to the other stages that read it."""
        for name, (owner, *others) in self.shared.items():
            for receiver in (rank for reader in others for rank in self.grid.group(reader)):
                place = self.grid.place(receiver)
                sender = self.grid.peer(place, owner, place.replica)
                item = Item("tied", receiver, name)
                if sender in self.stages:
                    self.links.leave(item, sender, [self.stages[sender].parameters[name]])
                self.links.exchange(item, sender, receiver, self._shapes([name]))
                if receiver in self.stages:
                    [self.stages[receiver].parameters[name]] = self.links.take(item, receiver)

    def _totals(self, count: int) -> tuple[Array, Array]:
        """Sum loss and weight. Each row of the summed array has one rank's results, so that the sum is exact."""
        outputs = self.traced.graph.outputs
        none = jnp.zeros(len(outputs), self.traced.shapes[outputs[0]].dtype)
        results: dict[Device, Array] = {}
        for rank, stage in self.stages.items():
            first = self.grid.place(rank).pipeline * self.grid.micro_batches
            rows = [none] * count
            for number in list(stage.results):
                rows[first + number] = stage.results.pop(number)
            results[stage.device] = stage.put(jnp.stack(rows))
        return jax.block_until_ready(sum_results(self.world.sum(results)))

    def _average(self, weight: np.float64) -> None:
        """Set `gradients`: sums over all micro-batches of the step, divided by the summed weight."""
        self.gradients = {}
        for number, replicas in enumerate(self.replicas):
            group = self.grid.group(number)
            mine = [self.stages[rank] for rank in group if rank in self.stages]
            if not mine or not mine[0].own:
                continue
            divisor = weight / len(group)
            shares = {stage.device: divide_values(stage.sums or stage.zeros(), divisor) for stage in mine}
            words = f"a rank of stage {number} while averaging gradients"
            means = guard_exchange(words, lambda replicas=replicas, shares=shares: replicas.mean(shares, self.steps))
            if min(self.stages) in group:
                self.ledger.add(replicas.entries)
            for stage in mine:
                stage.sums = {}
            self.gradients |= means[mine[0].device]

    def _average_buffers(self, count: np.float64) -> None:
        """Set the buffers to the means of their new values over all micro-batches of the step."""
        for number, replicas in enumerate(self.replicas):
            group = self.grid.group(number)
            mine = [self.stages[rank] for rank in group if rank in self.stages]
            if not mine or not self.parts[number].changes:
                continue
            sums = {stage.device: stage.buffer_sums or jax.tree.map(jnp.zeros_like, stage.buffers) for stage in mine}
            if len(group) > 1:
                words = f"a rank of stage {number} while averaging buffers"
                sums = guard_exchange(words, lambda replicas=replicas, sums=sums: replicas.sum_each(sums))
                if min(self.stages) in group:
                    arrays = mine[0].buffers.values()
                    entries = [("all_reduce", "buffers", str(one.dtype), one.nbytes, len(group)) for one in arrays]
                    self.ledger.add([make_entry(*entry) for entry in entries])
            for stage in mine:
                stage.buffers, stage.buffer_sums = divide_values(sums[stage.device], count), {}


def _values(number: int) -> Item:
    """Return what a stage sends to the next one in the forward pass of a micro-batch."""
    return Item("values", number, coded=True)


def _gradients(number: int) -> Item:
    """Return what a stage sends to the one before it in the backward pass of a micro-batch."""
    return Item("gradients", number, coded=True)
