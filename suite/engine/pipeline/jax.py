"""Engine of a partitioned model in jax: this process's devices, which hold one stage each."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from suite import engine
from suite.comm import setup
from suite.comm.channel import Channels
from suite.comm.partition.jax import Pipeline, partition
from suite.comm.partition.jax.processes import meet_processes
from suite.comm.partition.jax.replicas import Replicas
from suite.comm.partition.jax.stages import Stage
from suite.comm.partition.peers import guard_exchange
from suite.comm.partition.plan import Plan as Cut
from suite.comm.transport.jax import AXIS
from suite.contract import Group, JaxModel, Plan, Skeleton, Snapshot, Task
from suite.engine import tree
from suite.engine.jax_device import Layout, cast_batch, devices_for, measure_device
from suite.engine.jax_evaluation import Evaluation
from suite.engine.jax_programs import Cache, Mode
from suite.engine.jax_step import compute_loss, keep_output, make_context
from suite.engine.pipeline import STAGES, choose_network, compare_replicas, describe_device, partition_of
from suite.engine.pipeline.jax_update import Update, scale_gradient, sum_squares
from suite.engine.ranks.jax import Ranks
from suite.settings.run import Run

Tree = dict[str, Any]
Batch = dict[str, np.ndarray]


def sum_losses(
    model: JaxModel, kinds: Mapping[str, str], arrays: Tree, batch: Tree, seed: Array, step: Array
) -> tuple[Array, Array, Tree]:
    """Return the summed loss, the summed weight and the new buffers of a micro-batch: the function that is cut.

    Args:
        model: the task's model.
        kinds: of each array, "parameter", "buffer" or "pattern".
        arrays: by name.
        batch: of the micro-batch.
        seed: of the run.
        step: its number.
    """
    params, buffers, patterns = (
        {name: value for name, value in arrays.items() if kinds[name] == kind}
        for kind in ("parameter", "buffer", "pattern")
    )
    context = make_context({"buffers": buffers, "patterns": patterns}, batch, {}, jnp.stack([seed, step]))
    total, (weight, changed, _) = compute_loss(model, params, context)
    return total, weight, changed


def list_kinds(task: Task) -> dict[str, str]:
    """Return the kind of each of a task's arrays, by name."""
    return {name: spec.kind for name, spec in task.shapes().items()}


class Engine:
    """Stages of a model, their optimizers and their exchange with other stages: `suite.contract.Engine`.

    Every process makes the whole batch and uses what its stages need.

    Args:
        task: data and model description.
        run: the run.
    """

    share = (0, 1)  # every process makes the whole batch

    def __init__(self, task: Task, run: Run):
        self.task, self.seed, self.clip_norm = task, run.seed, run.clip_norm
        self.precision, self.node = run.precision, run.optimizer
        self.devices, self.ranks = devices_for(run.device, run.world), Ranks()
        process = jax.process_index()
        self.takes_bytes = False  # its stages are traced from images that are normalised on the host
        self.local_ranks = tuple(rank for rank, one in enumerate(self.devices) if one.process_index == process)
        self.plan, self.kinds = Plan(), setup.find_kinds(task)
        self.cache, self.compile_seconds = Cache(), 0.0
        self.measured: Cut | None = None  # the plan with the times of whole stages
        self.modes = setup.make_modes(run.comm, task, run.world, "jax")
        self.mixed: dict[str, Channels] = {}  # the channels of each mode that was used
        self.channels = next(iter(self.modes.values()))
        self.model: JaxModel = run.task.make_model("jax", task)
        node = partition_of(run)
        self.activations = node.activations and setup.make_codec(node.activations, "jax")
        with self._mode():
            self._use(
                partition(
                    functools.partial(sum_losses, self.model, list_kinds(task)),
                    self._initial(),
                    self._inputs(task.batch("train", self.seed, 0, 0, 1), 0),
                    devices=self.devices,
                    stages=node.stages,
                    micro_batches=node.micro_batches,
                    schedule=node.schedule,
                    memory=node.memory_gib * 2**30,
                    device=describe_device(node),
                    network=choose_network(run),
                    channels=self.channels,
                    activations=self.activations,
                    seed=self.seed,
                )
            )
        self.ledger = self.pipeline.ledger
        layout = Layout(Mesh(np.array(self.devices).reshape(1, -1), AXIS), ())
        self._evaluation = Evaluation(self._predict, self.model, layout, P(), self.ledger, self.seed)

    def _initial(self) -> Batch:
        return cast_batch({name: self.task.init(self.seed, name) for name in self.task.shapes()})

    def _use(self, pipeline: Pipeline) -> None:
        """Train this process's stages of a pipeline, with new optimizers."""
        self.pipeline, self.grid = pipeline, pipeline.grid
        numbers = sorted({self.grid.place(rank).stage for rank in pipeline.stages})
        parameters = pipeline.parameters
        owned = {number: {name: parameters[name] for name in pipeline.owned(number)} for number in numbers}
        self.updates = {number: self._update(params) for number, params in owned.items() if params}

    def _update(self, params: Tree) -> Update:
        """Return the optimizer of one stage's parameters."""
        layers = self.task.layers().items()
        offers = {
            "layers": {name: layer for name, layer in layers if all(part in params for part in layer.parameters)},
            "shapes": {name: value.shape for name, value in params.items()},
        }
        needed = {name: value for name, value in offers.items() if name in self.node.needs}
        device = next(iter(params.values())).device
        return Update(self.node.build("jax", **needed), params, device)

    # --------------------------------------------------------------------------------------- communication
    @property
    def groups(self) -> list[Group]:
        """Ranks of each stage, which average the gradients of its parameters."""
        numbers = range(len(self.grid.replicas))
        return [Group(tuple(self.pipeline.owned(stage)), tuple(self.grid.group(stage))) for stage in numbers]

    def use(self, mode: str | Mapping[str, str]) -> None:
        """Average gradients over the replicas of a stage in this communication mode from now on."""
        self.channels = self.mixed.setdefault(str(mode), setup.mix_modes(self.modes, mode))
        for replicas in self.pipeline.replicas:
            replicas.use(self.channels)

    def exchange(self, kind: str) -> None:
        """Average arrays of the size of these stages' gradients of one kind of layer, and discard the results."""
        for replicas, values in self._values(kind):
            replicas.exchange(values)
            if self._stages[min(self._stages)].device in values:  # the ledger is that of this process's first rank
                self.ledger.add(replicas.entries)

    def code(self, kind: str) -> None:
        """Encode and decode arrays of the size of these stages' gradients of one kind of layer; nothing is sent."""
        for replicas, values in self._values(kind):
            replicas.code(values)

    def _values(self, kind: str) -> Iterator[tuple[Replicas, dict[Any, Tree]]]:
        """Yield the replicas of each of this process's stages, and their parameters of one kind of layer by device."""
        for number, replicas in enumerate(self.pipeline.replicas):
            stages = [self._stages[rank] for rank in self.grid.group(number) if rank in self._stages]
            names = [name for name in self.pipeline.owned(number) if self.kinds[name] == kind]
            if stages and names:
                yield replicas, {one.device: {name: one.parameters[name] for name in names} for one in stages}

    # ------------------------------------------------------------------------------------------- one update
    def _inputs(self, batch: Batch, step: int) -> tuple[Batch, np.uint32, np.uint32]:
        """Return the inputs of `sum_losses`."""
        return cast_batch(batch), np.uint32(self.seed), np.uint32(step)

    def warm(self, batch: Batch, steps: range, hyper: Mapping[str, float]) -> None:
        """Run two steps and discard their results, so that no step has to compile, and to predict a step."""
        began = time.perf_counter()
        with self._mode():
            self.pipeline.warm(*self._inputs(batch, steps.start))
            parameters = self.pipeline.parameters
            grads = self._clipped(jax.tree.map(jnp.zeros_like, parameters))
            with meet_processes():
                for update in self.updates.values():
                    update.warm(grads, parameters, hyper)
            self.compile_seconds += time.perf_counter() - began
            self.measured = self.pipeline.calibrate(*self._inputs(batch, steps.start), steps=1)

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Do nothing: no optimizer of a pipeline has statistics to initialise."""

    def step(self, step: int, batch: Batch, hyper: Mapping[str, float]) -> Array:
        """Make update number `step` (from 0) and return its mean loss."""
        for update in self.updates.values():
            engine.check_editable(hyper, update.state["hyper"], self.node)
        with self._mode():
            self.pipeline.steps = step
            loss = self.pipeline.step(*self._inputs(batch, step))
            grads, parameters = self._clipped(self.pipeline.gradients), self.pipeline.parameters
            for update in self.updates.values():
                self.pipeline.parameters = update(grads, parameters, hyper)
        return loss

    def _clipped(self, grads: Tree) -> Tree:
        """Scale the gradient to the norm `clip_norm` if its norm is larger (Pascanu et al. 2013, algorithm 1)."""
        if not self.clip_norm:
            return grads
        squares = {stage.device: stage.put(jnp.zeros(len(self.grid.replicas))) for stage in self._stages.values()}
        for number, update in self.updates.items():
            first = self.grid.group(number)[0]  # the stage's other ranks have the same gradient
            if first in self._stages:
                device = self._stages[first].device
                squares[device] = (
                    squares[device].at[number].set(sum_squares({name: grads[name] for name in update.names}))
                )
        total = guard_exchange(
            "a rank while exchanging norms", lambda: np.asarray(self.pipeline.world.sum(squares))
        ).sum()
        factor = self.clip_norm / np.maximum(np.sqrt(total), self.clip_norm)
        return {name: scale_gradient(grad, factor) for name, grad in grads.items()}

    @property
    def _stages(self) -> Mapping[int, Stage]:
        return self.pipeline.stages

    # -------------------------------------------------------------------------------- everything around it
    def losses(self, pending: list[Array]) -> list[float]:
        """Copy losses that `step` returned to the host; waits for the device once."""
        return [float(value) for value in jax.device_get(pending)]

    def evaluate(self, batches: Iterable[Batch], generate: Callable[..., Batch] | None = None) -> Iterator[Batch]:
        """Yield the model's outputs in evaluation mode for each batch, as NumPy arrays.

        Every device gets the whole model and evaluates its share of the samples.

        Args:
            batches: with all samples.
            generate: `suite.contract.Generates.generate`; its result is added to the outputs.

        Raises:
            RanksDiffer: replicas of a stage hold different weights.
        """
        self.compare()
        process, processes = jax.process_index(), jax.process_count()
        with self._mode():
            arrays, kinds = self._whole(), list_kinds(self.task)
            params = {name: value for name, value in arrays.items() if kinds[name] == "parameter"}
            buffers = {name: value for name, value in arrays.items() if name not in params}
        for batch in batches:
            part = {name: np.array_split(value, processes)[process] for name, value in batch.items()}
            with self._mode():
                outputs = self._evaluation(params, buffers, {}, part, generate)
            yield outputs

    def _predict(self, params: Tree, buffers: Tree, carry: Tree, batch: Tree, key: Array) -> Tree:
        return self.model.apply(params, buffers, carry, batch, train=False, key=key, tap=keep_output)[0]

    def compare(self) -> None:
        """Check that all replicas of each stage hold the same weights.

        Raises:
            RanksDiffer: naming the ranks that do not.
        """
        digests = {
            rank: engine.compute_digest(np.asarray(value) for value in self._held(stage).values())
            for rank, stage in self._stages.items()
        }
        gathered = self.ranks.gather(digests)
        compare_replicas(self.grid, {rank: value for part in gathered for rank, value in part.items()})

    def synchronize(self) -> None:
        """Wait until the devices are done."""
        jax.block_until_ready(
            (self.pipeline.parameters, self.pipeline.buffers, [update.state for update in self.updates.values()])
        )

    def weights(self) -> dict[str, np.ndarray]:
        """Return the whole model's parameters, buffers and patterns by name. All processes call it."""
        with self._mode():
            whole = self._whole()
        return {name: np.asarray(whole[name]) for name in self.task.shapes()}

    def _whole(self) -> Tree:
        """Return what `weights` does, on the devices. Patterns are those of the start."""
        whole = self.pipeline.whole()
        names = [name for name in list_kinds(self.task) if name not in whole]
        return whole | cast_batch({name: self.task.init(self.seed, name) for name in names})

    def snapshot(self, *, replicated: bool = True) -> Snapshot:
        """Return the stages of this process's ranks and their optimizers' state. All processes call it.

        Args:
            replicated: has no effect, because every array belongs to a stage.

        Returns:
            Arrays by name, and a JSON skeleton with one tree for each rank.

        Raises:
            RanksDiffer: replicas of a stage hold different weights.
        """
        self.compare()
        arrays: dict[str, np.ndarray] = {}
        trees: dict[int, Any] = {}
        owner: dict[str, int] = {}
        for rank in self.local_ranks:
            part: dict[str, np.ndarray] = {}
            trees[rank] = tree.pack_tree(self._state(rank), part, f"run.{rank}", _host)
            arrays |= part
            owner |= dict.fromkeys(part, rank)
        gathered = {rank: packed for part in self.ranks.gather(trees) for rank, packed in part.items()}
        whole = [gathered[rank] for rank in range(len(self.devices))]
        return arrays, {"tree": whole, "own": dict.fromkeys(arrays, STAGES), "rank": owner}

    def _state(self, rank: int) -> Tree:
        """Return what one rank has to save."""
        stage, number = self._stages[rank], self.grid.place(rank).stage
        update = self.updates.get(number)
        return {
            "model": self._held(stage),
            "optimizer": update and update.state,
            "residuals": self.pipeline.replicas[number].held(stage.device),
            "plan": asdict(self.pipeline.plan),
        }

    def _held(self, stage: Stage) -> Tree:
        """Return the parameters and buffers that a stage owns, by name."""
        return {name: stage.parameters[name] for name in stage.own} | stage.buffers

    def restore(self, arrays: dict[str, np.ndarray], skeleton: Skeleton) -> None:
        """Restore a snapshot of this process's ranks. All processes call it, and use the snapshot's plan.

        Another plan may be the fastest now, because the times of operations vary.
        """
        with self._mode():
            states = {
                rank: tree.unpack_tree(skeleton["tree"][rank], arrays, functools.partial(jax.device_put, device=device))
                for rank, device in enumerate(self.devices)
                if rank in self.local_ranks
            }
            cut = Cut.from_dict(next(iter(states.values()))["plan"])
            if cut != self.pipeline.plan:
                options: Tree = {"channels": self.channels, "activations": self.activations}
                options |= {"ledger": self.ledger, "seed": self.seed}
                self._use(Pipeline(self.pipeline.traced, cut, self._initial(), self.devices, **options))
            self._restore_stages(states)

    def _restore_stages(self, states: Mapping[int, Tree]) -> None:
        for number, replicas in enumerate(self.pipeline.replicas):
            ranks = [rank for rank in self.grid.group(number) if rank in states]
            if not ranks:
                continue
            first = states[ranks[0]]
            buffers = {name: value for name, value in first["model"].items() if name in self.pipeline.buffers}
            self.pipeline.buffers = buffers
            self.pipeline.parameters = {n: value for n, value in first["model"].items() if n not in buffers}
            if number in self.updates:
                self.updates[number].state = first["optimizer"]
            replicas.restore({self.devices[rank]: states[rank]["residuals"] for rank in ranks})

    def facts(self) -> dict[str, Any]:
        """Return the entries of the result that describe the engine: device, sizes, memory, bytes and compile time."""
        return measure_device(self.devices[self.local_ranks[0]]) | {
            "parameters": engine.count_parameters(self.task),
            "flops": engine.count_flops(self.task),
            "explored": None,
            "optimizer": None,
            "compile_seconds": self.compile_seconds,
            "compile_cache": self.cache.answer,
            "predicted_step_seconds": self.measured and self.measured.seconds,
            "bytes": self.ledger.facts(),
        }

    def _mode(self) -> Mode:
        return Mode(self.precision)


def _host(value: Any) -> np.ndarray | None:
    return np.asarray(value) if isinstance(value, Array) else None
