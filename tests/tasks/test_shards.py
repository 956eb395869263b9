"""Decoded images in shards: batches equal to those of the files, whatever interrupts their preparation."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import read
from PIL import Image
from tiny_runs import Call

from suite.contract import UserError
from suite.settings import configure
from suite.tasks._data import decoding, folder, shards
from suite.tasks._data.decoding import prepare
from suite.tasks._data.folder import Folder
from suite.tasks._data.shapes import NAMES
from suite.tasks._data.shards import Shards


@pytest.fixture(scope="module")
def images(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with the generator's images and two of other shapes."""
    directory = tmp_path_factory.mktemp("images") / "photographs"
    shutil.copytree(written, directory)
    draw = np.random.default_rng(0)
    for split, shape in (("train", (70, 50, 3)), ("val", (45, 90, 3))):
        Image.fromarray(draw.integers(0, 256, shape, np.uint8)).save(directory / split / NAMES[3] / "other.png")
    return directory


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards of a split, and several groups in a shard."""
    for module in (decoding, shards):
        monkeypatch.setattr(module, "SHARD", 10)
    monkeypatch.setattr(decoding, "AT_ONCE", 4)


def compare(made: Folder | Shards, expected: Folder) -> None:
    for split in ("train", "valid"):
        rows = np.arange(made.data.samples[split])[::-1]
        for found, wanted in zip(read(made, split, rows), read(expected, split, rows), strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)
    assert made.data.identity == expected.data.identity and made.data.name == expected.data.name
    assert made.data.samples == expected.data.samples and made.names == expected.names


@pytest.mark.parametrize("warp", [None, 48])
def test_batches_equal_those_of_the_files(images: Path, tmp_path: Path, warp: int | None) -> None:
    prepare(images, tmp_path / "made", warp=warp)
    made = folder.make(data_dir=str(tmp_path / "made"), size=40, warp=warp, erase=0.5)
    assert isinstance(made, Shards)
    compare(made, Folder(images, size=40, warp=warp, erase=0.5))
    with pytest.raises(ValueError, match="read-only"):
        made.open_pixels("train", 0)[0] = 0
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        "manifest.json",
        *(f"train-0000{number}.{kind}" for number in range(4) for kind in ("bin", "npy")),
        *(f"valid-0000{number}.{kind}" for number in range(2) for kind in ("bin", "npy")),
    }


def test_reduced_images_are_other_data_whose_validation_images_are_equal(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "made", side=40)
    made, files = Shards(tmp_path / "made", size=36, resize=40), Folder(images, size=36, resize=40)
    assert made.data.identity != files.data.identity and "shorter side of 40 pixels" in made.data.note
    assert {min(made.open_pixels("train", row).shape[:2]) for row in range(33)} == {40}
    np.testing.assert_array_equal(read(made, "valid", np.arange(17))[0], read(files, "valid", np.arange(17))[0])
    assert (read(made, "train", [5])[0] != read(files, "train", [5])[0]).any()
    prepare(images, tmp_path / "whole", side=48)  # enlarges none
    assert Shards(tmp_path / "whole", size=36).open_pixels("valid", 4).shape == (45, 90, 3)


def test_an_interrupted_preparation_makes_the_shards_that_are_missing_or_changed(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, write = tmp_path / "made", decoding._write_shard
    written: list[str] = []

    def interrupt(stem: Path, *arguments: object) -> None:
        if len(written) == 2:
            (target / "partial.bin").write_bytes(b"half")
            raise KeyboardInterrupt
        written.append(stem.name)
        write(stem, *arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(decoding, "_write_shard", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(images, target)
    with pytest.raises(UserError, match=r"unfinished preparation; use the same .* --to \S+/made' again"):
        folder.make(data_dir=str(target), size=40)
    with pytest.raises(UserError, match="unfinished preparation; use the same"):
        prepare(target, tmp_path / "other")
    with pytest.raises(UserError, match="unfinished preparation of other images or with other settings"):
        prepare(images, target, side=40)
    written.clear()
    with (target / "train-00000.bin").open("r+b") as file:  # as after a power failure
        file.write(bytes(500))
    monkeypatch.setattr(decoding, "_write_shard", lambda stem, *rest: (written.append(stem.name), write(stem, *rest)))
    prepare(images, target)
    assert written == ["train-00000", "train-00002", "train-00003", "valid-00000", "valid-00001"]
    compare(Shards(target, size=40), Folder(images, size=40))
    with pytest.raises(UserError, match="contains prepared images already"):
        prepare(images, target)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("")
    with pytest.raises(UserError, match="is not empty"):
        prepare(images, tmp_path / "full")


def test_an_unreadable_file_stops_or_is_replaced_as_in_a_folder(images: Path, tmp_path: Path) -> None:
    shutil.copytree(images, tmp_path / "photographs")
    victims = [path for row in (4, 5, 31) for path in [Folder(images).paths["train"][row]]]
    for path in victims:
        (tmp_path / "photographs" / path).write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"cannot read .*on_error=skip"):
        prepare(tmp_path / "photographs", tmp_path / "made")
    prepare(tmp_path / "photographs", tmp_path / "made", on_error="skip")  # goes on, as the error advises
    (tmp_path / "photographs" / "manifest.json").write_text("{}")  # of another program
    assert isinstance(folder.make(data_dir=str(tmp_path / "photographs"), size=40, on_error="skip"), Folder)
    made, files = Shards(tmp_path / "made", size=40), Folder(tmp_path / "photographs", size=40, on_error="skip")
    compare(made, files)
    assert list(made.data.skipped) == victims == files.skipped


def test_prepared_images_are_not_prepared_again(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "whole")
    with pytest.raises(UserError, match="contains prepared images; train from them"):
        prepare(tmp_path / "whole", tmp_path / "again")


def test_a_class_without_images_is_part_of_the_identity(images: Path, tmp_path: Path) -> None:
    shutil.copytree(images, tmp_path / "more")
    (tmp_path / "more" / "train" / "none").mkdir()
    made = folder.make(data_dir=str(tmp_path / "more"))
    assert made.classes == Folder(images).classes + 1 and made.data.identity != Folder(images).data.identity
    prepare(tmp_path / "more", tmp_path / "made")
    assert folder.make(data_dir=str(tmp_path / "made")).data.identity == made.data.identity
    counts = [folder.census(str(tmp_path / name)) for name in ("more", "made")]
    assert counts[0] == counts[1] and counts[0]["train"]["none"] == 0


def test_options_that_the_images_were_not_made_for_are_refused(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "made", warp=48, classes=list(NAMES[:3]))
    options = {"size": 40, "warp": 48}
    compare(Shards(tmp_path / "made", **options), Folder(images, classes=list(NAMES[:3]), **options))
    with pytest.raises(UserError, match=r"resized to 48 × 48; set \+task.sources.folder.options.warp=48"):
        Shards(tmp_path / "made", size=40)
    with pytest.raises(UserError, match=r"has 3 other classes; set task\.classes=null"):
        Shards(tmp_path / "made", classes=list(NAMES[:2]), **options)


def test_a_changed_file_is_refused_or_found(images: Path, tmp_path: Path) -> None:
    prepare(images, tmp_path / "made")
    victim = tmp_path / "made" / "train-00001.bin"
    assert folder.check(str(tmp_path / "made")) == []
    victim.write_bytes(victim.read_bytes()[:-1] + b"\1")
    with pytest.raises(UserError, match=r"train-00001\.bin: not as it was prepared.*; prepare the images again"):
        Shards(tmp_path / "made")
    (fault,) = folder.check(str(tmp_path / "made"))
    assert fault.startswith(f"{victim}: its sha256 is")
    victim.unlink()
    assert folder.check(str(tmp_path / "made"))[0].startswith(f"{victim}: its sha256 is missing")


@pytest.mark.quick
@pytest.mark.parametrize("place", [0, 5, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize(
    "change, says",
    [
        (lambda index, place: np.delete(index, place), "train has 32 images in its index, but 33 in the manifest"),
        (lambda index, place: np.insert(index, place, index[place]), "train has 34 images in its index, but 33"),
        (lambda index, place: index[[*range(place % 10), (place + 1) % 10, *range(place % 10 + 1, 10)]], "image \\d+"),
    ],
    ids=["removed", "doubled", "replaced"],
)
def test_an_index_that_does_not_fit_its_pixels_is_refused(
    images: Path, tmp_path: Path, place: int, change: Any, says: str
) -> None:
    """Also one of a manifest without checksums, as older versions wrote it."""
    prepare(images, tmp_path / "made")
    path = tmp_path / "made" / "train-00001.npy"
    np.save(path, change(np.load(path), place))
    manifest = json.loads((tmp_path / "made" / "manifest.json").read_text())
    (tmp_path / "made" / "manifest.json").write_text(
        json.dumps({key: value for key, value in manifest.items() if key not in ("blocks", "crc32")})
    )
    with pytest.raises(UserError, match=rf"manifest\.json: damaged .*{says}"):
        Shards(tmp_path / "made")


def test_the_command_prepares_checks_and_names_the_run(suite: Call, images: Path, tmp_path: Path) -> None:
    pair = tmp_path / "pair"
    shutil.copytree(images, pair)
    shutil.copy(next((pair / "train" / NAMES[1]).iterdir()), pair / "val" / NAMES[2] / "again.JPEG")
    words = ["resnet50", "--from", str(pair), "--to", str(tmp_path / "made")]
    code, text = suite("data", *words, "--check", "task.sources.folder.prepare.side=44")
    assert code == 0, text
    assert "real, pair, 33 train, 18 valid" in text and "shorter side of 44 pixels" in text
    assert "read 51 images; 0 damaged files" in text and "recur     1 of 18 validation images" in text
    assert f"1 {NAMES[7]}" in text
    made = tmp_path / "made"
    assert text.splitlines()[-1] == f"next: suite +task=resnet50 task.data=folder data_dir={made}"
    run = configure.resolve(["task=resnet50", "task.data=folder", f"data_dir={made}"])
    assert "source" in run.task.options() and "prepare" not in run.task.options()["source"]
    code, text = suite("data", "caffenet", "--from", str(images), "--to", str(tmp_path / "squares"))
    assert code == 0, text
    assert Shards(tmp_path / "squares", size=227, warp=256).open_pixels("valid", 10).shape == (256, 256, 3)
