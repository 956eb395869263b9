"""Memory that a forward pass keeps for the backward pass on the pretend device, in the process of `conftest.py`."""

from typing import Any

import engines
import small
import torch

from accelerator import device
from suite.projection import memory
from suite.settings import configure


def measure(cases: list[tuple[str, list[str]]], precision: str) -> list[tuple[int, int]]:
    """Return the bytes that a pass of each task with overrides keeps, and the estimate."""
    return [measure_task(task, [*options, f"precision={precision}"]) for task, options in cases]


def measure_task(task: str, options: list[str]) -> tuple[int, int]:
    """Return the bytes that a pass keeps, master weights apart, and the estimate of activations and copies."""
    run = configure.resolve_training([f"task={task}", *options, "threads=1", "device=cuda"])
    with device.Tensors():
        engine: Any = engines.engine(run, small.make_small(run))
        masters = {_storage(value).data_ptr() for value in engine.model.parameters()}
        storages: dict[int, torch.UntypedStorage] = {}

        def pack(value: torch.Tensor) -> torch.Tensor:
            if (storage := _storage(value)).data_ptr() not in masters:
                storages[storage.data_ptr()] = storage
            return value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            engine._evaluate(engine._micro(engine.task.batch("train", 0, 0)), (0, 0), observe=None)
    estimated = memory.estimate_memory(run, engine.task)
    copies = estimated["parameters"] - 8 * sum(value.numel() for value in engine.model.parameters())
    return sum(storage.nbytes() for storage in storages.values()), estimated["activations"] + copies


def _storage(value: torch.Tensor) -> torch.UntypedStorage:
    """Return the memory of a tensor's values, which the pretend device holds on the CPU."""
    held = device.copy_to_host(value.detach())
    return device.copy_to_host(held).untyped_storage()
