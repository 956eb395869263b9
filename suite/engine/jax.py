"""Engine in jax: one jitted `shard_map` over the mesh axis `data`, on one process or several.

A step runs the programs that the optimizer's plan names, then one program for gradient and update. If the plan's
programs use this step's statistics or gradient, they run between the gradient and the update, which are then two
programs in every step: otherwise forward and backward would be compiled twice.

All that a step changes is one tree, `run`. Arrays below a key `owned` are split by rank; all others are equal on all
ranks. `check_vma` is off because gradients must reach `reduce` as local shares; tests compare the replicas instead.

`jax_step.py` contains the maths, `jax_programs.py` compilation, `jax_device.py` the placement of arrays on devices.
This file contains the state, and the order of programs in a step.
"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from suite import engine, load
from suite.comm import setup
from suite.comm.transport.jax import AXIS, Transport
from suite.contract import OFFERED, Group, Plan, Skeleton, Snapshot, Task
from suite.engine import jax_moves, jax_snapshot
from suite.engine.jax_device import Layout, cast_batch, devices_for, measure_device
from suite.engine.jax_evaluation import Evaluation
from suite.engine.jax_kept import KeptJit, find_or_make
from suite.engine.jax_probe import Probe
from suite.engine.jax_programs import Compiled, Lowered, Mode, Programs, enable_cache
from suite.engine.jax_step import Maths, make_objective
from suite.engine.probing import varies_rate
from suite.engine.ranks.jax import Ranks
from suite.settings.run import Run

__all__ = ["Engine", "enable_cache"]

Tree = dict[str, Any]
Batch = dict[str, np.ndarray]


class Engine:
    """A model, its optimizer and their communication on this process's share of the mesh.

    Args:
        task: data and model description.
        run: the run.
    """

    def __init__(self, task: Task, run: Run):
        self.task, self.seed, self.world = task, run.seed, run.world
        self.precision, self.share = run.precision, (jax.process_index(), jax.process_count())
        self.devices, self.ranks = devices_for(run.device, self.world), Ranks()
        self.takes_bytes = self.devices[0].platform != "cpu"
        self.modes, node = setup.make_modes(run.comm, task, self.world, "jax"), run.optimizer
        self.mode = next(iter(self.modes))
        channels = self.modes[self.mode]
        self.transport = functools.partial(Transport, self.world, channels.locals)
        self.mesh = Mesh(np.array(self.devices).reshape(-1, channels.locals or self.world), AXIS)
        process = jax.process_index()
        devices = enumerate(self.mesh.devices.flat)
        self.local_ranks = tuple(rank for rank, device in devices if device.process_index == process)
        self.programs = Programs(self.mesh, self.transport, self._mode, narrow=self.precision == "bfloat16")
        model = run.task.make_model("jax", task)
        load.check_names(model, "apply", "loss")
        with self._mode():
            kind = jnp.result_type(float)
            shapes = task.shapes()
            self.node, self.needs = node, node.needs
            self.tables = tuple(engine.list_tables(task, self.needs, node))
            self.layout = Layout(self.mesh, self.tables, engine.list_levels(task))
            self.sparse = engine.find_sparse(task, self.needs, node)
            self.kinds = {n: kind for n, kind in setup.find_kinds(task).items() if n not in self.tables}
            initial = {name: task.init(self.seed, name) for name in shapes if name not in self.tables}
            arrays = {n: jnp.asarray(v, kind if v.dtype.kind == "f" else None) for n, v in initial.items()}
            arrays |= {name: self.layout.table(task, self.seed, name, kind) for name in self.tables}
            rounded = engine.list_rounded(task) if self.precision == "bfloat16" else []
            kinds = ("parameter", "buffer", "pattern")
            by_kind = {k: {n: arrays[n] for n in shapes if shapes[n].kind == k} for k in kinds}
            params = self.layout.place(by_kind["parameter"])
            offers = {
                "layers": task.layers(),
                "tables": engine.list_embeddings(task),
                "shapes": {name: value.shape for name, value in params.items()},
                "world": self.world,
                "samples": task.data.samples["train"],
            }
            if "objective" in self.needs:  # it takes a batch, which other optimizers do not need
                offers["objective"] = make_objective(model, task, self.seed, self.world, by_kind, rounded=rounded)
            needed = {name: value for name, value in offers.items() if name in self.needs}
            make = functools.partial(node.build, "jax")
            self.optimizer = make(**needed)
            self.probe: Probe | None = None
            if "outside" in self.needs:
                self.probe = Probe(node.name, make, params, jax.local_devices()[0], varies=varies_rate(run))
            load.check_names(self.optimizer, *(name for name in OFFERED if name in self.needs))
            self.plan = self.optimizer.plan if "program" in self.needs or "observe" in self.needs else Plan()
            self.split = "program" in self.needs and ("observe" in self.needs or "collect" in self.needs)
            self.maths = Maths(
                model,
                self.optimizer,
                self.needs,
                channels,
                self.tables,
                accumulate=run.accumulate,
                clip_norm=run.clip_norm,
                rounded=rounded,
            )
            state = {
                "params": params,
                "buffers": by_kind["buffer"],
                "patterns": by_kind["pattern"],
                "carry": {"owned": cast_batch(task.carry(task.batch_size))},
                "opt": KeptJit(self.optimizer.init)(params),  # one program instead of one per shape
                "comm": {"owned": {}},
            }
            self.run = self.layout.place(state)
            hyper = self.run["opt"]["hyper"]
            # an optimizer may leave out of an update by rows what depends on a hyper-parameter that starts at 0
            self.live = {name for name, value in hyper.items() if not self.tables or name == "lr" or float(value)}
            if setup.keeps_state(run.comm):
                self._open_slots()

    def _open_slots(self) -> None:
        """A zero residual for every name that any step's communication will use, found by tracing each kind of step."""
        batch, key, hyper = self.layout.inputs(self.seed, self.task.batch("train", self.seed, 0, *self.share), 0, {})
        abstract = self.layout.described(self.run, batch, key, hyper)
        state = self.layout.state_spec(self.run)
        slots: Tree = {}
        for phase in {self.plan.phase(step) for step in range(1000)}:

            def body(*arguments: Any, phase: Any = phase) -> Tree:
                run, _ = self.maths.step(*arguments, transport=self.transport(), phase=phase)
                return run["comm"]["owned"]

            specs = (state, P(AXIS), P(), P())
            mapped = jax.shard_map(body, mesh=self.mesh, in_specs=specs, out_specs=P(AXIS), check_vma=False)
            trace = functools.partial(jax.eval_shape, mapped, *abstract)
            slots |= find_or_make(trace, self.maths.step, abstract, phase, self.transport, self.mesh.devices)
        zeros = {"owned": {name: jnp.zeros(slot.shape, slot.dtype) for name, slot in slots.items()}}
        self.run["comm"] = self.layout.place({"comm": zeros})["comm"]

    # --------------------------------------------------------------------------------------- communication
    @property
    def groups(self) -> list[Group]:
        """All ranks average all gradients."""
        return [Group(tuple(self.kinds), tuple(range(self.world)))]

    def use(self, mode: str | Mapping[str, str]) -> None:
        """Send gradients in this communication mode from now on; its programs are compiled when they are needed."""
        self.mode = str(mode)
        self.maths = replace(self.maths, channels=setup.mix_modes(self.modes, mode))

    def exchange(self, kind: str) -> None:
        """Average arrays of the size of all gradients of one kind of layer (the weights), and discard the result."""
        self._try("exchange", self.maths.exchange, kind)

    def code(self, kind: str) -> None:
        """Encode and decode arrays of the size of all gradients of one kind of layer (the weights); nothing is sent."""
        self._try("code", self.maths.code, kind)

    def _try(self, action: str, body: Any, kind: str) -> None:
        key = action, kind, self.mode
        values = {name: self.run["params"][name] for name in self.kinds if self.kinds[name] == kind}
        with self._mode():
            if key not in self.programs:
                self.programs.compile({key: self.programs.lower(body, (values,), (P(),), P(), donate=False)})
            jax.block_until_ready(self.programs(key, values))

    # ------------------------------------------------------------------------------------------- programs
    def _stages(self, step: int, run: Any, batch: Any, key: Any, hyper: Any) -> dict[Any, Any]:
        """Return the programs of step `step` by key: (body, arguments, specs of the arguments, spec of the result)."""
        phase, state = self.plan.phase(step), self.layout.state_spec(run)
        between = {"grads": P(), "next": {"buffers": P(), "owned": P(AXIS)}}
        rest, rest_specs = (batch, key, hyper), (P(AXIS), P(), P())
        names, spec = self._order(step, hyper), self.layout.spec(run["opt"])
        stages: dict[Any, Any] = {}
        for name in names:
            if name[0] == "programs":
                refresh = functools.partial(self.maths.refresh, names=name[1])
                stages[name] = (refresh, (run["opt"],), (spec,), spec)
        if not self.split:
            whole = functools.partial(self.maths.step, phase=phase)
            return stages | {names[-1]: (whole, (run, *rest), (state, *rest_specs), (state, {"loss": P()}))}
        halfway = {"grads": run["params"], "next": {"buffers": run["buffers"], "owned": run["carry"]["owned"]}}
        differentiate, move = (functools.partial(f, phase=phase) for f in (self.maths.differentiate, self.maths.update))
        gradient = (differentiate, (run, *rest), (state, *rest_specs), (state, between | {"loss": P()}))
        update = (move, (run, halfway, *rest), (state, between, *rest_specs), (state, {}))
        return {names[0]: gradient, **stages, names[-1]: update}

    def _order(self, step: int, hyper: Mapping[str, Any]) -> list[Any]:
        """Keys of the programs that step `step` runs, in order."""
        phase, hyper_names = self.plan.phase(step), tuple(sorted(hyper))
        planned = self.plan.programs(step)
        groups = [planned] if planned and self.plan.together else [(name,) for name in planned]
        programs = [("programs", names, self.mode) for names in groups]
        if not self.split:
            return [*programs, ("step", phase, hyper_names, self.mode)]
        update_phase = engine.select_update_words(phase) if "phase" in self.needs else ()
        gradient, update = ("gradient", phase, hyper_names, self.mode), ("update", update_phase, hyper_names, self.mode)
        return [gradient, *programs, update]

    def warm(self, batch: Batch, steps: range, hyper: Mapping[str, float]) -> None:
        """Compile every program of these steps, two at a time, so that no step has to compile one.

        Raises:
            UserError: an optimizer of another package would not train as its package says.
        """
        engine.check_editable(hyper, self.live, self.node)
        with self._mode():
            if self.probe:
                self.programs.seconds += self.probe.check()
            self._compile(steps, *self.layout.inputs(self.seed, batch, 0, hyper))

    def _compile(self, steps: Iterable[int], batch: Any, key: Any, hyper: Any) -> None:
        began, seen = time.perf_counter(), set()
        lowered: dict[Any, Lowered | Compiled] = {}
        abstract = self.layout.described(self.run, batch, key, hyper)
        if self.sparse and "reset" not in self.programs and any(self.sparse.moves(step) for step in steps):
            lowered |= jax_moves.lower_move(self.sparse, self.maths, self.programs, self.layout, *abstract[:3])
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
        """Make the programs of `prepare`: a batch's statistics, their sum, and the optimizer's initialisation."""
        labels = "sampled" if "sampled" in self.plan.phase(0) else "given"
        body = functools.partial(self.maths.prepared, labels=labels)
        specs, spec = (self.layout.state_spec(run), P(AXIS), P()), self.layout.spec(run["opt"])
        observation = self.programs.lower(body, (run, batch, key), specs, P(), donate=False)
        whole = self.layout.whole
        statistics, share = jax.tree.map(
            lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=whole),
            (observation.program.out_info[0], self._share(1)),
        )
        arguments = (run["opt"], statistics, share), (spec, P(), P()), spec
        return {
            "statistics": observation,
            "add": self.programs.lower(self.maths.add, (statistics, statistics), (P(), P()), P()),
            "prepare": self.programs.lower(self.maths.prepare, *arguments),
        }

    def _share(self, count: int) -> Array:
        """Return one batch's share of `count` batches, on the devices."""
        one = np.ones((), jnp.result_type(float))
        return jax.device_put(one / one.dtype.type(count), self.layout.whole)

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Initialise the optimizer's statistics with their mean over batches at the current weights."""
        with self._mode():
            total, count = None, 0
            for (_, number), batch in engine.key_batches(self.seed, batches):
                inputs = self.layout.inputs(self.seed, batch, number, {})[:2]
                statistics = self.programs("statistics", self.run, *inputs)
                total = self.programs("add", total, statistics) if total else statistics
                count += 1
            self.run["opt"] = self.programs("prepare", self.run["opt"], total, self._share(count))

    def step(self, step: int, batch: Batch, hyper: Mapping[str, float]) -> Array:
        """Make update number `step` (from 0) and return its mean loss, which may not be computed yet."""
        engine.check_editable(hyper, self.live, self.node)
        with self._mode():
            rest = self.layout.inputs(self.seed, batch, step, hyper)
            run = self.run
            if "host" in self.needs:
                run["opt"] = self.optimizer.host(self._with_hyper(rest[2]), step)
            names = self._order(step, hyper)  # after `host`, which may change what the plan names
            if names[0][0] == "programs":
                run["opt"] = self._with_hyper(rest[2])
            if any(name not in self.programs for name in names):
                self._compile([step], *rest)
            halfway: Tree = {}
            loss: Any = None
            for name in names:
                if name[0] == "programs":
                    run["opt"] = self.programs(name, run["opt"])
                    continue
                between = (halfway,) if name[0] == "update" else ()
                run, halfway = self.programs(name, run, *between, *rest)
                loss = halfway.pop("loss", loss)
            self.run = run
            if self.sparse and self.sparse.moves(step):
                jax_moves.move_blocks(self.sparse, self.programs, self.layout, self._host, run, *rest[:2])
            return loss

    def _with_hyper(self, hyper: Tree) -> Tree:
        """Put this step's hyper-parameters into the optimizer's state, for programs that run before the gradient."""
        state = self.run["opt"]
        return state | {"hyper": state["hyper"] | jax.device_put(hyper, self.layout.whole)}

    # --------------------------------------------------------------------------------- everything around it
    def losses(self, pending: list[Array]) -> list[float]:
        """Copy losses that `step` returned to the host; waits for the device once."""
        return [float(value) for value in jax.device_get(pending)]

    def evaluate(self, batches: Iterable[Batch], generate: Callable[..., Batch] | None = None) -> Iterator[Batch]:
        """Yield the model's outputs in evaluation mode for each batch, gathered over all ranks, as NumPy arrays.

        Args:
            batches: this process's share of each.
            generate: `suite.contract.Generates.generate`; its result is added to the outputs. Each process searches for
                its own share, on its first device.

        Raises:
            RanksDiffer: the ranks hold different weights.
        """
        self.compare()
        run, params = self.run, self._evaluated()
        for batch in batches:
            with self._mode():
                buffers, carry = run["buffers"] | run["patterns"], run["carry"]["owned"]
                yield self._evaluation(params, buffers, carry, batch, generate)

    def _evaluated(self) -> Tree:
        """Return the parameters to evaluate."""
        if not self.probe:
            return self.run["params"]
        with self._mode():
            return self.probe.evaluated(self.run)

    @functools.cached_property
    def _evaluation(self) -> Evaluation:
        """Evaluates the model."""
        predict = functools.partial(self.maths.predict, world=self.world)
        specs, ledger = self.layout.spec(self.run["params"]), self.programs.ledger
        return Evaluation(predict, self.maths.model, self.layout, specs, ledger, self.seed)

    def _host(self, value: Array) -> np.ndarray:
        """Return the whole array on every host; see `Evaluation.host`."""
        return self._evaluation.host(value)

    def compare(self) -> None:
        """Check that all devices hold the same weights and have received what others sent.

        Raises:
            RanksDiffer: naming the ranks that do not.
        """
        copies: dict[Any, list[np.ndarray]] = {device: [] for device in self.mesh.local_devices}
        parts = (self.run[name] for name in ("params", "buffers", "patterns")) if self.world > 1 else ()
        for leaf in (leaf for part in parts for name, leaf in part.items() if name not in self.tables):
            for shard in leaf.addressable_shards:
                copies[shard.device].append(np.asarray(shard.data))
        self.ranks.compare(copies.values(), self.programs.checksums() if self.world > 1 else None)

    def synchronize(self) -> None:
        """Wait until the device and the optimizer's work on the host are done."""
        if "host" in self.needs:
            self.optimizer.drain()
        jax.block_until_ready(self.run)

    def weights(self) -> dict[str, np.ndarray | Iterator[np.ndarray]]:
        """Return parameters, buffers and patterns by name; a table split by rows as an iterator over its shares.

        The first device receives the shares, one at a time; on processes without it, the iterator sends and yields
        nothing.
        """
        tables = self.tables
        arrays = self._evaluated() | self.run["buffers"] | self.run["patterns"]
        collect = functools.partial(jax_snapshot.collect_rows, self.programs, devices=self.devices)
        rows = {name: self.task.shapes()[name].shape[0] for name in tables}
        return {n: collect(v, rows=rows[n]) if n in rows else self._host(v) for n, v in arrays.items()}

    def snapshot(self, *, replicated: bool = True) -> Snapshot:
        """Return the state of this process's devices, as views that are valid until the next step.

        All processes call it. Only checksums of the weights are sent.

        Args:
            replicated: whether to include the arrays that are equal on all devices; a checkpoint has these from rank 0.

        Returns:
            Arrays by name, and a JSON skeleton. `skeleton["own"]` maps the names of the arrays that differ between
            devices to their kind in words; their leading axis concatenates this process's devices.

        Raises:
            RanksDiffer: the ranks hold different weights.
        """
        self.compare()
        return jax_snapshot.list_arrays(self.run, self.layout, self.tables, replicated=replicated)

    def restore(self, arrays: dict[str, np.ndarray], skeleton: Skeleton) -> None:
        """Restore a snapshot of this process; nothing is sent."""
        with self._mode():
            self.run = jax_snapshot.replace_arrays(self.run, self.layout, arrays)

    def facts(self) -> dict[str, Any]:
        """Return the entries of the result that describe the engine: device, sizes, memory, bytes and compile time."""
        return measure_device(self.mesh.local_devices[0]) | {
            "parameters": engine.count_parameters(self.task),
            "flops": engine.count_flops(self.task),
            "explored": engine.share_explored(
                {name: self._host(value) for name, value in self.run["patterns"].items()}
            ),
            "optimizer": self._counted(),
            "compile_seconds": self.programs.seconds,
            "compile_cache": self.programs.cache.answer,
            "bytes": self.programs.ledger.facts(),
        }

    def _counted(self) -> dict[str, float] | None:
        """Return the optimizer's counts, or None: a step that failed may have deleted its donated state."""
        state = self.run["opt"]
        deleted = any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
        return self.optimizer.facts(state) if "facts" in self.needs and not deleted else None

    def _mode(self) -> Any:
        return Mode(self.precision)
