"""Ratios inside one process: candidates take turns, so that whatever else the machine does hits them alike."""

import statistics
import time
from collections.abc import Callable
from typing import Any


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
    for number in range(warmup + rounds):
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
