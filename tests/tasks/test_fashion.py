"""Fashion-MNIST as a source of images: what is read, where it is found, and what may be wrong with it."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from idxes import write_set
from pictures import read
from PIL import Image
from scipy.special import xlogy

from suite.contract import UserError
from suite.launch.job import make_task
from suite.settings import configure
from suite.tasks import autoencoder, resnet50
from suite.tasks._data import fashion, idx
from suite.tasks._data.fashion import Fashion
from suite.tasks._data.public import FASHION_MNIST, MNIST
from suite.tasks.autoencoder import files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_set(tmp_path, labelled=True, train=40, valid=20)
    return tmp_path


@pytest.fixture(scope="session")
def genuine() -> Path:
    """Find Fashion-MNIST on this machine: fetched, or as Debian's package."""
    try:
        return FASHION_MNIST.find(None)
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.quick
def test_images_are_enlarged_normalised_and_equal_in_any_batch(folder: Path) -> None:
    stored = np.random.default_rng(40).integers(0, 256, (40, 28, 28), np.uint8)
    for size in (28, 32, 61):
        source = Fashion(size, data_dir=str(folder))
        images, labels = read(source, "train", np.arange(40))
        assert images.shape == (40, 3, size, size) and images.dtype == np.float32
        assert labels.dtype == np.int32 and labels.tolist() == [row % 10 for row in range(40)]
        shown = Image.fromarray(stored[7].astype(np.float32)).resize((size, size), Image.Resampling.BILINEAR)
        expected = (np.asarray(shown) - stored.mean()) / stored.std()
        np.testing.assert_allclose(images[7, 2], expected, atol=1e-4)
        np.testing.assert_array_equal(read(source, "train", [7])[0][0], images[7])


def test_a_part_of_the_validation_images_is_always_the_same(folder: Path) -> None:
    whole, part, smaller = (Fashion(28, data_dir=str(folder), valid=count) for count in (None, 8, 5))
    assert whole.data.samples["valid"] == 20 and part.data.samples == {"train": 40, "valid": 8}
    assert len({source.data.identity for source in (whole, part, smaller)}) == 3
    assert Fashion(28, data_dir=str(folder), valid=20).data == whole.data
    assert "8 of the 20 images" in part.data.note
    images, labels = read(part, "valid", np.arange(8))
    np.testing.assert_array_equal(read(smaller, "valid", np.arange(5))[0], images[:5])
    every, all_labels = read(whole, "valid", np.arange(20))
    rows = [next(row for row in range(20) if np.array_equal(every[row], image)) for image in images]
    assert len(set(rows)) == 8 and rows != sorted(rows) and all_labels[rows].tolist() == labels.tolist()
    assert fashion.census(folder, valid=8)["valid"] == {str(k): int((labels == k).sum()) for k in range(10)}
    assert files.load_fashion(data_dir=str(folder), valid=8).data.samples == {"train": 40, "valid": 8}
    with pytest.raises(
        UserError, match=r"only 20 validation images, fewer than 21; set task\.sources\.fashion\.options\.valid=20"
    ):
        Fashion(28, data_dir=str(folder), valid=21)


def test_only_published_files_are_called_fashion_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Fashion(28, data_dir=str(folder)).data
    assert found.name == "idx-images" and "not the canonical Fashion-MNIST" in found.note
    assert len(fashion.check(folder)) == 4 and len(autoencoder.check(str(folder), data="fashion")) == 2
    sums = {path.stem: idx.read_file(folder, path.stem)[1] for path in folder.glob("*.gz")}
    monkeypatch.setitem(idx.MD5, "Fashion-MNIST", sums)
    assert fashion.check(folder) == [] and Fashion(28, data_dir=str(folder)).data.name == "Fashion-MNIST"
    assert files.load_fashion(data_dir=str(folder)).data.name == "Fashion-MNIST"
    with pytest.raises(UserError, match="contains files of Fashion-MNIST instead of MNIST"):
        files.load_mnist(data_dir=str(folder))
    assert resnet50.count_recurring(str(folder), data="fashion") == 0


def change_labels(folder: Path, change: int, *, fewer: int = 0) -> None:
    path = folder / "train-labels-idx1-ubyte.gz"
    labels = np.frombuffer(gzip.decompress(path.read_bytes())[8:], np.uint8)[fewer:] + np.uint8(change)
    path.write_bytes(gzip.compress(np.array([2049, len(labels)], ">u4").tobytes() + labels.tobytes()))


def test_files_that_do_not_fit_are_named(folder: Path) -> None:
    change_labels(folder, 1)
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte: label 10 is not in 0 to 9"):
        Fashion(28, data_dir=str(folder))
    change_labels(folder, -1 % 256, fewer=1)
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte: 39 labels of 40 images"):
        Fashion(28, data_dir=str(folder))
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte\.gz: missing"):
        Fashion(28, data_dir=str(folder))
    assert files.load_fashion(data_dir=str(folder)).pixels == 784, "an autoencoder needs no labels"


@pytest.mark.quick
@pytest.mark.parametrize("place", [0, 20, 39], ids=["first", "middle", "last"])
@pytest.mark.parametrize("name", [idx.IMAGES["train"], idx.LABELS["train"]])
def test_a_record_that_is_gone_doubled_or_broken_is_found(folder: Path, name: str, place: int) -> None:
    """The header states the number; with another number there, images and labels differ in theirs.

    If both lose a record, the counts are stated, and the name says that these are not the published files.
    """
    size = 784 if name == idx.IMAGES["train"] else 1

    def change(name: str, size: int, times: int, header: int) -> None:
        path = folder / f"{name}.gz"
        content = gzip.decompress(path.read_bytes())
        start = 16 if "idx3" in name else 8
        records = [content[at : at + size] for at in range(start, len(content), size)]
        records[place : place + 1] = records[place : place + 1] * times
        head = content[:4] + np.array([header], ">u4").tobytes() + content[8:start]
        path.write_bytes(gzip.compress(head + b"".join(records)))

    for times, header, said in ((0, 40, "bytes instead of"), (2, 40, "bytes instead of"), (0, 39, "labels of")):
        before = (folder / f"{name}.gz").read_bytes()
        change(name, size, times, header)
        with pytest.raises(UserError, match=rf"train-(images|labels)-idx.-ubyte.*: [\d,]+ {said}"):
            Fashion(28, data_dir=str(folder))
        (folder / f"{name}.gz").write_bytes(before)
    for each, bytes_each in ((idx.IMAGES["train"], 784), (idx.LABELS["train"], 1)):
        change(each, bytes_each, 0, 39)
    found = Fashion(28, data_dir=str(folder)).data
    assert found.samples["train"] == 39 and "not the canonical" in found.note


@pytest.mark.quick
def test_two_files_of_one_name_must_be_equal(folder: Path) -> None:
    packed = folder / "train-labels-idx1-ubyte.gz"
    plain = folder / "train-labels.idx1-ubyte"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    assert Fashion(28, data_dir=str(folder)).data.samples["train"] == 40
    plain.write_bytes(plain.read_bytes()[:-1] + b"\0")
    with pytest.raises(UserError, match=r"idx1-ubyte: differs from train-labels-idx1-ubyte\.gz"):
        Fashion(28, data_dir=str(folder))


def test_files_are_found_where_they_were_fetched_or_installed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    absent = replace(FASHION_MNIST, package_folder=str(tmp_path / "none"))
    with pytest.raises(
        UserError, match=r"suite data resnet50 --fetch`, `apt install dataset-fashion-mnist`, or set dat"
    ):
        absent.find(None)
    with pytest.raises(UserError, match=r"suite data autoencoder --fetch task.data=mnist`, or set data_dir="):
        MNIST.find(None)
    installed = replace(FASHION_MNIST, package_folder=str(folder))
    assert installed.find(None) == folder
    write_set(absent.folder, labelled=True, train=4)
    assert installed.find(None) == folder, "an incomplete download is not used"
    write_set(absent.folder, labelled=True, train=4, valid=3)
    assert installed.find(None) == absent.folder and installed.find("elsewhere") == Path("elsewhere")


@pytest.mark.parametrize("task", ["resnet50", "caffenet", "autoencoder"])
def test_a_task_is_described_without_the_files(task: str) -> None:
    run = configure.resolve([f"task={task}", "task.data=fashion", "data_dir=nowhere"])
    with pytest.raises(UserError, match="missing; put"):
        make_task(run)
    made = make_task(run, absent=True)
    assert made.data.samples["train"] == 60_000 and made.shapes()
    assert task == "autoencoder" or (10,) in {spec.shape for spec in made.shapes().values()}, "a bias of ten classes"


def test_the_genuine_files(genuine: Path) -> None:
    found = Fashion(data_dir=str(genuine), valid=2000)
    assert found.data.name == "Fashion-MNIST" and found.data.samples == {"train": 60_000, "valid": 2000}
    assert fashion.check(genuine) == []
    assert (found._mean / 255, found._deviation / 255) == pytest.approx((0.2860, 0.3530), abs=1e-4)  # as published
    images, labels = read(found, "valid", np.arange(2000))
    assert abs(images.mean()) < 0.02 and np.bincount(labels, minlength=10).min() > 170
    loaded = files.load_fashion(data_dir=str(genuine), valid=2000)
    image, mean = loaded.read("valid", np.arange(2000)).astype(float), loaded.splits["train"].mean(0) / 255
    naive, floor = (-(xlogy(image, p) + xlogy(1 - image, 1 - p)).sum(1).mean() for p in (mean, image))
    assert f"| {naive:.2f} | {floor:.2f} |" in (Path(files.__file__).parent / "CARD.md").read_text()
