"""The engine in torch: one process a device, gradients reduced by `suite.comm`, no DistributedDataParallel."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from suite import backend, communication, load, tree
from suite.backend.ranks.torch import Ranks
from suite.backend.torch_device import device_for, facts, require_compiler, switches
from suite.backend.torch_step import Maths, Share, Watch
from suite.backend.torch_taps import Observer, whole_gradients
from suite.comm.codecs._codec import Codec
from suite.comm.coder.torch import Coder
from suite.comm.reduce.torch import Reduce
from suite.comm.transport import Ledger
from suite.comm.transport.torch import Transport
from suite.contract import Plan, Sparse, Task

Tree = dict[str, Tensor]
Batch = dict[str, np.ndarray]


class Engine:
    """A model, its optimizer and their communication on this process's device.

    Args:
        task: data and model description.
        config: the whole run's configuration, resolved.
    """

    def __init__(self, task: Task, config: Mapping[str, Any]):
        self.task, self.seed = task, config["seed"]
        self.accumulate, self.precision = config["accumulate"], config["precision"]
        self._mode = functools.partial(switches, self.precision, config["deterministic"])
        self.device = device_for(config["device"])
        self.dtype = torch.float64 if self.precision == "float64" else torch.float32
        self.ledger = Ledger()
        self.compiles, self.compile_seconds = config["compile"], 0.0
        if self.compiles:
            require_compiler(self.device)
        self.modes = communication.modes(config["comm"], task, config["world"], "torch", self.compiles)
        node = config["optimizer"]
        first = next(iter(self.modes))
        deadline = config.get("launch", {}).get("deadline")
        transport = Transport(self.ledger, self.modes[first].locals, deadline)
        self.world, self.share = transport.world, (transport.rank, transport.world)
        self.reduce, self.ranks = Reduce(transport, self.modes[first]), Ranks(self.world, self.device)
        with torch.device("meta"):  # no memory and no random numbers are used up by torch's own initial values
            self.model = load.half(config["task"]["module"], "torch").make(task)
        self.node, self.needs = node, load.common(node["module"]).NEEDS
        self.tables = backend.tables(task, self.needs, node)
        self.sparse = backend.sparse(task, self.needs, node)
        self._load(task)
        self.named = dict(self.model.named_parameters())
        self.kinds = {n: kind for n, kind in communication.kind_of(task).items() if n not in self.tables}
        self.schedules: dict[str, Any] = {}
        self.use(first)
        held, kinds = dict(self.model.named_buffers()), task.shapes()
        self.buffers = {name: value for name, value in held.items() if kinds[name].kind == "buffer"}
        self.patterns = {name: value for name, value in held.items() if name not in self.buffers}
        self.layers = task.layers()
        self.maths = Maths(
            model=self.model,
            forward=torch.compile(self.model) if self.compiles else self.model,
            named=self.named,
            buffers=self.buffers,
            tables=self.tables,
            reduce=self.reduce,
            clip_norm=config["clip_norm"],
            narrow=self.precision == "bfloat16",
            device=self.device,
        )
        offers = {
            "layers": self.layers,
            "tables": backend.embeddings(task),
            "shapes": {name: tuple(parameter.shape) for name, parameter in self.named.items()},
            "world": self.world,
            "samples": task.data.samples["train"],
        }
        asked = {name: value for name, value in offers.items() if name in self.needs}
        make = load.half(node["module"], "torch").make
        self.optimizer = load.made(make, node, "optimizer", self.named.items(), **asked)
        self.plan = self.optimizer.plan if "program" in self.needs or "observe" in self.needs else Plan()
        self.carry = self._carry(task.carry(task.batch_size // self.world))

    def _load(self, task: Task) -> None:
        """Give the model its initial values; of a table, this rank's rows."""
        initial = {n: task.init(self.seed, n) for n in task.shapes() if n not in self.tables}
        for name in self.tables:
            initial[name] = backend.share(task, self.seed, name, *self.share)
            module, _, leaf = name.rpartition(".")
            shape = initial[name].shape
            empty = torch.nn.Parameter(torch.empty(shape, device="meta"))
            self.model.get_submodule(module).register_parameter(leaf, empty)
        self.model.load_state_dict({name: torch.from_numpy(value) for name, value in initial.items()}, assign=True)
        self.model.to(self.device, self.dtype)

    # --------------------------------------------------------------------------------------- communication
    def use(self, mode: str | Mapping[str, str]) -> None:
        """Let gradients travel in this mode from now on."""
        self.reduce.channels, name = communication.mixed(self.modes, mode), str(mode)
        if name not in self.schedules:
            replicated = {name: value for name, value in self.named.items() if name in self.kinds}
            self.schedules[name] = self.reduce.channels.schedule.make(self.reduce, replicated)
        self.schedule = self.schedules[name]

    @torch.no_grad()
    def exchange(self, kind: str) -> None:
        """Take the mean of something of the size of all gradients of one kind, here the weights, and drop it."""
        values = {name: self.named[name].detach() for name, its in self.kinds.items() if its == kind}
        self.reduce.mean("gradients", values)
        self.synchronize()

    @torch.no_grad()
    def code(self, kind: str) -> None:
        """Encode and decode something of the size of all gradients of one kind, here the weights; nothing is sent."""
        values = {name: self.named[name].detach() for name, its in self.kinds.items() if its == kind}
        for name, channel, members in self.reduce.buckets("gradients", values):
            row = torch.cat([values[member].reshape(-1) for member in members])[None]
            coder = Coder(f"trial/{name}", channel.codec, None, (self.seed, 0), 0)
            coder.decode(coder.encode("", row), row[0])
        self.synchronize()

    # ------------------------------------------------------------------------------------------- one update
    def warm(self, batch: Batch, steps: range, hyper: Mapping[str, float]) -> None:
        """Run forward, backward and codecs once and discard everything, so that no first call is billed to a step."""
        began = time.perf_counter()
        observing = {False, "statistics" in self.plan.phase(0)}  # with statistics the model is not the compiled one
        with self._mode():
            for observe in sorted(observing) if self.compiles else [max(observing)]:
                self._evaluate(self._micro(batch), (self.seed, 0), observe=self._curvature if observe else None)
        if self.compiles and self.world > 1:
            some = torch.ones(2**16 + 1, device=self.device, dtype=self.dtype)  # no special length
            for codec in set[Codec]().union(*(channels.codecs for channels in self.modes.values())):
                codec.decode(codec.encode(some, lambda count: some[:count]), some)
        self.compile_seconds = time.perf_counter() - began if self.compiles else 0.0

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Give the optimizer the mean statistics of some batches at the present weights, which stay as they are."""
        labels = "sampled" if "sampled" in self.plan.phase(0) else "given"
        total: Tree = {}
        count = 0
        with self._mode():
            for key, batch in backend.preparation(self.seed, batches):
                share = self._evaluate(self._micro(batch), key, labels=labels, observe=self._curvature)
                total = {n: total[n] + v if total else v for n, v in share.statistics.items()}
                count += 1
            with torch.no_grad():
                self.optimizer.prepare({name: value / count for name, value in total.items()}, reduce=self.reduce)

    def step(self, step: int, batch: Batch, hyper: Mapping[str, float]) -> Tensor:
        """Make update number `step` (from 0); the mean loss, perhaps not yet computed."""
        optimizer, reduce, needs = self.optimizer, self.reduce, self.needs
        for group in optimizer.param_groups:
            backend.editable(hyper, group.keys() - {"params", "param_names"}, self.node)
            group.update(hyper)
        if "host" in needs:
            optimizer.host(step)
        phase, parcels, key = self.plan.phase(step), self.plan.parcels(step), (self.seed, step)
        reduce.key = key
        micro = self._micro(batch)

        def evaluate(labels: str = "given", observe: Any = None) -> tuple[Tensor, Tree, Tree]:
            observer = (self.layers, observe) if observe else self._curvature if "observe" in needs else None
            again = self._evaluate(micro, key, labels=labels, observe=observer)
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
                if "statistics" in phase:
                    optimizer.absorb(share.statistics, reduce=reduce)
                if "sampled" in phase:
                    watch = functools.partial(self.schedule.watch, parcels=parcels, gradients=False)
                    again = self._evaluate(micro, key, labels="sampled", observe=self._curvature, watch=watch)
                    optimizer.absorb(again.statistics, reduce=reduce)
                for name in self.plan.programs(step):
                    optimizer.program(name, reduce=reduce)
            offers = {"evaluate": evaluate, "reduce": reduce, "phase": phase, "key": key}
            optimizer.step(**{name: value for name, value in offers.items() if name in needs})
            for name, value in share.buffers.items():
                self.buffers[name].copy_(value)
            if self.sparse and self.sparse.moves(step):
                self._move(self.sparse, micro, key)
            self.carry = share.carry
            return share.loss

    @torch.no_grad()
    def _move(self, task: Sparse, micro: list[Tree], key: tuple[int, int]) -> None:
        """Let blocks of sparse matrices move, and start them again from zero."""
        matrices, gradients = task.matrices(), {}
        if task.by_gradient:
            share = self._evaluate(micro, key, observe=(matrices, whole_gradients))
            gradients = {name: _numpy(value) for name, value in self.reduce.exact(share.statistics).items()}
        weights = {name: _numpy(self.named[f"{name}.weight"]) for name in matrices}
        patterns = {name: _numpy(value) for name, value in self.patterns.items()}
        after, moved = backend.moved(task, key, weights, patterns, gradients)
        for name, value in after.items():
            self.patterns[name].copy_(torch.from_numpy(value))
        masks = {self.named[name]: torch.from_numpy(mask).to(self.device) for name, mask in moved.items()}
        for parameter, mask in masks.items():
            parameter[mask] = 0
        self.optimizer.reset(masks)

    def _micro(self, batch: Batch) -> list[Tree]:
        """The batch on the device, cut into `accumulate` parts."""
        values = {name: self._tensor(value) for name, value in batch.items()}
        parts = {name: value.chunk(self.accumulate) for name, value in values.items()}
        return [{name: part[i] for name, part in parts.items()} for i in range(self.accumulate)]

    def _tensor(self, value: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(value).to(self.device, non_blocking=True)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

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
    ) -> Share:
        """What `Maths.evaluate` yields at this engine's present state."""
        given = {"labels": labels, "observe": observe, "watch": watch, "known": known}
        return self.maths.evaluate(micro, self.carry, key, observed=self.schedule.observed, **given)

    # -------------------------------------------------------------------------------- everything around it
    # -------------------------------------------------------------------------------- everything around it
    def losses(self, pending: list[Tensor]) -> list[float]:
        """Losses that `step` returned, on the host; waits for the device once."""
        return torch.stack(pending).tolist() if pending else []

    def evaluate(self, batches: Iterable[Batch], generate: Callable[..., Batch] | None = None) -> Iterator[Batch]:
        """The model's outputs for each batch in evaluation mode, over all ranks, as NumPy arrays.

        With `generate`, what it writes is added to them; see `suite.contract.Generates`.
        """
        self._compare()
        self.model.eval()
        for batch in batches:
            with self._mode(), torch.no_grad(), self.maths.autocast():
                inputs = self.maths.fetched({name: self._tensor(value) for name, value in batch.items()})[0]
                outputs, _ = self.model(inputs)
                if generate:
                    written = generate(batch, self._start, self._advance)
                    outputs |= {name: torch.from_numpy(value).to(self.device) for name, value in written.items()}
            if self.world > 1:
                transport = self.reduce.transport
                outputs = {name: transport.all_gather("evaluation", value).wait() for name, value in outputs.items()}
            wide = {name: value.float() if value.dtype == torch.bfloat16 else value for name, value in outputs.items()}
            yield {name: value.cpu().numpy() for name, value in wide.items()}

    def _start(self, batch: Batch) -> Any:
        return self.model.encode({name: self._tensor(value) for name, value in batch.items()})

    def _advance(self, state: Any, rows: np.ndarray, token: np.ndarray, position: int) -> tuple[np.ndarray, Any]:
        scores, state = self.model.decode_step(state, self._tensor(rows), self._tensor(token), position)
        return scores.float().cpu().numpy() if scores.dtype == torch.bfloat16 else scores.cpu().numpy(), state

    def _compare(self) -> None:
        """Make sure that all ranks hold the same weights, before anything is concluded from one rank's."""
        self.ranks.compare(_numpy(v) for name, v in self.model.state_dict().items() if name not in self.tables)

    def synchronize(self) -> None:
        """Wait until the device, and work the optimizer has under way on the host, is done."""
        if "host" in self.needs:
            self.optimizer.drain()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def snapshot(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything a restored run needs, as (arrays, JSON); views, good until the next step. All ranks call it."""
        self._compare()
        arrays: dict[str, np.ndarray] = {}

        def gather(rows: Tensor) -> Tensor:
            """Every rank's, one after another."""
            return rows if self.world == 1 else self.reduce.transport.all_gather("snapshot", rows).wait()

        state = {
            "model": {n: gather(v) if n in self.tables else v for n, v in self.model.state_dict().items()},
            "optimizer": self._by_table(_owned(self.optimizer.state_dict(), gather), gather),
            "carry": [{n: gather(v) for n, v in part.items()} for part in self.carry],
            "residuals": {name: gather(value[None]) for name, value in self._residuals()},
        }
        return arrays, tree.pack(state, arrays, "run", _host)

    def _residuals(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's residuals by name, in the order of rank 0, which has all that there are.

        Zeros stand for those that this rank has not: only leaders encode what travels between hosts.
        """
        held, like = self.reduce.state, {"dtype": self.dtype, "device": self.device}
        for name, shape in self.ranks.tell({name: tuple(value.shape) for name, value in held.items()}).items():
            yield name, held[name] if name in held else torch.zeros(shape, **like)

    def restore(self, arrays: dict[str, np.ndarray], skeleton: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        state = tree.unpack(skeleton, arrays, lambda value: torch.from_numpy(value.copy()).to(self.device))

        def mine(rows: Tensor) -> Tensor:
            """This rank's of what was gathered."""
            return rows.chunk(self.world)[self.reduce.rank]

        self.model.load_state_dict({n: mine(v) if n in self.tables else v for n, v in state["model"].items()})
        self.optimizer.load_state_dict(self._by_table(_owned(state["optimizer"], mine), mine))
        self.carry = [{name: mine(value) for name, value in part.items()} for part in state["carry"]]
        self.reduce.state = {name: mine(value)[0] for name, value in state["residuals"].items()}

    def _by_table(self, state: dict[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """An optimizer's state in which every array that belongs to a table has been changed."""
        places = {n: i for g in state["param_groups"] for n, i in zip(g["param_names"], g["params"], strict=True)}
        tables = {places[name] for name in self.tables}
        each = {
            place: {k: change(v) if place in tables and v.ndim else v for k, v in values.items()}
            for place, values in state["state"].items()
            if place in tables
        }
        return {**state, "state": {**state["state"], **each}}

    def facts(self) -> dict[str, Any]:
        """What the result says of the engine."""
        return facts(self.device) | {
            "parameters": backend.parameters(self.task),
            "flops": backend.flops(self.task),
            "explored": backend.explored({name: _numpy(value) for name, value in self.patterns.items()}),
            "optimizer": self.optimizer.facts() if "facts" in self.needs else None,
            "compile_seconds": self.compile_seconds,
            "compile_cache": None,
            "bytes": self.ledger.facts(),
        }


def _numpy(value: Tensor) -> np.ndarray:
    return value.detach().cpu().contiguous().numpy()


def _host(value: Any) -> np.ndarray | None:
    return _numpy(value) if isinstance(value, Tensor) else None


def _owned(value: Any, change: Callable[[Tensor], Tensor], inside: bool = False) -> Any:
    """A copy of nested state in which every tensor below a key `owned` has been changed."""
    if isinstance(value, dict):
        return {key: _owned(item, change, inside or key == "owned") for key, item in value.items()}
    if isinstance(value, list):
        return [_owned(item, change, inside) for item in value]
    return change(value) if inside and isinstance(value, Tensor) else value
