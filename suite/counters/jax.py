"""Counts of a run in jax: its compilations, and the operations of its compiled programs."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

COMPILED = "/jax/core/compile/backend_compile_duration"
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
# they run nothing
FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")
OPERATION = re.compile(r"^\s+(?:ROOT )?%?\S+ = .*?([a-z][a-z-]*)(?:-start)?\(")

compilations: Counter[str] = Counter()
# jax has no way to remove a listener
jax.monitoring.register_event_duration_secs_listener(lambda event, duration_secs, **_: compilations.update([event]))


def count_work(engine: Any, warm: Callable[[], None], steps: Callable[[], None]) -> dict[str, Any]:
    """Run steps, and count.

    Args:
        engine: of `suite.engine.jax`.
        warm: compiles the engine's programs.
        steps: makes the steps.

    Returns:
        `compilations` of any program, and how many of them during the steps; `synchronisations`: copies of arrays to
        the host during the steps; and `programs`, see `counts_of`.
    """
    before = compilations[COMPILED]
    warm()
    warmed = compilations[COMPILED]
    with count_copies() as copied:
        steps()
    return {
        "compilations": compilations[COMPILED] - before,
        "compilations_in_steps": compilations[COMPILED] - warmed,
        "synchronisations": copied.total(),
        "programs": {
            " ".join(_name(key).split()): counts_of(program) for key, (program, _) in engine.programs.compiled.items()
        },
    }


def counts_of(program: Any) -> dict[str, int]:
    """Return the counts of a compiled program.

    Args:
        program: a `jax.stages.Compiled`.

    Returns:
        `flops` and `bytes` (read and written) by XLA's cost model; `kernels`: operations that its entry runs; `loops`
        and `collectives` in its text; `temporary`: bytes of memory beside arguments and results.
    """
    costs, text = program.cost_analysis(), program.as_text()
    entry = text[text.index("\nENTRY ") :] if "\nENTRY " in text else text
    operations = Counter(match[1] for line in entry.splitlines() if (match := OPERATION.match(line)))
    everywhere = Counter(match[1] for line in text.splitlines() if (match := OPERATION.match(line)))
    return {
        "flops": int(costs.get("flops", 0)),
        "bytes": int(costs.get("bytes accessed", 0)),
        "kernels": sum(calls for name, calls in operations.items() if name not in FREE),
        "loops": everywhere["while"],
        "collectives": sum(everywhere[name] for name in COLLECTIVES),
        "temporary": int(program.memory_analysis().temp_size_in_bytes),
    }


@contextmanager
def count_copies() -> Iterator[Counter[str]]:
    """Count the copies of arrays to the host inside."""
    array: Any = type(jnp.zeros(()))
    original, counter = array._value, Counter[str]()

    def counted(self: Any) -> Any:
        counter["copies"] += 1
        return original.fget(self)

    array._value = property(counted)
    try:
        yield counter
    finally:
        array._value = original


def _name(key: Any) -> str:
    """A program's key in words."""
    return " ".join(map(_name, key)) if isinstance(key, tuple) else str(key)
