"""Every task made small: one list of overrides for each network or option worth comparing."""

from pathlib import Path
from typing import Any

import engines

from suite import load
from suite.contract import Task
from suite.launch.job import make_task
from suite.settings import configure
from suite.settings.run import Run
from suite.tasks._data.shapes import Shapes
from suite.tasks._images import Classification

SMALL_FRNN = [
    *("batch_size=8", "eval_batch_size=24", "length=16", "filters=4", "dense=8", "hidden=6"),
    "sources.simulated.counts={single: 80, cross: 40, glimpse: 50}",
]
SMALL_BERT = [
    *("layers=2", "hidden=16", "heads=2", "intermediate=32", "sequence=32", "positions=32", "predictions=6"),
    *("batch_size=8", "eval_batch_size=16", "sources.hmm.options={train: 64, valid: 24}"),
]
SMALL_TRANSFORMER = [
    *("depth=1", "width=16", "heads=2", "feed_forward=24", "batch_size=8", "eval_batch_size=8", "extra=2"),
    "sources.grammar.options.valid=20",
]
SMALL_BATCHES = ["batch_size=8", "eval_batch_size=16"]
SMALL_SHAPES = ["sources.shapes.options.train=240", "sources.shapes.options.valid=40"]
SMALL_RESNET = [
    *("data=shapes", "width=4", "bn_group=4", "image_size=32", "batch_size=16", "eval_batch_size=16"),
    "sources.shapes.options.valid=40",
]
SMALL_DLRM = [
    *("batch_size=64", "eval_batch_size=128"),
    "sources.clicks.options={train: 2000, valid: 500}",
]
SMALL_AUTOENCODER = [
    *("batch_size=16", "eval_batch_size=32"),
    *(f"sources.{name}.options={{train: 200, valid: 50}}" for name in ("curves", "faces")),
]
SPARSE = [  # each kind of product; `intervals` so that blocks move in a run of four steps
    ["sparsity=static", "sparse.block=1", "sparse.execution=dense"],
    *(
        ["sparsity=dynamic", "sparse.steps=4", "sparse.share=0.6", *options]
        for options in (
            ["sparse.block=4", "sparse.execution=blocks", "sparse.intervals=4"],
            ["sparse.block=4", "sparse.growth=gradient", "sparse.intervals=4"],
            ["sparse.block=8", "sparse.pattern=balanced", "sparse.intervals=4"],
        )
    ),
]
# One list of overrides for each network or option worth comparing; the first is also trained, resumed and shared out.
# A task without an entry is taken as it is on a laptop, with small batches.
SMALL: dict[str, list[list[str]]] = {
    "autoencoder": [
        ["widths=[784,20,10,5]", *SMALL_AUTOENCODER],
        ["variant=faces", "widths=[625,20,10,5]", *SMALL_AUTOENCODER, "penalty=0.0"],
    ],
    "caffenet": [
        ["width=6", "hidden=8", "image_size=64", *SMALL_BATCHES, *SMALL_SHAPES],
        [
            *("width=6", "hidden=8", "image_size=67", *SMALL_BATCHES, *SMALL_SHAPES),
            *("init=gaussian", "dropout=0.0", "smoothing=0.1"),
        ],
    ],
    "cifar10": [["width=3", "bn_group=4", "sources.shapes.options={train: 80, valid: 20}", *SMALL_BATCHES]],
    "dlrm": [SMALL_DLRM, [*SMALL_DLRM, "variant=v2", "limit=50"], [*SMALL_DLRM, "placement=rows"]],
    "bert": [
        [*SMALL_BERT, "next_sentence=true", "dropout=0.1"],
        SMALL_BERT,
        [*SMALL_BERT, "next_sentence=true", "pre_norm=true", "deep_init=true", "dropout=0.1", "whole_word=true"],
        *([*SMALL_BERT, *options] for options in SPARSE),
    ],
    "frnn": [
        [*SMALL_FRNN, "dropout=0.2", "l2=0.01"],
        [*SMALL_FRNN, "variant=0d", "protocol=glimpse", "glimpse=10"],
        [*SMALL_FRNN, "target=ttd", "activation=none", "protocol=cross"],
    ],
    "resnet50": [
        SMALL_RESNET,
        [*SMALL_RESNET, "smoothing=0.1", "mixup=0.4"],
    ],
    "transformer": [
        [*SMALL_TRANSFORMER, "tying=none", "dropout=0.1", "smoothing=0.1"],
        [*SMALL_TRANSFORMER, "tying=all", "smoothing=0.0", "beam=3", "ambiguity=0.25"],
        [*SMALL_TRANSFORMER, "tying=decoder", "norm=pre", "depth=2"],
    ],
}

TASKS = {name: SMALL.get(name, [SMALL_BATCHES]) for name in sorted(load.find_members("tasks"))}


def small(name: str, options: Any = None, *overrides: str, directory: Path | None = None, **changes: Any) -> Run:
    """A run of a task in one of its small forms, by default the first, with changes at dotted keys."""
    chosen = [f"task.{option}" for option in (TASKS[name][0] if options is None else options)]
    run = configure.resolve_training([f"task={name}", *overrides, *chosen], directory)
    return engines.change(run, changes) if changes else run


def make_small(run: Run) -> Task:
    """The task of a small run, with fewer generated images: a run's take seconds to paint."""
    task = make_task(run)
    if isinstance(task, Classification) and isinstance(task.images, Shapes):
        task.images = Shapes(task.images.size, train=128, valid=32)
    return task
