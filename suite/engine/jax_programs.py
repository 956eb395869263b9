"""Compiled programs of the jax engine: lowered over the mesh, compiled two at a time, counted when they run."""

import os
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from suite.comm.transport import Entry, Ledger
from suite.comm.transport.jax import AXIS, Transport
from suite.engine.jax_kept import KEPT, Key, is_same, make_key
from suite.engine.jax_sums import check_sums

CACHE_EVENTS = {"/jax/compilation_cache/cache_hits": "hit", "/jax/compilation_cache/cache_misses": "miss"}
# XLA would combine independent all-reduces into one, which waits for the last gradient: the suite makes the buckets
OPTIONS = {"cpu": {"xla_disable_hlo_passes": "cpu-all-reduce-combiner"}}
# precision of products of float32 arrays; with bfloat16, those are statistics and optimizers
MATMUL = {"float32": "float32", "float64": "float32", "tf32": "tensorfloat32", "bfloat16": "float32"}

PENDING = 256  # calls whose checksums may stay on the device before they are added up


class Mode:
    """A context that sets jax's thread-local precision switches.

    Args:
        precision: as in `precision=`.
    """

    def __init__(self, precision: str):
        self.contexts = jax.enable_x64(precision == "float64"), jax.default_matmul_precision(MATMUL[precision])

    def __enter__(self) -> None:
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self.contexts):
            context.__exit__(*error)


class Lowered(NamedTuple):
    """A program that is not compiled yet.

    Attributes:
        program: what `jax.jit(…).lower(…)` returns.
        sends: ledger entries of each call.
        key: of the compiled program in `KEPT`; None if it cannot be kept.
    """

    program: Any
    sends: list[Entry]
    key: Key | None


class Compiled(NamedTuple):
    """A program that can be called, and the ledger entries of each call."""

    program: Any
    sends: list[Entry]


class Programs:
    """One engine's compiled programs, by key.

    Args:
        mesh: the devices that run them.
        transport: makes a transport for each trace.
        mode: makes the context to compile in.
        narrow: whether the model trains in bfloat16, and sums in it are rejected.
    """

    def __init__(
        self,
        mesh: Mesh,
        transport: Callable[[], Transport],
        mode: Callable[[], AbstractContextManager[Any]],
        *,
        narrow: bool = False,
    ):
        self.mesh, self.transport, self.mode, self.narrow = mesh, transport, mode, narrow
        self.compiled: dict[Any, Compiled] = {}
        self.ledger, self.seconds, self.cache = Ledger(), 0.0, Cache()
        self.exchanged = np.zeros((len(mesh.local_devices), 2, mesh.size), np.uint32)
        self.pending = list[jax.Array]()

    def __contains__(self, name: Any) -> bool:
        return name in self.compiled

    def __call__(self, name: Any, *arguments: Any) -> Any:
        """Run a program, and add what it sends to the ledger."""
        program, sends = self.compiled[name]
        self.ledger.add(sends)
        result, checksums = program(*arguments)
        if self.mesh.size > 1:
            self.pending.append(checksums)
        if len(self.pending) == PENDING:
            self.checksums()
        return result

    def checksums(self) -> np.ndarray:
        """Return checksums of what this process's devices have sent and received, (devices, 2, world) uint32."""
        for value in self.pending:
            shards = sorted(value.addressable_shards, key=lambda shard: shard.index[0].start or 0)
            self.exchanged = self.exchanged + np.concatenate([np.asarray(shard.data) for shard in shards])
        self.pending = []
        return self.exchanged

    def lower(
        self, body: Any, arguments: tuple[Any, ...], specs: tuple[Any, ...], out: Any, *, donate: bool = True
    ) -> Lowered | Compiled:
        """Lower `body(*arguments, transport=…)` over the mesh, or find the program that an earlier engine compiled.

        Args:
            body: the function that every device runs.
            arguments: shapes, types and shardings of its arguments.
            specs: partition specs of the arguments.
            out: partition spec of the result.
            donate: whether the result may use the first argument's memory.

        Raises:
            UserError: it adds many terms in bfloat16.
        """
        key = self._make_key(body, arguments, specs, out, donate)
        if kept := KEPT.find(key):
            return kept
        transport = self.transport()

        def checked(*arguments: Any) -> Any:
            result = body(*arguments, transport=transport)
            return result, transport.checksums()

        results = (out, PartitionSpec(AXIS))
        mapped = jax.shard_map(checked, mesh=self.mesh, in_specs=specs, out_specs=results, check_vma=False)
        traced = jax.jit(mapped, donate_argnums=0 if donate else ()).trace(*arguments)
        if self.narrow:
            check_sums(traced.jaxpr)
        same = is_same(key, self._make_key(body, arguments, specs, out, donate))
        return Lowered(traced.lower(), transport.entries, key if same else None)

    def _make_key(self, body: Any, arguments: Any, specs: Any, out: Any, donate: bool) -> Key | None:
        return make_key(body, (arguments, specs, out), donate, self.transport, self.mesh.devices, self.narrow)

    def compile(self, lowered: Mapping[Any, Lowered | Compiled]) -> None:
        """Compile lowered programs, two at a time, so that they can be called by key."""
        options = OPTIONS.get(self.mesh.devices.flat[0].platform) if self.mesh.size > 1 else None

        def compile_one(item: Lowered | Compiled) -> Compiled:
            if isinstance(item, Compiled):
                return item
            with self.mode():  # the switches are thread-local: each worker thread sets them
                program = item.program.compile(compiler_options=options)
            return Compiled(program, item.sends)

        with ThreadPoolExecutor(2) as pool:
            programs = pool.map(compile_one, lowered.values())
            self.compiled |= dict(zip(lowered, programs, strict=True))
        for name, item in lowered.items():
            if isinstance(item, Lowered):
                KEPT.keep(item.key, self.compiled[name])
            else:
                self.cache.answers.add("hit")


class Cache:
    """Answers of the cache of compiled programs since an engine was made; a program that was kept is a hit."""

    def __init__(self):
        self.answers = set[str]()
        LISTENING.add(self)

    @property
    def answer(self) -> str | None:
        """`miss` if a program was not in it, `hit` if all were; None if it was not asked."""
        return "miss" if "miss" in self.answers else "hit" if self.answers else None


def _note_cache_event(event: str, **_: Any) -> None:
    if event in CACHE_EVENTS:
        for cache in list(LISTENING):
            cache.answers.add(CACHE_EVENTS[event])


# jax has no way to remove a listener; one that referred to an engine would keep it and all its programs in memory
LISTENING: "weakref.WeakSet[Cache]" = weakref.WeakSet()
jax.monitoring.register_event_listener(_note_cache_event)


def enable_cache() -> None:
    """Keep compiled programs between processes, where the user has not said otherwise."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "suite" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
