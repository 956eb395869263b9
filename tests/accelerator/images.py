"""Storage of images on the pretend device and on the CPU, in the process of `conftest.py`."""

from typing import Any

import engines
import small
import torch

from accelerator import device

STEPS = 2  # before the snapshot


def compare(cases: list[tuple[str, int]]) -> dict[str, dict[str, Any]]:
    """Return what `compare_task` finds of each task in one of its forms in small.py."""
    return {f"{task} {form}": compare_task(task, form) for task, form in cases}


def compare_task(task: str, form: int) -> dict[str, Any]:
    """Train, evaluate, and make a step from a snapshot, on the device and on the CPU.

    Returns:
        device, cpu: the names of convolutions, each time one was called; `other order` follows a name if the input or
            the output did not have its channels last.
        stated: the fact `channels_last` on the device and on the CPU.
        gap: largest difference of weights, buffers and logits on the device and on the CPU.
    """
    with device.Tensors():
        calls, found, stated = train(task, form, "cuda")
    cpu_calls, expected, cpu_stated = train(task, form, "cpu")
    gap = max(float((found[name] - expected[name]).abs().max()) for name in expected)
    return {"device": calls, "cpu": cpu_calls, "stated": [stated, cpu_stated], "gap": gap}


def train(task: str, form: int, place: str) -> tuple[list[str], dict[str, torch.Tensor], bool]:
    """Return the calls of convolutions as `compare_task` does, weights and logits, and the fact."""
    options = ["optimizer=sgd", "track=none"]
    run = small.small(task, small.TASKS[task][form], *options, device=place, precision="float64")
    made = small.make_small(run)
    calls: list[str] = []
    engine = make_engine(run, made, calls)
    for step in range(STEPS):
        engine.step(step, made.batch("train", 0, step, 0, 1), {})
    again = make_engine(run, made, calls)
    again.restore(*engine.snapshot())
    again.step(STEPS, made.batch("train", 0, STEPS, 0, 1), {})
    (outputs,) = again.evaluate([made.batch("valid", 0, 0, 0, 1)])
    values = {name: torch.from_numpy(value) for name, value in engines.weights(again).items()}
    return calls, values | {"logits": torch.from_numpy(outputs["logits"])}, again.facts()["channels_last"]


def make_engine(run: Any, task: Any, calls: list[str]) -> Any:
    """Make an engine whose convolutions add themselves to `calls`, with `other order` as `compare_task` says."""
    engine = engines.engine(run, task)

    def note(name: str) -> Any:
        def hook(module: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
            last = all(value.is_contiguous(memory_format=torch.channels_last) for value in (*inputs, output))
            calls.append(name if last else f"{name}, other order")

        return hook

    for name, module in engine.model.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(note(name))
    return engine
