"""Ratios inside one process: candidates take turns, so that whatever else the machine does hits them alike."""

import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

ONCE = "BENCH_ONCE" in os.environ  # one round, to see that a benchmark runs; whatever else is running


def check_limit(kept: bool, said: object = "") -> None:
    """Fail if a limit of speed is missed; one round decides nothing."""
    assert kept or ONCE, said


def interleaved(
    candidates: dict[str, Callable[[], Any]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each candidate in each round, after `warmup` rounds that are thrown away.

    With `clock=time.process_time` they are the processor's, which others on the machine hardly lengthen: for candidates
    that compute all the time, on equally many threads.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(warmup + (1 if ONCE else rounds)):
        for name, call in candidates.items():
            began = clock()
            call()
            if number >= warmup:
                seconds[name].append(clock() - began)
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, base: str) -> dict[str, float]:
    """Median of the rounds' ratios, with the smallest and the largest."""
    each = [a / b for a, b in zip(seconds[name], seconds[base], strict=True)]
    return {"median": statistics.median(each), "least": min(each), "most": max(each)}


def p99(values: list[float]) -> float:
    """Return the 99th percentile; of few rounds, nearly the slowest."""
    return values[0] if len(values) == 1 else statistics.quantiles(values, n=100, method="inclusive")[98]


def memory(engine: Any) -> float:
    """Bytes of an optimizer's state for each byte of the parameters, after steps that have filled it."""
    jax = hasattr(engine, "run")
    params = list((engine.run["params"] if jax else engine.named).values())
    state = engine.run["opt"] if jax else engine.optimizer.state
    return _held(state, {id(value) for value in params}) / sum(value.nbytes for value in params)


def peak(engine: Any, call: Callable[[], Any]) -> float:
    """Most bytes that a step holds beside what stays, for each byte of the parameters.

    In torch as its allocator on a GPU or its profiler on a CPU sees them come and go, in jax what the largest of the
    engine's programs asks for.
    """
    if hasattr(engine, "run"):
        programs = [program for program, _ in engine.programs.compiled.values()]
        most = max(program.memory_analysis().temp_size_in_bytes for program in programs)
        return most / sum(value.nbytes for value in engine.run["params"].values())
    import torch

    size = sum(value.nbytes for value in engine.named.values())
    if engine.device.type == "cuda":
        before = torch.cuda.memory_allocated(engine.device)
        torch.cuda.reset_peak_memory_stats(engine.device)
        call()
        return (torch.cuda.max_memory_allocated(engine.device) - before) / size
    return peak_bytes(call) / size


def peak_bytes(call: Callable[[], Any]) -> int:
    """Most bytes that torch holds on the CPU during a call, beside those before."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    # `found.events()` leaves out what an operation itself has asked for
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes, initial=0))


def _held(value: Any, seen: set[int]) -> int:
    """Bytes of all arrays that hang on a value: rivals keep theirs in objects of their own."""
    if id(value) in seen or isinstance(value, type) or callable(value):
        return 0
    seen.add(id(value))
    if hasattr(value, "nbytes"):
        return value.nbytes
    if isinstance(value, Mapping):
        parts = list(value.values())
    else:
        parts = value if isinstance(value, list | tuple) else list(getattr(value, "__dict__", {}).values())
    return sum(_held(part, seen) for part in parts)
