"""Engine of a partitioned model in torch: one process for each device, which holds one stage."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from suite import engine
from suite.comm import setup
from suite.comm.partition.plan import Plan as Cut
from suite.comm.partition.torch import Pipeline, partition
from suite.comm.transport import make_entry
from suite.comm.transport.torch import Arriving, Transport
from suite.contract import Group, Plan, Skeleton, Snapshot, Task, TorchOptimizer
from suite.engine import tree
from suite.engine.pipeline import STAGES, choose_network, compare_replicas, describe_device, partition_of
from suite.engine.ranks.torch import Ranks
from suite.engine.torch_copies import Copies
from suite.engine.torch_device import describe_model, device_for, measure_device, set_switches
from suite.optimizers._base.torch import widen_floats
from suite.settings.run import Run

RESIDUALS = "run.residuals."  # prefix of their names in a snapshot
Tree = dict[str, Tensor]
Batch = dict[str, np.ndarray]


class Trained(nn.Module):
    """A task's model with its loss: (batch, seed, step) to the summed loss and the summed weight of the samples."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model: Any = model

    def forward(self, batch: Tree, seed: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Both results are scalars."""
        outputs, _ = self.model(batch, {}, (seed, step))
        return self.model.loss({name: widen_floats(value) for name, value in outputs.items()}, batch)


class Engine:
    """One stage of a model, its optimizer and its exchange with other stages: `suite.contract.Engine`.

    Every rank makes the whole batch and uses what its stage needs. With a power of two as number of micro-batches, one
    pipeline's losses and weights have the bits of a run on one device with `accumulate=` micro-batches.

    Args:
        task: data and model description.
        run: the run.
    """

    share = (0, 1)  # every rank makes the whole batch

    def __init__(self, task: Task, run: Run):
        self.task, self.seed, self.clip_norm = task, run.seed, run.clip_norm
        self._mode = functools.partial(set_switches, run.precision, run.deterministic)
        self.device = device_for(run.device)
        self.copies = Copies(self.device)
        self.dtype = torch.float64 if run.precision == "float64" else torch.float32
        self.model: Any = describe_model(run.task, task)
        initial = {name: torch.from_numpy(task.init(self.seed, name)) for name in task.shapes()}
        self.model.load_state_dict(initial, assign=True)
        self.model.to(self.device, self.dtype)
        node, deadline = partition_of(run), run.launch.deadline
        inputs = self._inputs(task.batch("train", self.seed, 0, 0, 1), 0)
        modes = setup.make_modes(run.comm, task, run.world, "torch")
        self.kinds = setup.find_kinds(task)
        kinds = {f"model.{name}": kind for name, kind in self.kinds.items()}  # as `Trained` names parameters
        self.modes = {name: replace(channels, kind_of=kinds) for name, channels in modes.items()}
        coded = node.activations and setup.make_codec(node.activations, "torch")
        self.options = {"channels": next(iter(self.modes.values())), "activations": coded}
        self.options |= {"seed": self.seed, "deadline": deadline, "average_buffers": True}
        with self._mode():
            self.pipeline = partition(
                Trained(self.model).train(),
                inputs,
                micro_batches=node.micro_batches,
                stages=node.stages,
                schedule=node.schedule,
                memory=node.memory_gib * 2**30,
                device=self.device,
                network=choose_network(run),
                speeds=describe_device(node),
                check=node.check,
                **self.options,
            )
        self.ledger, self.deadline, self.node = self.pipeline.ledger, deadline, run.optimizer
        self.transport = Transport(self.ledger, None, deadline)
        self.sums = self.transport.among([list(range(self.transport.world))])  # its messages come between the stages'
        self.rank, self.world = self.transport.rank, self.transport.world
        self.takes_bytes = False  # its stages are traced from images that are normalised on the host
        self.local_ranks, self.ranks = (self.rank,), Ranks(self.world, self.device)
        self.plan = Plan()
        self._use(self.pipeline)

    def _use(self, pipeline: Pipeline) -> None:
        """Train this rank's stage of a pipeline, with a new optimizer."""
        self.pipeline, self.grid = pipeline, pipeline.grid
        self.measured: Cut | None = None  # the plan with the times of whole stages
        self.own = {name.removeprefix("model."): value for name, value in pipeline.named_parameters()}
        buffers = {name.removeprefix("model."): value for name, value in pipeline.named_buffers()}
        self.held = self.own | buffers
        self.owners = self._owners()
        self.optimizer = self._optimizer(self.task)

    def _owners(self) -> dict[str, int]:
        """Return the first rank that holds each parameter and each changing buffer, by name."""
        owners: dict[str, int] = {}
        for rank, names in enumerate(self.ranks.gather(list(self.held))):
            for name in names:
                owners.setdefault(name, rank)
        return owners

    def _optimizer(self, task: Task) -> TorchOptimizer | None:
        """Make the optimizer of this stage's parameters; None if it has none, as a stage of activations only."""
        if not self.own:
            return None
        layers = task.layers().items()
        offers = {
            "layers": {name: layer for name, layer in layers if all(part in self.own for part in layer.parameters)},
            "shapes": {name: tuple(parameter.shape) for name, parameter in self.own.items()},
        }
        needed = {name: value for name, value in offers.items() if name in self.node.needs}
        return self.node.build("torch", self.own.items(), **needed)

    # --------------------------------------------------------------------------------------- communication
    @property
    def groups(self) -> list[Group]:
        """Ranks of each stage, which average the gradients of its parameters."""
        stages = {name: self.grid.place(owner).stage for name, owner in self.owners.items() if name in self.kinds}
        return [
            Group(tuple(name for name, one in stages.items() if one == stage), tuple(self.grid.group(stage)))
            for stage in range(len(self.grid.replicas))
        ]

    def use(self, mode: str | Mapping[str, str]) -> None:
        """Average gradients over the replicas of a stage in this communication mode from now on."""
        self.options["channels"] = channels = setup.mix_modes(self.modes, mode)
        self.pipeline.replicas.use(channels)

    def exchange(self, kind: str) -> None:
        """Average arrays of the size of this stage's gradients of one kind of layer, and discard the result."""
        self.pipeline.replicas.exchange(self._names(kind))
        self.synchronize()

    def code(self, kind: str) -> None:
        """Encode and decode arrays of the size of this stage's gradients of one kind of layer; nothing is sent."""
        self.pipeline.replicas.code(self._names(kind))
        self.synchronize()

    def _names(self, kind: str) -> list[str]:
        """This stage's parameters of one kind of layer, as the pipeline names them."""
        return [f"model.{name}" for name in self.own if self.kinds[name] == kind]

    # ------------------------------------------------------------------------------------------- one update
    def pin_batch(self, batch: Batch) -> Batch:
        """Return a batch in memory from which the device copies while the host goes on."""
        return self.copies.pin_batch(batch)

    def _inputs(self, batch: Batch, step: int) -> tuple[Tree, Tensor, Tensor]:
        """Return the inputs of `Trained`."""
        return self._tensors(batch), torch.tensor(self.seed), torch.tensor(step)

    def _tensors(self, batch: Batch) -> Tree:
        tensors = self.copies.copy_batch(batch)
        return {name: value.to(self.dtype) if value.is_floating_point() else value for name, value in tensors.items()}

    def warm(self, batch: Batch, steps: range, hyper: Mapping[str, float]) -> None:
        """Run forward and backward twice and discard the results: for first calls, and to predict a step."""
        with self._mode():
            self.measured = self.pipeline.calibrate(self._inputs(batch, steps.start), steps=1)

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Do nothing: no optimizer of a pipeline has statistics to initialise."""

    def step(self, step: int, batch: Batch, hyper: Mapping[str, float]) -> Tensor:
        """Make update number `step` (from 0) and return its mean loss."""
        for group in self.optimizer.param_groups if self.optimizer else ():
            engine.check_editable(hyper, group.keys() - {"params", "param_names"}, self.node)
            group.update(hyper)
        sums: list[Arriving] = []

        def last() -> contextlib.AbstractContextManager[None]:
            sums.append(self._sums())
            return self.pipeline.replicas.last_pass()

        with self._mode():
            self.pipeline.steps = step
            self.pipeline.begin()
            self.pipeline.run(self._inputs(batch, step), last=last)
            total, weight = sums[0].wait().sum(0)
            self.pipeline.average(weight)
            self._clip()
            if self.optimizer:
                self.optimizer.step()
        return total / weight

    def _sums(self) -> Arriving:
        """Begin to gather each rank's summed loss and summed weight of samples; other stages have zeros."""
        sums = torch.zeros(2, dtype=self.dtype, device=self.device)
        for _, values in sorted(self.pipeline.stage.outputs.items()):
            sums += torch.stack(values)
        return self.sums.all_gather("losses", sums[None])

    def _clip(self) -> None:
        """Scale the gradient to the norm `clip_norm` if its norm is larger (Pascanu et al. 2013, algorithm 1)."""
        if not self.clip_norm:
            return
        grads = [parameter.grad for parameter in self.own.values() if parameter.grad is not None]
        square = torch.zeros((), dtype=self.dtype, device=self.device)
        for grad in grads:
            square += grad.square().sum()
        square /= len(self.grid.group(self.pipeline.place.stage))  # its ranks have equal gradients
        factor = (self.clip_norm / self.transport.all_reduce("norm", square).sqrt()).clamp(max=1.0)
        for grad in grads:
            grad *= factor

    # -------------------------------------------------------------------------------- everything around it
    def losses(self, pending: list[Tensor]) -> list[float]:
        """Copy losses that `step` returned to the host; waits for the device once."""
        return torch.stack(pending).tolist() if pending else []

    @torch.no_grad()
    def _gather(self) -> None:
        """Copy every stage's parameters and buffers into `model`, on every rank."""
        named = self.model.state_dict()
        for owner in sorted(set(self.owners.values())):
            parts = [named[name] for name, rank in self.owners.items() if rank == owner]
            values = torch.cat([part.reshape(-1) for part in parts])
            if owner == self.rank:
                dtype = str(values.dtype).removeprefix("torch.")
                self.ledger.add([make_entry("broadcast", "weights", dtype, values.nbytes, self.world)])
            dist.broadcast(values, owner)
            for part, value in zip(parts, values.split([part.numel() for part in parts]), strict=True):
                part.copy_(value.view_as(part))

    def evaluate(self, batches: Iterable[Batch], generate: Callable[..., Batch] | None = None) -> Iterator[Batch]:
        """Yield the model's outputs in evaluation mode for each batch, as NumPy arrays.

        Every rank gets the whole model and evaluates its share of the samples.

        Args:
            batches: with all samples.
            generate: `suite.contract.Generates.generate`; its result is added to the outputs.

        Raises:
            RanksDiffer: replicas of a stage hold different weights, or have not received what others sent.
        """
        self.compare()
        self._gather()
        self.model.eval()
        for batch in batches:
            part = {name: np.array_split(value, self.world)[self.rank] for name, value in batch.items()}
            with self._mode(), torch.no_grad():
                outputs, _ = self.model(self._tensors(part))
                if generate:
                    written = generate(part, self._start, self._advance)
                    outputs |= {name: torch.from_numpy(value).to(self.device) for name, value in written.items()}
            gathered = {name: self.transport.all_gather("evaluation", value) for name, value in outputs.items()}
            yield {name: widen_floats(value.wait()).cpu().numpy() for name, value in gathered.items()}
        self.model.train()

    def _start(self, batch: Batch) -> Any:
        return self.model.encode(self._tensors(batch))

    def _advance(self, state: Any, rows: np.ndarray, token: np.ndarray, position: int) -> tuple[np.ndarray, Any]:
        place, word = torch.from_numpy(rows).to(self.device), torch.from_numpy(token).to(self.device)
        scores, state = self.model.decode_step(state, place, word, position)
        return widen_floats(scores).cpu().numpy(), state

    def compare(self) -> None:
        """Check that all replicas of each stage hold the same weights, and have received what others sent.

        Raises:
            RanksDiffer: naming the ranks that do not.
        """
        held = engine.compute_digest(_numpy(value) for value in self.held.values())
        checksums = self.pipeline.replicas.transport.checksums
        digests, exchanged = zip(*self.ranks.gather((held, checksums.numbers())), strict=True)
        engine.compare_exchanges(*np.array(exchanged).transpose(1, 0, 2))
        compare_replicas(self.grid, dict(enumerate(digests)))

    def synchronize(self) -> None:
        """Wait until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def weights(self) -> dict[str, np.ndarray]:
        """Return the whole model's parameters and buffers by name. All ranks call it."""
        self._gather()
        return {name: _numpy(value) for name, value in self.model.state_dict().items()}

    def snapshot(self, *, replicated: bool = True) -> Snapshot:
        """Return this rank's stage and its optimizer's state. All ranks call it.

        Args:
            replicated: has no effect, because every array belongs to a stage.

        Returns:
            Arrays by name, and a JSON skeleton with one tree for each rank.

        Raises:
            RanksDiffer: replicas of a stage hold different weights.
        """
        self.compare()
        arrays: Tree = {}
        state = {"model": self.held, "optimizer": self.optimizer and self.optimizer.state_dict()}
        state["plan"] = asdict(self.pipeline.plan)
        packed = tree.pack_tree(state, arrays, "run", lambda value: value if isinstance(value, Tensor) else None)
        residuals = {RESIDUALS + name: value for name, value in self.pipeline.replicas.residuals.items()}
        own = dict.fromkeys(arrays, STAGES) | dict.fromkeys(residuals, engine.RESIDUALS)
        return {n: _numpy(value) for n, value in (arrays | residuals).items()}, {
            "tree": self.ranks.gather(packed),
            "own": own,
        }

    @torch.no_grad()
    def restore(self, arrays: dict[str, np.ndarray], skeleton: Skeleton) -> None:
        """Restore a snapshot of this rank. All ranks call it, and use the snapshot's plan.

        Another plan may be the fastest now, because the times of operations vary.
        """

        def device(value: np.ndarray) -> Tensor:
            return torch.from_numpy(value.copy()).to(self.device)

        state = tree.unpack_tree(skeleton["tree"][self.rank], arrays, device)
        plan = Cut.from_dict(state["plan"])
        if plan != self.pipeline.plan:
            traced = self.pipeline.traced
            self._use(Pipeline(traced, plan, self.device, ledger=self.ledger, **self.options))
        for name, value in state["model"].items():
            self.held[name].copy_(value)
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
        residuals = [name for name in arrays if name.startswith(RESIDUALS)]
        self.pipeline.replicas.residuals = {name.removeprefix(RESIDUALS): device(arrays[name]) for name in residuals}

    def facts(self) -> dict[str, Any]:
        """Return the entries of the result that describe the engine: device, sizes, memory and bytes."""
        return measure_device(self.device) | {
            "parameters": engine.count_parameters(self.task),
            "flops": engine.count_flops(self.task),
            "explored": None,
            "optimizer": None,
            "compile_seconds": 0.0,
            "compile_cache": None,
            "predicted_step_seconds": self.measured and self.measured.seconds,
            "bytes": self.ledger.facts(),
        }


def _numpy(value: Tensor) -> np.ndarray:
    return value.detach().cpu().contiguous().numpy()
