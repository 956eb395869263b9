"""What the probes of both backends share: see `torch_probe.py` and `jax_probe.py`."""

from collections.abc import Iterable

import numpy as np

from suite import stream
from suite.settings.run import Run

BEFORE, AFTER = 12, 3  # steps before and after a snapshot: many methods do something in every tenth step
FACTORS = (1.0, 0.7, 0.9, 0.4)  # of the learning rate, as a schedule might change it
SHAPES = {0: (), 1: (7,), 2: (8, 6), 3: (3, 4, 5), 4: (6, 4, 3, 3)}  # by number of axes
WIDE = (64, 80)  # states of 8 and fewer bits begin at 4,096 values (bitsandbytes, torchao)


def choose_shapes(axes: Iterable[int]) -> dict[str, tuple[int, ...]]:
    """Return shapes of small parameters by name: for each number of axes one, and one of more than 4,096 values."""
    shapes: dict[str, tuple[int, ...]] = {
        f"axes{count}": SHAPES.get(count, (2,) * count) for count in sorted(set(axes))
    }
    return shapes | {"wide": WIDE}


def draw_normal(name: str, step: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return normal numbers, float32, which no global generator draws."""
    return stream.normal(np, (0, step), name, np.arange(np.prod(shape, dtype=int))).reshape(shape)


def varies_rate(run: Run) -> bool:
    """Return whether a run's schedule changes the learning rate."""
    return run.schedule.shape != "constant" or bool(run.schedule.warmup)


def describe_error(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
