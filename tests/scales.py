"""Each task at gpu and paper scale with the recipe that it composes, made small enough for a test.

`SHRUNK` says what is made smaller: networks, images and batches, by settings of the task. Optimizer, schedule and
learning rate stay the recipe's, with two exceptions that `settings` makes: SGD's learning rate follows the batch in
proportion (Goyal et al. 2017, section 2.1), and where the warm-up is longer than the test, the whole schedule is
compressed. Data are generated and written in the task's real format.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from engines import change

from suite.settings import configure
from suite.settings.run import Run

STEPS = 50
SCALES = ("gpu", "paper")
HERE = ("device=cpu", "precision=float32")  # CPUs without instructions for bfloat16 are slow in it
LINEAR = ("sgd", "shampoo")  # their learning rate is proportional to the batch; Shampoo grafts SGD's step size

_NARROW_RESNET = ["width=8", "blocks=[1,1,1,1]", "image_size=32", "batch_size=64", "bn_group=32", "eval_batch_size=64"]
_CAFFENET = ["width=24", "hidden=256", "image_size=67", "batch_size=32", "eval_batch_size=64", "head=1000"]
_BERT = [
    *("layers=2", "hidden=64", "heads=2", "intermediate=128", "positions=64", "sequence=32", "predictions=6"),
    *("batch_size=32", "eval_batch_size=64"),
]
_TRANSFORMER = ["depth=1", "width=32", "heads=4", "feed_forward=64", "batch_size=16", "eval_batch_size=16"]
_FRNN = [
    *("dense=16", "hidden=48", "batch_size=16", "eval_batch_size=10", "length=32"),
    "filters=16",
    *("sources.archive.options.dt=0.005", "sources.archive.options.shortest=0"),
]
SHRUNK: dict[str, list[str]] = {
    "autoencoder": ["widths=[784,100,50,10]", "batch_size=250", "eval_batch_size=250"],
    "bert": _BERT,
    "caffenet": _CAFFENET,
    "cifar10": ["width=6", "blocks=[1,1,1,1]", "batch_size=64", "bn_group=64", "eval_batch_size=64"],
    "dlrm": ["eval_batch_size=500", "limit=10000"],
    "frnn": _FRNN,
    "resnet50": _NARROW_RESNET,
    "transformer": [*_TRANSFORMER, "extra=2", "beam=1"],
}


def _images(folder: Path) -> None:
    from written import write_jpeg

    write_jpeg(folder, train=320, valid=64)


def _cifar(folder: Path) -> None:
    from suite.tasks.cifar10 import shapes

    shapes.write_splits(folder, train=640, valid=64)


def _strokes(folder: Path) -> None:
    from suite.tasks._data import idx
    from suite.tasks.autoencoder import curves

    images = curves.make(train=2000, valid=250)
    for split, count in (("train", 2000), ("valid", 250)):
        pixels = np.rint(255 * images.read(split, np.arange(count))).astype(np.uint8)
        header = np.array([2051, count, 28, 28], ">u4").tobytes()
        (folder / idx.IMAGES[split]).write_bytes(header + pixels.tobytes())


def _clicks(folder: Path) -> None:
    from suite.tasks.dlrm import clicks, criteo

    (folder / "raw").mkdir()
    clicks.write_splits(folder / "raw", train=8192, valid=1000)
    criteo.prepare(folder / "raw", folder / "made")


def _shots(folder: Path) -> None:
    from written import write_shots

    from suite.tasks.frnn import simulated

    source = simulated.make(machines=["near"], shots=40, radii=64, train_share=0.75)
    write_shots(folder, "near", source.shots("near"), source.channels, dt=0.005)


def _records(folder: Path) -> None:
    from written import generate_documents, write_documents

    from suite.tasks.bert import preparation

    (folder / "text" / "AA").mkdir(parents=True)
    write_documents(folder / "text" / "AA" / "wiki_00", generate_documents(150))
    options = {"sequence": 32, "predictions": 6, "vocabulary": 500, "duplicates": 2, "valid": 0.2}
    preparation.prepare(folder / "text", folder / "made", next_sentence=True, **options)


def _corpus(folder: Path) -> None:
    from suite.tasks.transformer import preparation
    from suite.tasks.transformer.grammar import Grammar

    (folder / "text").mkdir()
    pairs = Grammar(valid=16)
    for split, rows in (("train", 1000), ("valid", 16), ("test", 16)):
        sides = pairs.read("train" if split == "train" else "valid", np.arange(rows))
        for language, side in zip(("en", "fr"), sides, strict=True):
            (folder / "text" / f"{split}.{language}").write_text("".join(f"{line}.\n" for line in pairs.text(side)))
    preparation.prepare(folder / "text", folder / "made", vocabulary=300, longest=250, ratio=3.0)


WRITERS: dict[str, Callable[[Path], None]] = {
    "autoencoder": _strokes,
    "bert": _records,
    "caffenet": _images,
    "cifar10": _cifar,
    "dlrm": _clicks,
    "frnn": _shots,
    "resnet50": _images,
    "transformer": _corpus,
}


def write(task: str, folder: Path) -> Path:
    """Generated data in the task's real format; returns what `data_dir=` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    WRITERS[task](folder)
    return folder / "made" if (folder / "made").exists() else folder


def settings(task: str, scale: str, data: Path, *overrides: str) -> Run:
    """Return the configuration of a shrunk run of STEPS updates, with the recipe that the scale composes.

    The run still has the recipe's number of steps, unless the recipe's warm-up is longer than STEPS: then the whole
    schedule is compressed to STEPS, and the warm-up in proportion.
    """
    common = [f"task={task}", f"scale={scale}", f"data_dir='{data}'", *HERE, "log_every=1", *overrides]
    small = [f"task.{option}" for option in SHRUNK[task]]
    if task == "frnn":
        small.append(f"task.sources.archive.options.cache_dir='{data.parent / 'cache'}'")
    published = configure.resolve(common)
    run = configure.resolve_training([*common, "accumulate=1", *small])
    changes: dict[str, Any] = {}
    if run.optimizer.name in LINEAR:
        rate = run.optimizer.options()["lr"]
        changes["optimizer.lr"] = rate * run.task.batch_size / published.task.batch_size
    schedule = run.schedule
    if schedule.warmup > STEPS:
        share = STEPS / run.max_steps
        changes |= {"schedule.warmup": max(1, round(share * schedule.warmup)), "max_steps": STEPS}
        places = {"schedule.begin": schedule.begin, "schedule.end": schedule.end}
        changes |= {key: share * value for key, value in places.items() if value}
    return change(run, changes)
