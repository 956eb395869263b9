"""Images in a directory: what is read, what is refused, and how loudly."""

import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from pictures import read
from PIL import Image, ImageFile

from suite.contract import UserError
from suite.tasks._data import augment, shapes
from suite.tasks._data.folder import Folder
from suite.tasks._data.layout import decode, find_damaged_files
from suite.tasks._data.preprocessing import MEAN, STD
from suite.tasks._data.shapes import Shapes
from suite.verbs import data

CLOTHING = Path(__file__).parents[3] / "shared" / "data" / "clothing16"


@pytest.fixture
def writable(written, tmp_path):
    shutil.copytree(written, tmp_path / "images")
    return tmp_path / "images"


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_folder_gives_back_what_its_writer_made(written):
    folder = Folder(written, size=48, resize=48, mean=(127.5, 127.5, 127.5), std=(89.25, 89.25, 89.25))
    assert folder.classes == 16 and tuple(folder.names) == shapes.NAMES
    assert folder.data.samples == {"train": 32, "valid": 16}
    images, labels = read(folder, "valid", np.arange(16))
    painted, expected = read(Shapes(train=16, valid=16), "valid", np.arange(16))
    np.testing.assert_array_equal(labels, expected)
    clipped = painted.clip(-0.5 / 0.35, 0.5 / 0.35)  # the same normalisation, in units of 0…255
    assert np.abs(images - clipped).mean() < 0.1  # what JPEG costs: 9 of 255 on average


def test_training_images_change_with_number_and_seed_and_validation_images_do_not(written):
    folder = Folder(written, size=40)
    base, _ = read(folder, "train", [3, 3, 3])
    assert (base[0] != base[1]).any() and (base[1] != base[2]).any()
    assert (read(folder, "train", [3], seed=4)[0][0] != base[0]).any()
    np.testing.assert_array_equal(read(folder, "valid", [3], seed=1)[0], read(folder, "valid", [3], seed=2, first=7)[0])


def test_a_dangling_link_is_named_unless_it_is_no_image(writable):
    (writable / "train" / shapes.NAMES[0] / "notes.txt").symlink_to("nowhere")
    assert Folder(writable, size=8, resize=8).data.samples["train"] == 32
    (writable / "train" / shapes.NAMES[0] / "gone.jpg").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"gone\.jpg: a symbolic link to a missing file; remove it"):
        Folder(writable, size=8, resize=8)


def test_flip_and_erase_are_the_only_difference_they_make(written):
    rows = np.zeros(40, np.int64)
    plain, _ = read(Folder(written, size=40, flip=False), "train", rows)
    flipped, _ = read(Folder(written, size=40), "train", rows)
    same = (plain == flipped).all(axis=(1, 2, 3))
    mirrored = (plain == flipped[..., ::-1]).all(axis=(1, 2, 3))
    assert (same ^ mirrored).all() and 8 < same.sum() < 32
    erased, _ = read(Folder(written, size=40, flip=False, erase=1.0), "train", rows)
    untouched = erased == plain
    assert (untouched | (erased == 0)).all() and not untouched.all(axis=(1, 2, 3)).any()


def test_validation_images_are_resized_by_the_shorter_side_and_cut_in_the_middle(writable):
    ramp = np.broadcast_to(np.linspace(0, 255, 200, dtype=np.uint8)[None, :, None], (100, 200, 3))
    for path in (writable / "val" / shapes.NAMES[0]).iterdir():
        Image.fromarray(np.ascontiguousarray(ramp)).save(path.with_suffix(".png"))
        path.unlink()
    images, _ = read(Folder(writable, size=40, resize=50, mean=(0, 0, 0), std=(1, 1, 1)), "valid", [0])
    expected = np.linspace(0, 255, 200)[60:140].reshape(40, 2).mean(1)  # 100 × 50 pixels, of them columns 30 to 69
    np.testing.assert_allclose(images[0, 0, 20], expected, atol=1)
    assert (
        read(Folder(writable, size=224), "valid", [0])[0] == read(Folder(writable, resize=256), "valid", [0])[0]
    ).all()
    with pytest.raises(UserError, match="resize=40"):
        Folder(writable, size=48, resize=40)


def test_default_normalisation_is_imagenets(written):
    raw, _ = read(Folder(written, size=32, mean=(0, 0, 0), std=(1, 1, 1)), "valid", [0])
    images, _ = read(Folder(written, size=32), "valid", [0])
    assert raw.min() >= 0 and 100 < raw.max() <= 255  # units of 0…255
    for channel, (mean, std) in enumerate([(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]):
        np.testing.assert_allclose(images[0, channel], (raw[0, channel] / 255 - mean) / std, atol=1e-5)


@pytest.mark.parametrize("warp", [None, 56])
def test_inputs_equal_the_formula_bit_for_bit(written, warp):
    folder = Folder(written, size=40, warp=warp)
    images, _ = read(folder, "train", np.arange(12))
    mean, std = (np.asarray(values, np.float32) for values in (MEAN, STD))
    mirrored = 0
    for row in range(12):
        image, draws = folder.open_image("train", row)[0], augment.make_generator(3, 100 + row)
        if warp:
            box = augment.draw_square_box(draws, side=warp, size=40)
            shown = image.resize((warp, warp), Image.Resampling.BILINEAR).crop(box)
        else:
            box = augment.draw_crop_box(draws, width=48, height=48, area=(0.08, 1.0), aspect=(3 / 4, 4 / 3))
            shown = image.resize((40, 40), Image.Resampling.BILINEAR, box=box)
        expected = ((np.asarray(shown, np.float32) - mean) / std).transpose(2, 0, 1)
        flip = augment.draw_flip(draws)
        mirrored += flip
        np.testing.assert_array_equal(images[row], expected[:, :, ::-1] if flip else expected)
    assert 0 < mirrored < 12


def test_a_damaged_file_stops_the_run_with_its_name(writable):
    folder = Folder(writable, size=40)
    victim = sorted((writable / "train" / shapes.NAMES[2]).iterdir())[0]
    truncate(victim)
    with pytest.raises(UserError, match=victim.name) as caught:
        read(folder, "train", np.arange(32))
    assert "on_error=skip" in str(caught.value)
    assert read(folder, "train", [0])[0].shape == (1, 3, 40, 40)  # the others are fine
    (fault,) = find_damaged_files(writable)
    assert fault.startswith(f"train/{shapes.NAMES[2]}/{victim.name}: ") and "truncated" in fault


# Shortened by 1 and by 4,096 bytes; Pillow raises ValueError for the one, SyntaxError for the other.
@pytest.mark.parametrize(("chunk", "place", "bit"), [(b"IHDR", 1, 1), (b"IDAT", 2, 16)])
def test_a_damaged_png_is_unreadable_like_any_other(writable, chunk, place, bit):
    path = next((writable / "val").glob("03*")) / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)).save(path)
    assert find_damaged_files(writable) == []
    data = bytearray(path.read_bytes())
    data[data.index(chunk) - place] ^= bit  # in the chunk's length, about 6,000 for IDAT
    path.write_bytes(data)
    (fault,) = find_damaged_files(writable)
    assert fault.startswith(f"val/{path.parent.name}/noise.png: ")


def test_a_damaged_file_is_found_though_another_package_tolerates_it(writable, monkeypatch):
    victim = sorted((writable / "train" / shapes.NAMES[2]).iterdir())[0]
    truncate(victim)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(OSError, match="truncated"):
        decode(victim)


def test_skipping_takes_the_next_readable_file_and_names_the_damaged(writable):
    intact = Folder(writable, size=40)
    paths = [path.relative_to(writable).as_posix() for path in sorted((writable / "train").glob("*/*"))]
    for row in (4, 5, 31):  # two in sequence, and the last one, after which the first follows
        truncate(writable / paths[row])
    (writable / paths[5]).write_text("not an image")
    folder = Folder(writable, size=40, on_error="skip")
    assert folder.data.skipped == ()
    # Read at the replaced row's place: augmentation goes with the sample's number, the label with the file.
    images, labels = read(folder, "train", [4, 5, 6, 31, 0])
    expected, expected_labels = read(intact, "train", [6, 6, 6, 0, 0])
    np.testing.assert_array_equal(images, expected)
    np.testing.assert_array_equal(labels, expected_labels)
    assert folder.data.skipped == tuple(folder.skipped) == (paths[4], paths[5], paths[31])
    read(folder, "train", [4])
    assert len(folder.skipped) == 3
    assert [fault.split(":")[0] for fault in find_damaged_files(writable)] == folder.skipped


def test_a_split_without_a_readable_image_is_an_error(writable):
    for path in (writable / "val").glob("*/*"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="no image of the valid split"):
        read(Folder(writable, on_error="skip"), "valid", [0])


def test_settings_are_judged_before_a_preparation(written, tmp_path):
    words = ["resnet50", "--from", str(written), "--to", str(tmp_path / "made"), "task.on_error=ignore"]
    with pytest.raises(UserError, match=r"task\.on_error=ignore: must be one of stop, skip"):
        data.main(words)
    assert not (tmp_path / "made").exists()


def test_every_kind_of_pixel_becomes_rgb(tmp_path):
    grey = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1))
    colour = np.stack([grey, grey.T, 255 - grey], axis=-1)
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn by 90 degrees"
    alpha = np.dstack([colour, np.zeros_like(grey)])
    Image.fromarray(colour).convert("CMYK").save(tmp_path / "cmyk.jpg", quality=95)
    Image.fromarray(grey).save(tmp_path / "grey.jpg", quality=95)
    Image.fromarray(grey.astype(np.uint16) * 256 + 7).save(tmp_path / "grey16.png")
    Image.fromarray(alpha).save(tmp_path / "alpha.png")
    Image.fromarray(alpha).quantize(256).save(tmp_path / "palette.png")
    Image.fromarray(colour).save(tmp_path / "turned.jpg", quality=95, exif=exif)
    grey3 = np.stack([grey] * 3, axis=-1)
    expected = {"cmyk.jpg": colour, "grey.jpg": grey3, "grey16.png": grey3, "alpha.png": colour, "turned.jpg": colour}
    for name, pixels in expected.items():
        image = decode(tmp_path / name)
        assert image.mode == "RGB"
        assert np.abs(np.asarray(image, float) - pixels).mean() < 4, name
    assert decode(tmp_path / "palette.png").mode == "RGB"


def test_class_index_is_the_sorted_order_of_directories(writable):
    (writable / "train" / ".cache").mkdir()
    assert Folder(writable).classes == 16
    Image.new("RGB", (9, 9)).save(writable / "train" / shapes.NAMES[0] / "one.jpg")
    Image.new("RGB", (9, 9)).save(writable / "train" / shapes.NAMES[0] / "two.jpeg")
    (writable / "train" / shapes.NAMES[0] / "notes.txt").write_text("not a sample")
    assert Folder(writable).data.samples["train"] == 34
    for name in ("one.jpg", "two.jpeg"):
        (writable / "train" / shapes.NAMES[0] / name).unlink()
    (writable / "train" / shapes.NAMES[0] / "._000000.JPEG").write_text("a Macintosh's note")
    some = Folder(writable, size=40, classes=[shapes.NAMES[9], shapes.NAMES[1]])
    assert list(some.names) == [shapes.NAMES[1], shapes.NAMES[9]] and some.classes == 2
    assert some.data.samples == {"train": 4, "valid": 2}
    assert read(some, "train", [0, 1, 2, 3])[1].tolist() == [0, 0, 1, 1]
    assert Folder(writable).data.samples["train"] == 32
    with pytest.raises(UserError, match=shapes.NAMES[3]):
        Folder(writable, classes=[shapes.NAMES[3][:-1]])


def test_identity_follows_names_sizes_and_classes(writable):
    identity = Folder(writable).data.identity
    assert Folder(writable, size=64, flip=False).data.identity == identity
    victim = sorted((writable / "val" / shapes.NAMES[2]).iterdir())[0]
    victim.write_bytes(victim.read_bytes() + b"\0")
    longer = Folder(writable).data.identity
    victim.rename(victim.with_name("renamed.JPEG"))
    assert len({identity, longer, Folder(writable).data.identity}) == 3


@pytest.fixture
def flat(writable):
    """The same with a flat `val/` and its list; returns the list."""
    lines = []
    for path in sorted((writable / "val").glob("*/*")):
        lines.append(f"{path.name} {path.parent.name}\n")
        path.rename(writable / "val" / path.name)
        path.parent.rmdir()
    (writable / "val.txt").write_text("".join(lines))
    return writable / "val.txt"


def test_a_flat_validation_folder_with_its_list_equals_class_directories(writable, request):
    rows = np.arange(16)
    images, labels = read(Folder(writable, size=40), "valid", rows)
    listing = request.getfixturevalue("flat")
    lines = listing.read_text()
    listing.unlink()
    with pytest.raises(UserError, match=r"val\.txt is missing"):
        Folder(writable)
    listing.write_text(lines)
    flat = Folder(writable, size=40)
    flat_images, flat_labels = read(flat, "valid", rows)
    np.testing.assert_array_equal(flat_images, images)
    np.testing.assert_array_equal(flat_labels, labels)
    assert Folder(writable, classes=list(shapes.NAMES[:2])).data.samples["valid"] == 2

    for line, problem in (("absent.JPEG 00-disc-coarse0", "no image"), ("new.JPEG 17", "no class"), ("x", "is not")):
        listing.write_text(lines + line + "\n")
        with pytest.raises(UserError, match=f"line 17: .*{problem}"):
            Folder(writable)


@pytest.mark.quick
@pytest.mark.parametrize("place", [0, 7, 15])
@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda line: "", r"val/{name}: no line of .*val\.txt names it"),
        (lambda line: line + line, "line {next}: {name} is there twice, first in line {n}"),
        (lambda line: line + line.split()[0] + " 01-ring-coarse0\n", "line {next}: {name} is there twice"),
        (lambda line: "\n" + line, "line {n}: '' is not"),
        (lambda line: line.split()[0] + "\n", "line {n}: '{name}' is not"),
        (lambda line: line.replace("\n", " 1\n"), "line {n}: .* is not"),
        (lambda line: line[1:], "line {n}: no image"),
    ],
)
def test_a_line_of_the_list_that_is_gone_doubled_or_broken_is_named(flat, place, change, problem):
    lines = flat.read_text().splitlines(keepends=True)
    name = lines[place].split()[0]
    lines[place] = change(lines[place])
    flat.write_text("".join(lines))
    with pytest.raises(UserError, match=problem.format(name=name, n=place + 1, next=place + 2)):
        Folder(flat.parent)


@pytest.mark.quick
def test_a_list_that_is_cut_off_is_named(flat):
    flat.write_text(flat.read_text()[:-1])
    with pytest.raises(UserError, match=r"val\.txt, line 16: the file ends within this line"):
        Folder(flat.parent)


@pytest.mark.quick
@pytest.mark.parametrize("place", [0, 7, -1])
def test_an_image_that_is_gone_or_there_twice_is_counted(writable, place):
    """Nothing lists the images of class directories, and copies are legal: only the number tells."""
    path = sorted((writable / "train").glob("*/*"))[place]
    shutil.copy(path, path.with_name("copy.JPEG"))
    assert Folder(writable).data.samples == {"train": 33, "valid": 16}
    path.unlink()
    path.with_name("copy.JPEG").unlink()
    assert Folder(writable).data.samples == {"train": 31, "valid": 16}


@pytest.mark.quick
@pytest.mark.parametrize("split", ["train", "val"])
def test_images_that_would_not_be_read_are_refused(writable, split):
    path = sorted((writable / split).glob("*/*"))[0]
    for hidden, problem in (
        (path.parent.parent / "lost.JPEG", r"lost\.JPEG: belongs to no class directory"),
        (path.parent / "more" / "lost.JPEG", "more: a directory in a class directory"),
        (path.with_suffix(".webp"), r"webp: only \.jpg, \.jpeg and \.png are read"),
    ):
        hidden.parent.mkdir(exist_ok=True)
        shutil.copy(path, hidden)
        with pytest.raises(UserError, match=problem):
            Folder(writable)
        hidden.unlink()
        if hidden.parent.name == "more":
            hidden.parent.rmdir()
    (path.parent / "notes.txt").write_text("no image")
    assert Folder(writable).data.samples == {"train": 32, "valid": 16}
    shutil.copytree(writable / "val", writable / "valid")
    with pytest.raises(UserError, match="contains both val and valid"):
        Folder(writable)


def test_a_missing_directory_is_answered_with_the_layout_and_what_to_type(tmp_path):
    for data_dir in (None, tmp_path / "nowhere"):
        with pytest.raises(UserError) as caught:
            Folder(data_dir)
        assert "train/<class>/*.JPEG" in str(caught.value) and "data_dir=" in str(caught.value)
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match="no validation images"):
        Folder(tmp_path)
    (tmp_path / "valid" / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match="no image of the 1 classes"):
        Folder(tmp_path)
    (tmp_path / "valid" / "dog").mkdir()
    with pytest.raises(UserError, match="class dog"):
        Folder(tmp_path)


def test_reading_keeps_nothing(written):
    folder = Folder(written, size=224)
    rows = np.arange(16)
    read(folder, "valid", rows)  # Pillow's plug-ins load here
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(4):
        read(folder, "valid", rows)  # 9.6 MB each time
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 500_000


# -------------------------------------------------------------------------------------------------- photographs
@pytest.mark.skipif(not CLOTHING.is_dir(), reason="shared/data/clothing16 is not beside this repository")
def test_clothing16_is_whole():
    folder = Folder(CLOTHING, size=64)
    assert folder.classes == 16 and folder.data.samples == {"train": 3068, "valid": 772}
    assert folder.names[0] == "blazer" and folder.names[-1] == "undershirt"
    images, labels = read(folder, "train", [0, 1500, 3067])
    assert labels[0] == 0 and labels[-1] == 15
    assert np.abs(images).max() < 3 and 0.3 < images.std() < 2
    assert find_damaged_files(CLOTHING) == []
