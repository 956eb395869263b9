"""Gradients of the suite's small Transformer while it trains."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from suite.settings import configure

RATE = 1e-3  # of Adam; torch's default


def gradients(seed: int, steps: int) -> Iterator[dict[str, NDArray[np.float64]]]:
    """The gradients of every matrix but the embeddings, which the talk treats apart, after each step.

    Args:
        seed: of weights and batches.
        steps: number of steps.
    """
    node = configure.resolve(["task=transformer"]).task
    task = node.build()
    model = node.make_model("torch", task)
    initial = {name: torch.from_numpy(task.init(seed, name)) for name in task.shapes()}
    model.load_state_dict(initial, assign=True)
    matrices = {name: value for name, value in model.named_parameters() if value.ndim == 2 and "embed" not in name}
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for step in range(steps):
        batch = {name: torch.from_numpy(value) for name, value in task.batch("train", seed, step, 0, 1).items()}
        optimizer.zero_grad()
        outputs, _ = model(batch)
        total, weight = model.loss(outputs, batch)
        (total / weight).backward()
        yield {name: value.grad.double().numpy() for name, value in matrices.items() if value.grad is not None}
        optimizer.step()
