"""Ratios inside one process: candidates take turns, so that whatever else the machine does hits them alike."""

import statistics
import time
from collections.abc import Callable
from typing import Any


def interleaved(candidates: dict[str, Callable[[], Any]], rounds: int, warmup: int = 1) -> dict[str, list[float]]:
    """Seconds of each candidate in each round, after `warmup` rounds that are thrown away."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(warmup + rounds):
        for name, call in candidates.items():
            began = time.perf_counter()
            call()
            if number >= warmup:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, base: str) -> dict[str, float]:
    """Median of the rounds' ratios, with the smallest and the largest."""
    each = [a / b for a, b in zip(seconds[name], seconds[base], strict=True)]
    return {"median": statistics.median(each), "least": min(each), "most": max(each)}
