"""Loaders stream: what a data set takes in memory does not grow with what it holds.

Each task's own writer makes a data set and one of eight times the samples; both are opened and read for some batches.
What a sample more may cost is stated in bytes, beside what it takes on disk; what memory maps hold is not counted, as
the system takes it back. bert and transformer are measured in test_bert_text.py and test_transformer_text.py. CIFAR-10
(180 MB) and the autoencoders' images (MNIST 55 MB, FACES 400 MB) are held in memory by design, as their cards say.
"""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from written import write_jpeg, write_shots

from suite.launch.job import make_task
from suite.settings import configure
from suite.tasks import dlrm
from suite.tasks.dlrm import clicks, criteo
from suite.tasks.frnn import simulated
from suite.tasks.frnn.shots import Channels, Shots

BATCHES = 10


def images(folder: Path, samples: int) -> None:
    write_jpeg(folder, train=samples, valid=16, size=96)


def rows(folder: Path, samples: int) -> None:
    raw = folder / "raw"
    raw.mkdir(parents=True)
    clicks.write_splits(raw, train=samples, valid=500)
    criteo.prepare(raw, folder / "made")
    for path in raw.iterdir():
        path.unlink()


def plasmas(folder: Path, samples: int) -> None:
    """Two simulated shots under many numbers, without their profiles, whose text is slow to write."""
    source = simulated.make(machines=["near"], shots=2, radii=4, train_share=0.5)
    few, channels = source.shots("near"), source.channels
    zero = Channels(channels.signals, (), channels.radii)
    both = np.arange(samples) % 2
    starts = np.concatenate([[0], np.cumsum(np.diff(few.starts)[both])])
    values = np.concatenate([few.shot(int(row))[:, : zero.width] for row in both])
    write_shots(folder, "near", Shots("near", values, starts, both == 1, np.arange(samples)), zero, dt=source.dt)


def taken(folder: Path, overrides: list[str]) -> int:
    """Most bytes at once while the task is made and its first training batches are."""
    config = configure.resolve(["optimizer=sgd", *(override.replace("FOLDER", str(folder)) for override in overrides)])
    tracemalloc.start()
    task = make_task(config)
    for index in range(BATCHES):
        task.batch("train", 0, index)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


FOLDER = ["task.data=folder", "data_dir=FOLDER", "task.batch_size=8"]
CASES: dict[str, tuple[Callable[[Path, int], None], int, int, list[str]]] = {
    # what writes it, how many samples, bytes that a sample more may cost, overrides
    "resnet50": (images, 40, 2000, [*FOLDER, "task.image_size=32", "task.bn_group=8"]),
    "caffenet": (images, 40, 2000, [*FOLDER, "task.image_size=64", "task.sources.folder.options.warp=64"]),
    "dlrm": (rows, 5000, 2, ["task.data=criteo", "data_dir=FOLDER/made", "task.batch_size=64"]),
    "frnn": (
        plasmas,
        12,
        2000,
        [
            *("task.data=archive", "task.variant=0d", "data_dir=FOLDER", "task.batch_size=4", "task.length=64"),
            *("task.sources.archive.options.dt=0.005", "task.sources.archive.options.shortest=0"),
            "task.sources.archive.options.cache_dir=FOLDER/cache",
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_memory_does_not_grow_with_the_data(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, samples, bound, overrides = CASES[name]
    monkeypatch.setattr(dlrm, "LARGE", 1000)  # as Criteo's logs are: their order is computed row by row
    peaks, sizes = [], []
    for place, count in enumerate((samples, samples, 8 * samples)):  # the first time also fills caches
        folder = tmp_path / str(place)
        write(folder, count)
        sizes.append(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
        peaks.append(taken(folder, [f"task={name}", *overrides]))
    more = 7 * samples
    each, stored = (peaks[2] - peaks[1]) / more, (sizes[2] - sizes[1]) / more
    assert each < bound < stored / 4, f"a sample more takes {each:.0f} bytes in memory, {stored:.0f} on disk; {peaks}"
