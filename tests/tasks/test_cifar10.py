"""CIFAR-10: published size, both formats, and what may be wrong with their files."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from abstract import check_torch, count_parameters, make_images, trace_jax

from suite.contract import UserError
from suite.tasks._data import augment
from suite.tasks._images.resnet import Architecture
from suite.tasks.cifar10 import binary, shapes


def test_parameters_of_the_published_network() -> None:
    from suite.tasks._images.torch_resnet import ResNet

    at = Architecture((2, 2, 2, 2), 64, 10, 128, bottleneck=False, small=True)
    assert count_parameters(at.shapes()) == 11_173_962
    check_torch(lambda: ResNet(at), at.shapes())


def test_jax_takes_the_published_parameters() -> None:
    from suite.tasks._images.jax_resnet import ResNet

    at = Architecture((2, 2, 2, 2), 64, 10, 8, bottleneck=False, small=True)
    outputs, buffers = trace_jax(ResNet(at), at.shapes(), make_images(8, 32))
    assert outputs["logits"].shape == (8, 10) and len(buffers) == 2 * 20


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(count)
    return draw.integers(0, 256, (count, 3, 32, 32), np.uint8), draw.integers(0, 10, count)


def write(folder: Path, *, python: bool) -> None:
    for split, count in (("train", 25), ("valid", 7)):
        made, labels = images(count)
        if not python:
            binary.write_split(folder, split, made, labels)
            continue
        parts = zip(
            np.array_split(made, len(binary.BATCHES[split])),
            np.array_split(labels, len(binary.BATCHES[split])),
            strict=True,
        )
        for name, (part, label) in zip(binary.BATCHES[split], parts, strict=True):
            batch = {"data": part.reshape(len(part), -1), "labels": label.tolist(), "batch_label": name}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_both_formats_say_the_same(python: bool, inside: bool, tmp_path: Path) -> None:
    folder = tmp_path / ("cifar-10-batches-py" if python else "cifar-10-batches-bin") if inside else tmp_path
    folder.mkdir(exist_ok=True)
    write(folder, python=python)
    data = binary.make(data_dir=str(tmp_path))
    made, labels = images(7)
    shown, found = data.read("valid", np.arange(7), seed=0, numbers=np.arange(7))
    back = shown * np.asarray(binary.STD)[:, None, None] + np.asarray(binary.MEAN)[:, None, None]
    assert np.array_equal(np.rint(255 * back), made) and np.array_equal(found, labels)
    assert data.data.samples == {"train": 25, "valid": 7} and binary.check(str(tmp_path)) == []
    assert sum(binary.census(str(tmp_path))["train"].values()) == 25


@pytest.mark.quick
def test_training_images_are_cut_from_a_black_frame_and_mirrored(tmp_path: Path) -> None:
    write(tmp_path, python=False)
    data = binary.Cifar(tmp_path)
    whole, _ = images(25)
    rows, numbers = np.zeros(40, np.int64), np.arange(40)
    shown, _ = data.read("train", rows, seed=3, numbers=numbers)
    back = np.rint(255 * (shown * np.asarray(binary.STD)[:, None, None] + np.asarray(binary.MEAN)[:, None, None]))
    framed = np.pad(whole[0], ((0, 0), (4, 4), (4, 4)))
    for image, number in zip(back, numbers, strict=True):
        draws = augment.make_generator(3, int(number))
        top, left = int(draws.random() * 9), int(draws.random() * 9)
        cut = framed[:, top : top + 32, left : left + 32]
        assert np.array_equal(image, cut[:, :, ::-1] if augment.draw_flip(draws) else cut)
    again, _ = data.read("train", rows[5:6], seed=3, numbers=numbers[5:6])
    assert np.array_equal(again[0], shown[5]), "a sample looks the same whatever stands beside it"


def test_damaged_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, python=False)
    path = tmp_path / "data_batch_3.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"data_batch_3\.bin: 15,364 bytes are not a multiple"):
        binary.Cifar(tmp_path)
    path.write_bytes(bytes([11]) + whole[1:])
    assert binary.check(str(tmp_path)) == [f"{path}, record 1: label 11 is not in 0 to 9"]
    path.unlink()
    with pytest.raises(UserError, match="all six batches"):
        binary.Cifar(tmp_path)
    with pytest.raises(UserError, match="contains neither"):
        binary.Cifar(tmp_path / "nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError, match="use `suite data cifar10 --fetch`"):
        binary.make(data_dir=None)


@pytest.mark.quick
@pytest.mark.parametrize("place", [0, 2, 4], ids=["first", "middle", "last"])
def test_a_record_that_is_gone_or_doubled_is_counted_and_a_broken_one_is_named(place: int, tmp_path: Path) -> None:
    """Binary records have no number and no checksum: only the count tells, and data with another name."""
    write(tmp_path, python=False)
    path = tmp_path / "data_batch_1.bin"
    records = [path.read_bytes()[start : start + binary.RECORD] for start in range(0, 5 * binary.RECORD, binary.RECORD)]
    for parts, count in (([], 24), ([records[place]] * 2, 26)):
        path.write_bytes(b"".join([*records[:place], *parts, *records[place + 1 :]]))
        found = binary.Cifar(tmp_path).data
        assert found.samples == {"train": count, "valid": 7} and found.name == "cifar10-batches"
    broken = {records[place][:-1]: "not a multiple", records[place] + b"\0": "not a multiple"}
    broken[b"\x0a" + records[place][1:]] = rf"record {place + 1}: label 10 is not in 0 to 9"
    for part, said in broken.items():
        path.write_bytes(b"".join([*records[:place], part, *records[place + 1 :]]))
        with pytest.raises(UserError, match=rf"data_batch_1\.bin.*{said}"):
            binary.Cifar(tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize("python", [False, True])
def test_batches_that_are_copies_or_would_not_be_read_are_refused(python: bool, tmp_path: Path) -> None:
    write(tmp_path, python=python)
    suffix = "" if python else ".bin"
    extra, third, valid = (tmp_path / f"{name}{suffix}" for name in ("data_batch_6", "data_batch_3", "test_batch"))
    extra.write_bytes(third.read_bytes())
    with pytest.raises(UserError, match=r"data_batch_6.*: CIFAR-10 has no such batch"):
        binary.Cifar(tmp_path)
    extra.unlink()
    valid.write_bytes(third.read_bytes())
    with pytest.raises(UserError, match=r"test_batch.*: has the same contents as data_batch_3"):
        binary.Cifar(tmp_path)


@pytest.mark.quick
def test_what_follows_a_python_batch_or_contradicts_it_is_refused(tmp_path: Path) -> None:
    write(tmp_path, python=True)
    path = tmp_path / "data_batch_5"
    path.write_bytes(path.read_bytes() + b"left over")
    assert "9 bytes follow the batch" in binary.check(str(tmp_path))[0]
    batch = {"data": np.zeros((5, 3072), np.uint8), "labels": [1] * 5, "filenames": ["a.png"] * 4}
    path.write_bytes(pickle.dumps(batch, protocol=2))
    assert "4 filenames for 5 labels" in binary.check(str(tmp_path))[0]


@pytest.mark.quick
def test_only_the_published_batches_are_called_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any others are named for what they are, whatever the folder's name."""
    folder = tmp_path / "CIFAR-10"
    folder.mkdir()
    write(folder, python=True)
    found = binary.Cifar(folder).data
    assert found.name == "cifar10-batches" and "checksums" in found.note
    digests = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in binary.MD5}
    monkeypatch.setattr(binary, "MD5", digests)
    known = binary.Cifar(folder).data
    assert known.name == "CIFAR-10" and known.identity == found.identity and known.note == ""


@pytest.mark.quick
@pytest.mark.parametrize(
    "data, labels, said",
    [
        (
            np.full((5, 3072), 0.5, np.float32),
            [1] * 5,
            "data must be whole numbers in 0 to 255, but their type is float32",
        ),
        (np.full((5, 3072), 300), [1] * 5, "data must be whole numbers in 0 to 255"),
        (np.zeros((5, 3072), np.uint8), [256] * 5, "labels must be whole numbers in 0 to 255"),
        (np.zeros((5, 3072), np.uint8), [0.5] * 5, "labels must be whole numbers"),
        (np.zeros((5, 32, 32, 3), np.uint8), [1] * 5, r"data of shape \(5, 32, 32, 3\)"),
        (np.zeros((5, 3072), np.uint8), [1] * 4, r"data of shape \(5, 3072\) and labels of shape \(4,\)"),
    ],
)
def test_pixels_and_labels_that_are_no_bytes_are_refused(
    data: np.ndarray, labels: list[float], said: str, tmp_path: Path
) -> None:
    write(tmp_path, python=True)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({"data": data, "labels": labels}, protocol=2))
    with pytest.raises(UserError, match=rf"data_batch_2: not a readable batch of CIFAR-10: {said}"):
        binary.Cifar(tmp_path)


class Runs:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("unpickled"),))


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, python=True)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({"data": Runs(), "labels": []}))
    with pytest.raises(UserError, match=r"data_batch_2: not a readable batch of CIFAR-10: it refers to"):
        binary.Cifar(tmp_path)
    assert not (tmp_path / "unpickled").exists()


def test_generated_images_hold_each_class_as_often(tmp_path: Path) -> None:
    shapes.write_splits(tmp_path, train=100, valid=30)
    counts = binary.census(str(tmp_path))
    assert set(counts["train"].values()) == {10} and set(counts["valid"].values()) == {3}
