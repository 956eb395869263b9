"""`suite plan` estimates the memory of activations in bfloat16 as a GPU would need it."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("accelerator kept")
# with dropout: without it, a GPU's attention is one kernel, which the pretend device does not have
FEW = ["task.sources.hmm.options={train: 64, valid: 24}"]  # sequences
LONG = ["task.heads=8", "task.sequence=128", "task.positions=128"]
CASES = [
    # the estimate counts the copy of the first matrix, which no pass keeps
    ("autoencoder", ["task.batch_size=2000", "task.sources.curves.options={train: 2000, valid: 50}"]),
    ("bert", ["task.dropout=0.1", "task.layers=1", *FEW]),
    ("bert", ["task.dropout=0.1", "task.layers=1", "task.batch_size=8", *FEW, *LONG]),
    ("caffenet", ["task.batch_size=16"]),
    ("cifar10", ["task.batch_size=32", "task.blocks=[1,1,1,1]"]),
    ("dlrm", ["task.batch_size=128"]),
    ("dlrm", ["task.batch_size=128", "task.variant=v2"]),
    ("resnet50", ["task.data=shapes", "task.batch_size=32"]),
    ("transformer", ["task.batch_size=16", "task.dropout=0.1", "task.depth=1"]),
]


def test_activations_in_bfloat16_are_what_torch_keeps(on_device: Callable[..., Any]) -> None:
    for (task, options), (kept, estimated) in zip(
        CASES, on_device("accelerator.kept.measure", CASES, "bfloat16"), strict=True
    ):
        assert estimated == pytest.approx(kept, rel=0.03), (task, options)
