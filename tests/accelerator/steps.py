"""Steps on the pretend device and on the CPU, in the process of `conftest.py`."""

import traceback
from typing import Any

import engines
import numpy as np
import small
import torch
from torch.utils._pytree import tree_leaves

from accelerator import device, images
from suite.contract import Generates, SendsBytes
from suite.settings.run import Run

# optimizer and its settings, task or None for the tiny one, its form in small.py, precision
Case = tuple[str, str | None, int, str]


def measure(cases: dict[str, Case], steps: int) -> dict[str, dict[str, Any]]:
    """Return what `compare` finds of each case, or {"error": the traceback}."""
    found = {}
    for name, case in cases.items():
        try:
            found[name] = compare(case, steps)
        except Exception:  # of one case
            found[name] = {"error": traceback.format_exc()}
    return found


def compare(case: Case, steps: int) -> dict[str, Any]:
    """Make the same steps on the device and on the CPU.

    Returns:
        waits: of the host in each step on the device, by line of the suite.
        wide: number of operations with arrays in float64, by line of the suite.
        summed: number of products of narrow matrices that were summed in float32.
        gap: largest difference of weights on the device and on the CPU.
        share: the norm of all differences, over that of the weights' movement on the CPU.
        elsewhere: names of the optimizer's entries of state that are arrays, but not on the device.
        kinds: the types of its floating-point state.
    """
    device.summed.clear()
    device.wide.clear()
    with device.Tensors():
        engine, waits = train(describe(case, "cuda"), steps)
        state = engine.optimizer.state
        kept = {f"{key}.{name}": value for key, held in state.items() for name, value in held.items()}
        arrays = {name: [v for v in tree_leaves(kept[name]) if isinstance(v, torch.Tensor)] for name in kept}
        reached = engines.weights(engine)
    expected = engines.weights(train(describe(case, "cpu"), steps)[0])
    started = engines.weights(train(describe(case, "cpu"), 0)[0])
    moved = {name: value - started[name] for name, value in expected.items()}
    return {
        "waits": waits,
        "wide": dict(+device.wide),
        "summed": device.summed.total(),
        "gap": engines.gap(reached, expected),
        "share": norm({name: value - reached[name] for name, value in expected.items()}) / norm(moved),
        "elsewhere": [name for name, held in arrays.items() if any(not isinstance(v, device.OnDevice) for v in held)],
        "kinds": sorted({str(v.dtype) for held in arrays.values() for v in held if v.is_floating_point()}),
    }


def norm(values: dict[str, np.ndarray]) -> float:
    """Return the Euclidean norm of all values together."""
    return float(np.sqrt(sum(np.square(value, dtype=np.float64).sum() for value in values.values())))


def compare_bytes(directory: str) -> dict[str, Any]:
    """Train on the device from photographs as bytes, and on the CPU from normalised ones.

    Returns:
        As `compare` does: gap and waits; and whether the engine took bytes.
    """
    form = [*small.TASKS["resnet50"][1], "data=folder"]
    runs = {
        place: small.small("resnet50", form, f"data_dir={directory}", device=place, deterministic=True)
        for place in ("cuda", "cpu")
    }
    with device.Tensors():
        engine, waits = train(runs["cuda"], 3)
        reached = engines.weights(engine)
    return {
        "gap": engines.gap(reached, engines.weights(train(runs["cpu"], 3)[0])),
        "waits": waits,
        "bytes": engine.takes_bytes,
    }


def measure_large_batches() -> dict[str, Any]:
    """Train on batches that are not small.

    Returns:
        largest: bytes of the largest array.
        waits: of each step.
        pinned: whether the engine's `pin_batch` keeps the values, and they lie in pinned memory.
    """
    form = [*small.TASKS["autoencoder"][0], "batch_size=128"]
    run = small.small("autoencoder", form, "optimizer=sgd", device="cuda")
    batch = small.make_small(run).batch("train", 0, 0, 0, 1)
    with device.Tensors():
        engine, waits = train(run, 2)
        pinned = engine.pin_batch(batch)
    equal = [np.array_equal(pinned[name], value) for name, value in batch.items()]
    places = [torch.from_numpy(value).data_ptr() in device.pinned for value in pinned.values()]
    largest = max(value.nbytes for value in batch.values())
    return {"largest": largest, "waits": waits, "pinned": all(equal) and all(places)}


def describe(case: Case, place: str) -> Run:
    """A deterministic run of a case."""
    optimizer, task, form, precision = case
    changes = {"device": place, "precision": precision, "deterministic": True}
    if task is None:
        return engines.config(optimizer, "torch", clip_norm=1.0, **changes)
    return small.small(task, small.TASKS[task][form], *f"optimizer={optimizer}".split(), **changes)


def train(run: Run, steps: int) -> tuple[Any, list[dict[str, int]]]:
    """Make some steps and evaluate a batch; returns the engine and the waits of each step."""
    task = small.make_small(run)
    convolutions: list[str] = []
    engine, waits = images.make_engine(run, task, convolutions), []
    packed = engine.takes_bytes and isinstance(task, SendsBytes) and task.moments
    make = task.byte_batch if packed else task.batch
    batches = [make("train", 0, step, 0, 1) for step in range(max(steps, 1))]
    engine.warm(batches[0], range(steps), {})
    if engine.plan.warm_start:
        engine.prepare(batches[: engine.plan.warm_start])
    for step, batch in enumerate(batches[:steps]):
        device.waits.clear()
        engine.step(step, batch, {})
        waits.append(dict(device.waits))
    generate = task.generate if isinstance(task, Generates) else None
    list(engine.evaluate([make("valid", 0, 0, 0, 1)], generate))
    if engine.channels_last and run.task.name in small.TASKS:
        assert convolutions and not [call for call in convolutions if "other order" in call]
    return engine, waits
