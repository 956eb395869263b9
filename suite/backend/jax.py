"""The engine in jax: one jitted `shard_map` over the mesh axis `data`, on one process or several.

A step is one program, after those that the optimizer's plan names. Where these need statistics of the very step they
stand between its gradient and its update, which are two programs then, also in steps that run none of the others: fused
for those, forward and backward would be compiled twice.
Everything a step changes is one tree, `run`; whatever lies below a key `owned` is split by rank, the rest is equal on
all. `check_vma` is off because gradients must reach `reduce` as local shares; replicas are compared in tests instead.
The maths is in `jax_step.py`, compilation in `jax_programs.py`, what lies where in `jax_device.py`; here are state and
what a step runs.
"""

import functools
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from suite import backend, communication, load
from suite.backend.jax_device import Layout, devices_for, typed
from suite.backend.jax_programs import Lowered, Mode, Programs, enable_cache
from suite.backend.jax_step import Maths, offered
from suite.backend.ranks.jax import Ranks
from suite.comm.transport import entry
from suite.comm.transport.jax import AXIS, Transport
from suite.contract import Plan, Sparse, Task

__all__ = ["Engine", "enable_cache"]

Tree = dict[str, Any]
Batch = dict[str, np.ndarray]


class Engine:
    """A model, its optimizer and their communication on this process's share of the mesh.

    Args:
        task: data and model description.
        config: the whole run's configuration, resolved.
    """

    def __init__(self, task: Task, config: Mapping[str, Any]):
        self.task, self.seed, self.world = task, config["seed"], config["world"]
        self.precision, self.share = config["precision"], (jax.process_index(), jax.process_count())
        self.devices, self.ranks = devices_for(config["device"], self.world), Ranks()
        self.modes, node = communication.modes(config["comm"], task, self.world, "jax"), config["optimizer"]
        self.mode = next(iter(self.modes))
        channels = self.modes[self.mode]
        self.transport = functools.partial(Transport, self.world, channels.locals)
        self.mesh = Mesh(np.array(self.devices).reshape(-1, channels.locals or self.world), AXIS)
        self.programs = Programs(self.mesh, self.transport, self._mode)
        model = load.half(config["task"]["module"], "jax").make(task)
        with self._mode():
            kind = jnp.result_type(float)
            shapes = task.shapes()
            self.node, self.needs = node, load.common(node["module"]).NEEDS
            self.tables = tuple(backend.tables(task, self.needs, node))
            self.layout = Layout(self.mesh, self.tables)
            self.sparse = backend.sparse(task, self.needs, node)
            self.kinds = {n: kind for n, kind in communication.kind_of(task).items() if n not in self.tables}
            initial = {name: task.init(self.seed, name) for name in shapes if name not in self.tables}
            made = {n: jnp.asarray(v, kind if v.dtype.kind == "f" else None) for n, v in initial.items()}
            made |= {name: self.layout.table(task, self.seed, name, kind) for name in self.tables}
            held = {k: {n: made[n] for n in shapes if shapes[n].kind == k} for k in ("parameter", "buffer", "pattern")}
            params = self.layout.place(held["parameter"])
            offers = {
                "layers": task.layers(),
                "tables": backend.embeddings(task),
                "shapes": {name: value.shape for name, value in params.items()},
                "world": self.world,
                "samples": task.data.samples["train"],
            }
            if "objective" in self.needs:  # else no batch need be made for it
                narrow = self.precision == "bfloat16"
                offers["objective"] = offered(model, task, self.seed, self.world, held, narrow=narrow)
            asked = {name: value for name, value in offers.items() if name in self.needs}
            self.optimizer = load.made(load.half(node["module"], "jax").make, node, "optimizer", **asked)
            self.plan = self.optimizer.plan if "program" in self.needs or "observe" in self.needs else Plan()
            self.split = "program" in self.needs and "observe" in self.needs
            self.maths = Maths(
                model,
                self.optimizer,
                self.needs,
                channels,
                self.tables,
                accumulate=config["accumulate"],
                clip_norm=config["clip_norm"],
                narrow=self.precision == "bfloat16",
            )
            run = {
                "params": params,
                "buffers": held["buffer"],
                "patterns": held["pattern"],
                "carry": {"owned": typed(task.carry(task.batch_size))},
                "opt": jax.jit(self.optimizer.init)(params),  # one program; by itself, every new shape would be one
                "comm": {"owned": {}},
            }
            self.run = self.layout.place(run)
            held = self.run["opt"]["hyper"]
            # what updates a table by rows may be compiled without what is 0 at first
            self.live = {name for name, value in held.items() if not self.tables or name == "lr" or float(value)}
            if communication.remembers(config["comm"]):
                self._open_slots()

    def _open_slots(self) -> None:
        """A zero residual for every name that any step's communication will use, found by tracing each kind of step."""
        batch, key, hyper = self.layout.inputs(self.seed, self.task.batch("train", self.seed, 0, *self.share), 0, {})
        abstract = self.layout.described(self.run, batch, key, hyper)
        state = self.layout.state_spec(self.run)
        slots: Tree = {}
        for phase in {self.plan.phase(step) for step in range(1000)}:

            def body(*arguments: Any, phase: Any = phase) -> Tree:
                run, _ = self.maths.body(*arguments, transport=self.transport(), half="both", phase=phase)
                return run["comm"]["owned"]

            specs = (state, {}, P(AXIS), P(), P())
            mapped = jax.shard_map(body, mesh=self.mesh, in_specs=specs, out_specs=P(AXIS), check_vma=False)
            slots |= jax.eval_shape(mapped, abstract[0], {}, *abstract[1:])
        zeros = {"owned": {name: jnp.zeros(slot.shape, slot.dtype) for name, slot in slots.items()}}
        self.run["comm"] = self.layout.place({"comm": zeros})["comm"]

    # --------------------------------------------------------------------------------------- communication
    def use(self, mode: str | Mapping[str, str]) -> None:
        """Let gradients travel in this mode from now on; its programs are compiled when they are needed."""
        self.mode = str(mode)
        self.maths = replace(self.maths, channels=communication.mixed(self.modes, mode))

    def exchange(self, kind: str) -> None:
        """Take the mean of something of the size of all gradients of one kind, here the weights, and drop it."""
        self._try("exchange", self.maths.exchange, kind)

    def code(self, kind: str) -> None:
        """Encode and decode something of the size of all gradients of one kind, here the weights; nothing is sent."""
        self._try("code", self.maths.code, kind)

    def _try(self, what: str, body: Any, kind: str) -> None:
        name = what, kind, self.mode
        values = {each: self.run["params"][each] for each, its in self.kinds.items() if its == kind}
        with self._mode():
            if name not in self.programs:
                self.programs.compile({name: self.programs.lower(body, (values,), (P(),), P(), donate=False)})
            jax.block_until_ready(self.programs(name, values))

    # ------------------------------------------------------------------------------------------- programs
    def _stages(self, step: int, run: Any, batch: Any, key: Any, hyper: Any) -> dict[Any, Any]:
        """What step `step` runs, by key: (body, arguments, their specs, the result's spec)."""
        phase, state = self.plan.phase(step), self.layout.state_spec(run)
        between = {"grads": P(), "next": {"buffers": P(), "owned": P(AXIS)}}
        rest, rest_specs = (batch, key, hyper), (P(AXIS), P(), P())
        body = functools.partial(self.maths.body, phase=phase)
        names, spec = self._order(step, hyper), self.layout.spec(run["opt"])
        stages: dict[Any, Any] = {}
        for at in names:
            if at[0] == "programs":
                refresh = functools.partial(self.maths.refresh, names=at[1])
                stages[at] = (refresh, (run["opt"],), (spec,), spec)
        if not self.split:
            whole = functools.partial(body, half="both")
            return stages | {names[-1]: (whole, (run, {}, *rest), (state, {}, *rest_specs), (state, {"loss": P()}))}
        made = {"grads": run["params"], "next": {"buffers": run["buffers"], "owned": run["carry"]["owned"]}}
        first, last = functools.partial(body, half="gradient"), functools.partial(body, half="update")
        gradient = (first, (run, {}, *rest), (state, {}, *rest_specs), (state, between | {"loss": P()}))
        update = (last, (run, made, *rest), (state, between, *rest_specs), (state, {}))
        return {names[0]: gradient, **stages, names[-1]: update}

    def _order(self, step: int, hyper: Mapping[str, Any]) -> list[Any]:
        """Keys of the programs that step `step` runs, in order."""
        phase, given = self.plan.phase(step), tuple(sorted(hyper))
        every = self.plan.programs(step)
        groups = [every] if every and self.plan.together else [(name,) for name in every]
        programs = [("programs", names, self.mode) for names in groups]
        if not self.split:
            return [*programs, ("both", phase, given, self.mode)]
        asked = phase if "phase" in self.needs else ()
        return [("gradient", phase, given, self.mode), *programs, ("update", asked, given, self.mode)]

    def warm(self, batch: Batch, steps: range, hyper: Mapping[str, float]) -> None:
        """Compile every program that these steps will run, two at a time, so that none is compiled in a step."""
        backend.editable(hyper, self.live, self.node)
        with self._mode():
            self._compile(steps, *self.layout.inputs(self.seed, batch, 0, hyper))

    def _compile(self, steps: Iterable[int], batch: Any, key: Any, hyper: Any) -> None:
        began, seen = time.perf_counter(), set()
        lowered: dict[Any, Lowered] = {}
        abstract = self.layout.described(self.run, batch, key, hyper)
        if self.sparse and "reset" not in self.programs and any(self.sparse.moves(step) for step in steps):
            lowered |= self._moving(self.sparse, *abstract[:3])
        if self.plan.warm_start and "prepare" not in self.programs and 0 in steps:
            lowered |= self._preparing(*abstract[:3])
        for step in steps:
            kind = self.plan.phase(step), self.plan.programs(step)
            if kind not in seen:
                seen.add(kind)
                for name, stage in self._stages(step, *abstract).items():
                    if name not in self.programs and name not in lowered:
                        lowered[name] = self.programs.lower(*stage)
        self.programs.compile(lowered)
        self.programs.seconds += time.perf_counter() - began

    def _preparing(self, run: Any, batch: Any, key: Any) -> dict[Any, Any]:
        """The programs of `prepare`: a batch's statistics, and the optimizer's start with them."""
        labels = "sampled" if "sampled" in self.plan.phase(0) else "given"
        body = functools.partial(self.maths.prepared, labels=labels)
        specs, spec = (self.layout.state_spec(run), P(AXIS), P()), self.layout.spec(run["opt"])
        looking = self.programs.lower(body, (run, batch, key), specs, P(), donate=False)
        whole = self.layout.whole
        found = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=whole), looking.program.out_info)
        return {
            "statistics": looking,
            "prepare": self.programs.lower(self.maths.prepare, (run["opt"], found), (spec, P()), spec),
        }

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Give the optimizer the mean statistics of some batches at the present weights, which stay as they are."""
        with self._mode():
            total, count = None, 0
            for (_, number), batch in backend.preparation(self.seed, batches):
                found = self.programs("statistics", self.run, *self.layout.inputs(self.seed, batch, number, {})[:2])
                total = jax.tree.map(jnp.add, total, found) if total else found
                count += 1
            mean = jax.tree.map(lambda value: value / count, total)
            self.run["opt"] = self.programs("prepare", self.run["opt"], mean)

    def step(self, step: int, batch: Batch, hyper: Mapping[str, float]) -> Array:
        """Make update number `step` (from 0); the mean loss, perhaps not yet computed."""
        backend.editable(hyper, self.live, self.node)
        with self._mode():
            rest = self.layout.inputs(self.seed, batch, step, hyper)
            run = self.run
            if "host" in self.needs:
                run["opt"] = self.optimizer.host(self._told(rest[2]), step)
            names = self._order(step, hyper)  # after `host`, which may find out what is due
            if names[0][0] == "programs":
                run["opt"] = self._told(rest[2])
            if any(name not in self.programs for name in names):
                self._compile([step], *rest)
            made: Tree = {}
            loss: Any = None
            for name in names:
                if name[0] == "programs":
                    run["opt"] = self.programs(name, run["opt"])
                else:
                    run, made = self.programs(name, run, made, *rest)
                    loss = made.pop("loss", loss)
            self.run = run
            if self.sparse and self.sparse.moves(step):
                self._move(self.sparse, *rest[:2])
            return loss

    def _told(self, hyper: Tree) -> Tree:
        """The optimizer's state with this step's hyper-parameters, for what runs before the gradient."""
        state = self.run["opt"]
        return state | {"hyper": state["hyper"] | jax.device_put(hyper, self.layout.whole)}

    def _moving(self, task: Sparse, run: Any, batch: Any, key: Any) -> dict[Any, Any]:
        """The programs around a move: the gradient of whole matrices, where it is asked for, and the new start."""
        state, specs = self.layout.state_spec(run), {name: P() for name in task.matrices()}
        blocks = {f"{name}.weight": run["params"][f"{name}.weight"].shape[:1] for name in specs}
        masks = {name: jax.ShapeDtypeStruct(shape, bool, sharding=self.layout.whole) for name, shape in blocks.items()}
        both = {name: state[name] for name in ("params", "opt")}
        start = {name: run[name] for name in both}
        found = {"reset": self.programs.lower(self.maths.reset, (start, masks), (both, P()), both)}
        if task.by_gradient:
            body = functools.partial(self.maths.whole_gradients, names=tuple(specs))
            arguments = (run, batch, key), (state, P(AXIS), P()), specs
            found["whole gradients"] = self.programs.lower(body, *arguments, donate=False)
        return found

    def _move(self, task: Sparse, batch: Any, key: Any) -> None:
        """Let blocks of sparse matrices move, and start them again from zero."""
        gradients = {}
        if task.by_gradient:
            found = self.programs("whole gradients", self.run, batch, key)
            gradients = {name: self._host(value) for name, value in found.items()}
        weights = {name: self._host(self.run["params"][f"{name}.weight"]) for name in task.matrices()}
        patterns = {name: self._host(value) for name, value in self.run["patterns"].items()}
        seed, step = np.asarray(key).tolist()
        after, moved = backend.moved(task, (seed, step), weights, patterns, gradients)
        whole = self.layout.whole
        self.run["patterns"] = jax.device_put(after, whole)
        self.run |= self.programs("reset", {n: self.run[n] for n in ("params", "opt")}, jax.device_put(moved, whole))

    # --------------------------------------------------------------------------------- everything around it
    def losses(self, pending: list[Array]) -> list[float]:
        """Losses that `step` returned, on the host; waits for the device once."""
        return [float(value) for value in jax.device_get(pending)]

    def evaluate(self, batches: Iterable[Batch], generate: Callable[..., Batch] | None = None) -> Iterator[Batch]:
        """The model's outputs for each batch in evaluation mode, over all ranks, as NumPy arrays.

        With `generate`, what it writes is added to them, each process searching for its own share on its first
        device; see `suite.contract.Generates`.
        """
        self._compare()
        for batch in batches:
            with self._mode():
                inputs, key, _ = self.layout.inputs(self.seed, batch, 0, {})
                outputs = self._evaluation(
                    self.run["params"],
                    self.run["buffers"] | self.run["patterns"],
                    self.run["carry"]["owned"],
                    inputs,
                    key,
                )
                hosted = {name: self._host(value, "evaluation") for name, value in outputs.items()}
                yield hosted | (self._written(batch, generate) if generate else {})

    def _written(self, batch: Batch, generate: Callable[..., Batch]) -> Batch:
        params = {name: value.addressable_data(0) for name, value in self.run["params"].items()}
        encode, decode_step = self._search
        kind = jnp.result_type(float)

        def start(batch: Batch) -> Any:
            return encode(params, {n: jnp.asarray(v, kind if v.dtype.kind == "f" else None) for n, v in batch.items()})

        def advance(state: Any, rows: np.ndarray, token: np.ndarray, position: int) -> tuple[np.ndarray, Any]:
            scores, state = decode_step(params, state, jnp.asarray(rows), jnp.asarray(token), np.int32(position))
            return np.asarray(scores), state

        written = generate(batch, start, advance)
        if jax.process_count() == 1:
            return written
        return {name: multihost_utils.process_allgather(value, tiled=True) for name, value in written.items()}

    @functools.cached_property
    def _search(self) -> tuple[Any, Any]:
        return jax.jit(self.maths.model.encode), jax.jit(self.maths.model.decode_step)

    @functools.cached_property
    def _evaluation(self) -> Any:
        specs = (self.layout.spec(self.run["params"]), P(), P(AXIS), P(AXIS), P())
        predict = functools.partial(self.maths.predict, world=self.world)
        return jax.jit(jax.shard_map(predict, mesh=self.mesh, in_specs=specs, out_specs=P(AXIS), check_vma=False))

    def _host(self, value: Array, name: str = "snapshot") -> np.ndarray:
        if not value.is_fully_addressable and not value.is_fully_replicated:
            share = value.nbytes // self.world
            self.programs.ledger.add([entry("all_gather", name, str(value.dtype), share, self.world)])
            value = multihost_utils.process_allgather(value, tiled=True)
        host = np.asarray(value)
        return host.astype(np.float32) if host.dtype == jnp.bfloat16 else host

    def _compare(self) -> None:
        """Make sure that all devices hold the same weights, before anything is concluded from one device's."""
        held: dict[Any, list[np.ndarray]] = {device: [] for device in self.mesh.local_devices}
        parts = (self.run[name] for name in ("params", "buffers", "patterns")) if self.world > 1 else ()
        for leaf in (leaf for part in parts for name, leaf in part.items() if name not in self.tables):
            for shard in leaf.addressable_shards:
                held[shard.device].append(np.asarray(shard.data))
        self.ranks.compare(held.values())

    def synchronize(self) -> None:
        """Wait until the device, and work the optimizer has under way on the host, is done."""
        if "host" in self.needs:
            self.optimizer.drain()
        jax.block_until_ready(self.run)

    def snapshot(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything a restored run needs, as (arrays, JSON); views, good until the next step. All ranks call it."""
        self._compare()
        leaves, _ = jax.tree_util.tree_flatten_with_path(self.run)
        return {f"run{jax.tree_util.keystr(path)}": self._host(leaf) for path, leaf in leaves}, {}

    def restore(self, arrays: dict[str, np.ndarray], skeleton: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        with self._mode():
            leaves, structure = jax.tree_util.tree_flatten_with_path(self.run)
            values = [arrays[f"run{jax.tree_util.keystr(path)}"] for path, _ in leaves]
            self.run = self.layout.place(jax.tree_util.tree_unflatten(structure, values))

    def facts(self) -> dict[str, Any]:
        """What the result says of the engine."""
        stats = self.mesh.local_devices[0].memory_stats() or {}
        kinds = set(self.programs.cache_events)
        return {
            "device": self.devices[0].device_kind,
            "parameters": backend.parameters(self.task),
            "flops": backend.flops(self.task),
            "explored": backend.explored({name: self._host(value) for name, value in self.run["patterns"].items()}),
            "optimizer": self._counted(),
            "compile_seconds": self.programs.seconds,
            "compile_cache": "miss" if "miss" in kinds else "hit" if kinds else None,
            "peak_memory_bytes": stats.get(
                "peak_bytes_in_use", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            ),
            "bytes": self.programs.ledger.facts(),
        }

    def _counted(self) -> dict[str, float] | None:
        """What the optimizer counted, where it does; a step that failed may have taken its state along."""
        state = self.run["opt"]
        lost = any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
        return self.optimizer.facts(state) if "facts" in self.needs and not lost else None

    def _mode(self) -> Any:
        return Mode(self.precision)
