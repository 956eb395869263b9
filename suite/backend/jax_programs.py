"""Compiled programs of the jax engine: lowered over the mesh, compiled two at a time, counted when they run."""

import functools
import os
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from suite.comm.transport import Entry, Ledger
from suite.comm.transport.jax import Transport

CACHE_EVENTS = {"/jax/compilation_cache/cache_hits": "hit", "/jax/compilation_cache/cache_misses": "miss"}
# else XLA makes one all-reduce of all that are independent, and it waits for the last gradient: buckets are made here
OPTIONS = {"cpu": {"xla_disable_hlo_passes": "cpu-all-reduce-combiner"}}
MATMUL = {"float32": "float32", "float64": "float32", "tf32": "tensorfloat32", "bfloat16": "bfloat16"}


class Mode:
    """Sets jax's thread-local switches for the run's own calls only."""

    def __init__(self, precision: str):
        self.contexts = jax.enable_x64(precision == "float64"), jax.default_matmul_precision(MATMUL[precision])

    def __enter__(self) -> None:
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self.contexts):
            context.__exit__(*error)


class Lowered(NamedTuple):
    """A program that is not compiled yet, and what each call of it sends."""

    program: Any
    sends: list[Entry]


class Programs:
    """One engine's programs, by key.

    Args:
        mesh: the devices they run on.
        transport: makes one for a trace.
        mode: makes the context they are compiled in.
    """

    def __init__(self, mesh: Mesh, transport: Callable[[], Transport], mode: Callable[[], AbstractContextManager[Any]]):
        self.mesh, self.transport, self.mode = mesh, transport, mode
        self.compiled: dict[Any, tuple[Any, list[Entry]]] = {}
        self.ledger, self.seconds, self.cache_events = Ledger(), 0.0, list[str]()
        LISTENING.add(self)

    def __contains__(self, name: Any) -> bool:
        return name in self.compiled

    def __call__(self, name: Any, *arguments: Any) -> Any:
        """Run one, and enter what it sends."""
        program, sends = self.compiled[name]
        self.ledger.add(sends)
        return program(*arguments)

    def lower(
        self, body: Any, arguments: tuple[Any, ...], specs: tuple[Any, ...], out: Any, *, donate: bool = True
    ) -> Lowered:
        """`body(*arguments, transport=…)` as every device runs it, with the arguments' specs and the result's.

        The first argument's memory is used for the result, unless it may not be (`donate`).
        """
        transport = self.transport()
        mapped = jax.shard_map(
            functools.partial(body, transport=transport), mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False
        )
        program = jax.jit(mapped, donate_argnums=0 if donate else ()).lower(*arguments)
        return Lowered(program, transport.entries)

    def compile(self, lowered: Mapping[Any, Lowered]) -> None:
        """Make these callable."""
        options = OPTIONS.get(self.mesh.devices.flat[0].platform) if self.mesh.size > 1 else None

        def one(item: Lowered) -> Any:
            with self.mode():  # switches are thread-local: a worker thread must set them itself
                return item.program.compile(compiler_options=options)

        with ThreadPoolExecutor(2) as pool:
            made = pool.map(one, lowered.values())
            self.compiled |= {
                name: (program, item.sends) for (name, item), program in zip(lowered.items(), made, strict=True)
            }


def _heard(event: str, **_: Any) -> None:
    if event in CACHE_EVENTS:
        for programs in list(LISTENING):
            programs.cache_events.append(CACHE_EVENTS[event])


# jax forgets no listener: one that belonged to an engine would keep it, and all its programs, for ever
LISTENING: "weakref.WeakSet[Programs]" = weakref.WeakSet()
jax.monitoring.register_event_listener(_heard)


def enable_cache() -> None:
    """Keep compiled programs between processes, where the user has not said otherwise."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "suite" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
