"""Copies of batches to the torch engine's device."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from suite.contract import Batch

Tree = dict[str, Tensor]


class Copies:
    """Copies arrays to a device; a GPU copies while it still computes earlier steps.

    A GPU gets them in a second stream, from pinned memory: for a large array in other memory, the host would wait
    until the GPU has done the work that it was given before.

    Args:
        device: of the engine.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def pin_batch(self, batch: Batch) -> Batch:
        """Return the batch with arrays in pinned memory if the device is a GPU; threads of the loader call this."""
        if not self.stream:
            return batch
        arrays = {name: value for name, value in batch.items() if isinstance(value, np.ndarray)}
        return batch | {name: torch.from_numpy(value).pin_memory().numpy() for name, value in arrays.items()}

    def copy_batch(self, arrays: Mapping[str, np.ndarray]) -> Tree:
        """Return arrays on the device; arrays that are not in pinned memory are copied to such memory first."""
        tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
        if not self.stream:
            return {name: value.to(self.device) for name, value in tensors.items()}
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            sent = {name: value.pin_memory().to(self.device, non_blocking=True) for name, value in tensors.items()}
        current.wait_stream(self.stream)
        for value in sent.values():
            value.record_stream(current)  # its memory is not reused before the current stream is done with it
        return sent
