"""Engine in torch: one process for each device. `suite.comm` averages gradients, not DistributedDataParallel."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from suite import engine, load
from suite.comm import setup
from suite.comm.codecs._codec import Codec
from suite.comm.reduce.torch import Reduce
from suite.comm.transport import Ledger
from suite.comm.transport.torch import Transport
from suite.contract import OFFERED, Group, Plan, SendsBytes, Skeleton, Snapshot, Sparse, Task
from suite.engine import torch_snapshot
from suite.engine.probing import varies_rate
from suite.engine.ranks.torch import Ranks
from suite.engine.torch_copies import Copies
from suite.engine.torch_device import (
    describe_model,
    device_for,
    leave_compiler_unloaded,
    measure_device,
    require_compiler,
    set_switches,
    store_channels_last,
)
from suite.engine.torch_outside import set_hyper
from suite.engine.torch_probe import Probe
from suite.engine.torch_step import Maths, Share, Watch, compile_model
from suite.engine.torch_sums import reject_narrow_sums
from suite.engine.torch_taps import Observer, whole_gradients
from suite.optimizers._base.torch import widen_floats
from suite.settings.run import Run

Tree = dict[str, Tensor]
Batch = dict[str, np.ndarray]


class Engine:
    """A model, its optimizer and their communication on this process's device.

    Args:
        task: data and model description.
        run: the run.
    """

    def __init__(self, task: Task, run: Run):
        self.task, self.seed = task, run.seed
        self.accumulate, self.precision = run.accumulate, run.precision
        self._mode = functools.partial(set_switches, self.precision, run.deterministic, run.compile)
        self.device = device_for(run.device)
        self.copies, self.takes_bytes = Copies(self.device), self.device.type != "cpu"
        moments = task.moments if isinstance(task, SendsBytes) else None
        self.moments = moments and tuple(torch.from_numpy(value).to(self.device) for value in moments)
        self.dtype = torch.float64 if self.precision == "float64" else torch.float32
        self.channels_last = engine.has_channels_last(run, task, self.device.type)
        self.ledger = Ledger()
        self.compiles, self.compile_seconds = run.compile, 0.0
        if self.compiles:
            require_compiler(self.device)
        else:
            leave_compiler_unloaded()
        self.modes = setup.make_modes(run.comm, task, run.world, "torch", self.compiles)
        node = run.optimizer
        first = next(iter(self.modes))
        deadline = run.launch.deadline
        transport = Transport(self.ledger, self.modes[first].locals, deadline)
        self.world, self.share = transport.world, (transport.rank, transport.world)
        self.local_ranks = (transport.rank,)
        self.reduce, self.ranks = Reduce(transport, self.modes[first]), Ranks(self.world, self.device)
        self.model = describe_model(run.task, task)
        self.node, self.needs = node, node.needs
        self.tables = engine.list_tables(task, self.needs, node)
        self.sparse = engine.find_sparse(task, self.needs, node)
        self._load(task)
        self.named = dict(self.model.named_parameters())
        self.kinds = {n: kind for n, kind in setup.find_kinds(task).items() if n not in self.tables}
        self.schedules: dict[str, Any] = {}
        self.use(first)
        buffers, specs = dict(self.model.named_buffers()), task.shapes()
        self.buffers = {name: value for name, value in buffers.items() if specs[name].kind == "buffer"}
        self.patterns = {name: value for name, value in buffers.items() if name not in self.buffers}
        self.layers = task.layers()
        self.maths = Maths(
            model=self.model,
            forward=compile_model(self.model) if self.compiles else self.model,
            named=self.named,
            buffers=self.buffers,
            tables=self.tables,
            reduce=self.reduce,
            clip_norm=run.clip_norm,
            narrow=self.precision == "bfloat16",
            device=self.device,
        )
        offers = {
            "layers": self.layers,
            "tables": engine.list_embeddings(task),
            "shapes": {name: tuple(parameter.shape) for name, parameter in self.named.items()},
            "world": self.world,
            "samples": task.data.samples["train"],
        }
        needed = {name: value for name, value in offers.items() if name in self.needs}
        make = functools.partial(node.build, "torch")
        self.probe = Probe(node.name, make, self.model, varies=varies_rate(run)) if "outside" in self.needs else None
        self.outside = self.probe.make(self.model) if self.probe else None
        self.optimizer: Any = self.outside or make(self.named.items(), **needed)  # a `TorchOptimizer`, by its NEEDS
        load.check_names(self.optimizer, *(name for name in OFFERED if name in self.needs))
        self.plan = self.optimizer.plan if "program" in self.needs or "observe" in self.needs else Plan()
        self.carry = self._carry(task.carry(task.batch_size // self.world))

    def _load(self, task: Task) -> None:
        """Set the model's initial values; for a table placed by rows, this rank's rows."""
        initial = {n: task.init(self.seed, n) for n in task.shapes() if n not in self.tables}
        for name in self.tables:
            initial[name] = engine.make_share(task, self.seed, name, *self.share)
            module, _, leaf = name.rpartition(".")
            shape = initial[name].shape
            empty = torch.nn.Parameter(torch.empty(shape, device="meta"))
            self.model.get_submodule(module).register_parameter(leaf, empty)
        self.model.load_state_dict({name: torch.from_numpy(value) for name, value in initial.items()}, assign=True)
        self.model.to(self.device, self.dtype)

    # --------------------------------------------------------------------------------------- communication
    @property
    def groups(self) -> list[Group]:
        """All ranks average all gradients."""
        return [Group(tuple(self.kinds), tuple(range(self.world)))]

    def use(self, mode: str | Mapping[str, str]) -> None:
        """Send gradients in this communication mode from now on."""
        self.reduce.channels, name = setup.mix_modes(self.modes, mode), str(mode)
        if name not in self.schedules:
            replicated = {name: value for name, value in self.named.items() if name in self.kinds}
            self.schedules[name] = self.reduce.channels.schedule.make(self.reduce, replicated)
        self.schedule = self.schedules[name]

    @torch.no_grad()
    def exchange(self, kind: str) -> None:
        """Average arrays of the size of all gradients of one kind of layer (the weights), and discard the result."""
        values = {name: self.named[name].detach() for name in self.kinds if self.kinds[name] == kind}
        self.reduce.mean("gradients", values, gradients=True)
        self.synchronize()

    @torch.no_grad()
    def code(self, kind: str) -> None:
        """Encode and decode arrays of the size of all gradients of one kind of layer (the weights); nothing is sent."""
        values = {name: self.named[name].detach() for name in self.kinds if self.kinds[name] == kind}
        self.reduce.code(values)
        self.synchronize()

    def pin_batch(self, batch: Batch) -> Batch:
        """Return a batch in memory from which the device copies while the host goes on."""
        return self.copies.pin_batch(batch)

    # ------------------------------------------------------------------------------------------- one update
    def warm(self, batch: Batch, steps: range, hyper: Mapping[str, float]) -> None:
        """Run forward, backward and codecs once and discard the results, so that no step pays for first calls.

        Raises:
            UserError: an optimizer of another package would not train as its package says.
        """
        began, tried = time.perf_counter(), 0.0
        observing = {False, "statistics" in self.plan.phase(0)}  # with statistics, the model runs uncompiled
        with self._mode(), reject_narrow_sums(self.device, narrow=self.maths.narrow and not self.compiles):
            for observe in sorted(observing) if self.compiles else [max(observing)]:
                self._evaluate(self._micro(batch), (self.seed, 0), observe=self._curvature if observe else None)
        if self.compiles and self.world > 1:
            values = torch.ones(2**16 + 1, device=self.device, dtype=self.dtype)  # not a multiple of a block length
            for codec in set[Codec]().union(*(channels.codecs for channels in self.modes.values())):
                codec.decode(codec.encode(values, lambda count: values[:count]), values)
        if self.probe:
            with self._mode():
                tried = self.probe.run(self.model)
        self.compile_seconds = time.perf_counter() - began if self.compiles else tried

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Initialise the optimizer's statistics with their mean over batches at the current weights."""
        labels = "sampled" if "sampled" in self.plan.phase(0) else "given"
        total: Tree = {}
        count = 0
        with self._mode():
            for key, batch in engine.key_batches(self.seed, batches):
                share = self._evaluate(self._micro(batch), key, labels=labels, observe=self._curvature)
                total = {n: total[n] + v if total else v for n, v in share.statistics.items()}
                count += 1
            with torch.no_grad():
                self.optimizer.prepare({name: value / count for name, value in total.items()}, reduce=self.reduce)

    def step(self, step: int, batch: Batch, hyper: Mapping[str, float]) -> Tensor:
        """Make update number `step` (from 0) and return its mean loss, which may not be computed yet."""
        optimizer, reduce, needs = self.optimizer, self.reduce, self.needs
        for group in optimizer.param_groups:
            engine.check_editable(hyper, group.keys() - {"params", "param_names"}, self.node)
            set_hyper(group, hyper)
        if "host" in needs:
            optimizer.host(step)
        phase, parcels, key = self.plan.phase(step), self.plan.parcels(step), (self.seed, step)
        reduce.key = key
        micro = self._micro(batch)

        def evaluate(labels: str = "given", observe: Any = None, per_term: bool = False) -> tuple[Tensor, Tree, Tree]:
            observer = (self.layers, observe) if observe else self._curvature if "observe" in needs else None
            again = self._evaluate(micro, key, labels=labels, observe=observer, per_term=per_term)
            return again.loss, again.grads, again.statistics

        with self._mode():
            self.schedule.begin()
            with optimizer.forward_params(key) if "forward_params" in needs else contextlib.nullcontext():
                observer = self._curvature if "statistics" in phase else None
                watch = functools.partial(self.schedule.watch, parcels=parcels if observer else {})
                share = self._evaluate(micro, key, observe=observer, watch=watch, known=True)
            grads = self.schedule.mean(share.sums, share.weight) | self.maths.table_gradients(share.tables)
            for name, grad in self.maths.clipped(grads).items():
                self.named[name].grad = grad
            with torch.no_grad():
                if "collect" in needs:
                    optimizer.collect()
                if "statistics" in phase:
                    optimizer.absorb(share.statistics, reduce=reduce)
                if "sampled" in phase:
                    watch = functools.partial(self.schedule.watch, parcels=parcels, gradients=False)
                    again = self._evaluate(micro, key, labels="sampled", observe=self._curvature, watch=watch)
                    optimizer.absorb(again.statistics, reduce=reduce)
                for name in self.plan.programs(step):
                    optimizer.program(name, reduce=reduce)
            words = engine.select_update_words(phase)
            offers = {"evaluate": evaluate, "reduce": reduce, "phase": words, "key": key}
            optimizer.step(**{name: value for name, value in offers.items() if name in needs})
            for name, value in share.buffers.items():
                self.buffers[name].copy_(value)
            if self.sparse and self.sparse.moves(step):
                self._move(self.sparse, micro, key)
            self.carry = share.carry
            return share.loss

    @torch.no_grad()
    def _move(self, task: Sparse, micro: list[Tree], key: tuple[int, int]) -> None:
        """Move blocks of sparse matrices; moved blocks restart from zero."""
        matrices, gradients = task.matrices(), {}
        if task.by_gradient:
            share = self._evaluate(micro, key, observe=(matrices, whole_gradients))
            gradients = {name: _numpy(value) for name, value in self.reduce.exact(share.statistics).items()}
        weights = {name: _numpy(self.named[f"{name}.weight"]) for name in matrices}
        patterns = {name: _numpy(value) for name, value in self.patterns.items()}
        new_patterns, moved = engine.move_blocks(task, key, weights, patterns, gradients)
        for name, value in new_patterns.items():
            self.patterns[name].copy_(torch.from_numpy(value))
        masks = {self.named[name]: torch.from_numpy(mask).to(self.device) for name, mask in moved.items()}
        for parameter, mask in masks.items():
            parameter[mask] = 0
        self.optimizer.reset(masks)

    def _micro(self, batch: Batch) -> list[Tree]:
        """Return the batch on the device, split into `accumulate` micro-batches."""
        values = self._tensors(batch)
        parts = {name: value.chunk(self.accumulate) for name, value in values.items()}
        return [{name: part[i] for name, part in parts.items()} for i in range(self.accumulate)]

    def _tensors(self, batch: Batch) -> Tree:
        """Return the batch on the device; images in bytes are normalised there."""
        values = {name: self._convert(value) for name, value in self.copies.copy_batch(batch).items()}
        if self.moments and "image" in values and values["image"].dtype == torch.uint8:
            mean, deviation = self.moments
            values["image"] = ((values["image"] - mean) / deviation).to(self.dtype)
        return values

    def _convert(self, tensor: Tensor) -> Tensor:
        """Return an array of a batch in the type and the order that the model takes."""
        tensor = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
        return store_channels_last(tensor) if self.channels_last else tensor

    def _carry(self, values: Batch) -> list[Tree]:
        return self._micro(values) if values else [{} for _ in range(self.accumulate)]

    @property
    def _curvature(self) -> Observer:
        return self.layers, self.optimizer.observe

    def _evaluate(
        self,
        micro: list[Tree],
        key: tuple[int, int],
        *,
        labels: str = "given",
        observe: Observer | None,
        watch: Watch | None = None,
        known: bool = False,
        per_term: bool = False,
    ) -> Share:
        """`Maths.evaluate` at this engine's current state."""
        options = {"labels": labels, "observe": observe, "watch": watch, "known": known, "per_term": per_term}
        return self.maths.evaluate(micro, self.carry, key, observed=self.schedule.observed, **options)

    # -------------------------------------------------------------------------------- everything around it
    def losses(self, pending: list[Tensor]) -> list[float]:
        """Copy losses that `step` returned to the host; waits for the device once."""
        return torch.stack(pending).tolist() if pending else []

    def evaluate(self, batches: Iterable[Batch], generate: Callable[..., Batch] | None = None) -> Iterator[Batch]:
        """Yield the model's outputs in evaluation mode for each batch, gathered over all ranks, as NumPy arrays.

        With `precision=bfloat16`, too, the model evaluates in float32.

        Args:
            batches: this rank's share of each.
            generate: `suite.contract.Generates.generate`; its result is added to the outputs.

        Raises:
            RanksDiffer: the ranks hold different weights.
        """
        self.compare()
        with self._evaluated():
            yield from self._outputs(batches, generate)

    def _evaluated(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the parameters are those to evaluate."""
        return self.outside.evaluated_params() if self.outside else contextlib.nullcontext()

    def _outputs(self, batches: Iterable[Batch], generate: Callable[..., Batch] | None) -> Iterator[Batch]:
        self.model.eval()
        for batch in batches:
            with self._mode(), torch.no_grad():
                inputs = self.maths.fetched(self._tensors(batch))[0]
                outputs, _ = self.model(inputs)
                if generate:
                    written = generate(batch, self._start, self._advance)
                    outputs |= {name: torch.from_numpy(value).to(self.device) for name, value in written.items()}
            if self.world > 1:
                transport = self.reduce.transport
                outputs = {name: transport.all_gather("evaluation", value).wait() for name, value in outputs.items()}
            yield {name: widen_floats(value).cpu().numpy() for name, value in outputs.items()}

    def _start(self, batch: Batch) -> Any:
        return self.model.encode(self._tensors(batch))

    def _advance(self, state: Any, rows: np.ndarray, token: np.ndarray, position: int) -> tuple[np.ndarray, Any]:
        sent = self._tensors({"rows": rows, "token": token})
        scores, state = self.model.decode_step(state, sent["rows"], sent["token"], position)
        return widen_floats(scores).cpu().numpy(), state

    def compare(self) -> None:
        """Check that all ranks hold the same weights and have received what others sent.

        Raises:
            RanksDiffer: naming the ranks that do not.
        """
        weights = (_numpy(v) for name, v in self.model.state_dict().items() if name not in self.tables)
        self.ranks.compare(weights, self.reduce.transport.checksums)

    def synchronize(self) -> None:
        """Wait until the device and the optimizer's work on the host are done."""
        if "host" in self.needs:
            self.optimizer.drain()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def weights(self) -> dict[str, np.ndarray | Iterator[np.ndarray]]:
        """Return parameters, buffers and patterns by name; a table split by rows as an iterator over its shares.

        Rank 0 receives the shares, one at a time; on other ranks, the iterator sends and yields nothing.
        """
        state, tables = self.model.state_dict(), self.tables
        if self.outside:
            with self.outside.evaluated_params():
                return {name: _numpy(value).copy() for name, value in state.items()}
        return {name: self._shares(name, value) if name in tables else _numpy(value) for name, value in state.items()}

    def _shares(self, name: str, own: Tensor) -> Iterator[np.ndarray]:
        rows = self.task.shapes()[name].shape[0]
        for source in range(self.world):
            share = self.reduce.transport.deliver("weights", own, source).wait()
            if self.share[0] == 0:
                yield _numpy(share)[: max(0, rows - source * len(own))]

    def snapshot(self, *, replicated: bool = True) -> Snapshot:
        """Return this rank's state, as views that are valid until the next step.

        All ranks call it. Only checksums of the weights are sent.

        Args:
            replicated: whether to include the arrays that are equal on all ranks; a checkpoint has these from rank 0.

        Returns:
            Arrays by name, and a JSON skeleton. `skeleton["own"]` maps the names of the arrays that differ between
            ranks to their kind in words.

        Raises:
            RanksDiffer: the ranks hold different weights.
        """
        self.compare()
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "carry": self.carry}
        return torch_snapshot.list_arrays(state, self.reduce.state, self.tables, self.named, replicated=replicated)

    def restore(self, arrays: dict[str, np.ndarray], skeleton: Skeleton) -> None:
        """Restore a snapshot of this rank; nothing is sent."""
        state, self.reduce.state = torch_snapshot.read_arrays(arrays, skeleton, self.named, self.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.carry = state["carry"]
        if self.channels_last:
            self.carry = [{name: store_channels_last(value) for name, value in part.items()} for part in self.carry]

    def facts(self) -> dict[str, Any]:
        """Return the entries of the result that describe the engine: device, sizes, memory, bytes and compile time."""
        return measure_device(self.device) | {
            "parameters": engine.count_parameters(self.task),
            "flops": engine.count_flops(self.task),
            "explored": engine.share_explored({name: _numpy(value) for name, value in self.patterns.items()}),
            "optimizer": self.optimizer.facts() if "facts" in self.needs else None,
            "compile_seconds": self.compile_seconds,
            "compile_cache": None,
            "channels_last": self.channels_last,
            "bytes": self.ledger.facts(),
        }


def _numpy(value: Tensor) -> np.ndarray:
    return value.detach().cpu().contiguous().numpy()
