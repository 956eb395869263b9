"""The image sources: pure functions of their arguments, exact in what they hold, loud when they cannot read."""

import shutil
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from suite.contract import UserError
from suite.tasks._data import augment, order, shapes
from suite.tasks._data.digits import Digits
from suite.tasks._data.folder import Folder, verify
from suite.tasks._data.layout import decode
from suite.tasks._data.shapes import Shapes, paint, write_jpeg

CLOTHING = Path(__file__).parents[3] / "shared" / "data" / "clothing16"


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """An ImageNet-like directory from the generator's own writer: 32 training and 16 validation images."""
    directory = tmp_path_factory.mktemp("written")
    write_jpeg(directory, train=32, valid=16)
    return directory


@pytest.fixture
def writable(written, tmp_path):
    shutil.copytree(written, tmp_path / "images")
    return tmp_path / "images"


@pytest.fixture(params=["digits", "shapes", "folder"])
def source(request, written):
    sources = {
        "digits": Digits,
        "shapes": lambda: Shapes(train=32, valid=16),
        "folder": lambda: Folder(written, size=40, erase=0.5),
    }
    return sources[request.param]()


def read(source, split, rows, seed=3, first=100):
    rows = np.asarray(rows)
    return source.read(split, rows, seed=seed, numbers=first + np.arange(len(rows)))


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# ------------------------------------------------------------------------------------------------- every source
@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_batch_is_a_pure_function_of_its_arguments(source, split):
    rows = np.array([5, 0, 11, 5, 2])
    images, labels = read(source, split, rows)
    assert images.shape == (5, 3, source.size, source.size) and images.dtype == np.float32
    assert labels.shape == (5,) and labels.dtype == np.int32 and labels.max() < source.classes

    again, labels_again = read(source, split, rows)
    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(labels, labels_again)
    second, _ = read(source, split, rows[3:], first=103)  # the halves of the batch, in the other order
    first, _ = read(source, split, rows[:3])
    np.testing.assert_array_equal(images, np.concatenate([first, second]))


def test_what_is_read_is_not_what_is_kept(source):
    images, _ = read(source, "valid", [0, 1])
    expected = images.copy()
    images[:] = 0
    np.testing.assert_array_equal(read(source, "valid", [0, 1])[0], expected)


# ------------------------------------------------------------------------------------------------------- order
def test_every_epoch_holds_each_row_once_across_ragged_batches():
    samples, batch_size, epochs = 23, 7, 7
    parts = [order.take(samples, batch_size=batch_size, seed=1, index=i) for i in range(samples * epochs // batch_size)]
    rows, numbers = (np.concatenate(part) for part in zip(*parts, strict=True))
    np.testing.assert_array_equal(numbers, np.arange(samples * epochs))
    passes = rows.reshape(epochs, samples)
    np.testing.assert_array_equal(np.sort(passes, axis=1), np.tile(np.arange(samples), (epochs, 1)))
    assert len({tuple(one) for one in passes}) == epochs


def test_order_does_not_depend_on_batch_size_but_on_the_seed():
    def rows(batch_size, seed):
        return np.concatenate(
            [order.take(10, batch_size=batch_size, seed=seed, index=i)[0] for i in range(60 // batch_size)]
        )

    np.testing.assert_array_equal(rows(4, seed=0), rows(30, seed=0))  # 30 rows span three epochs at once
    assert (rows(4, seed=0) != rows(4, seed=1)).any()


def test_order_is_the_same_in_every_version():
    assert order.permutation(8, seed=0, epoch=0).tolist() == [4, 5, 0, 7, 1, 6, 3, 2]


def test_a_sweep_covers_each_row_once_and_pads_with_weight_zero():
    parts = [order.sweep(10, batch_size=4, index=i) for i in range(3)]
    rows, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    assert weight.tolist() == [1] * 10 + [0] * 2 and weight.dtype == np.float32
    assert rows.tolist() == [*range(10), 0, 0]


# ------------------------------------------------------------------------------------------------ augmentation
def test_crops_keep_inside_the_image_and_within_area_and_aspect():
    for number in range(500):
        left, top, right, bottom = augment.crop(
            augment.generator(0, number), width=120, height=90, area=(0.08, 1.0), aspect=(3 / 4, 4 / 3)
        )
        wide, tall = right - left, bottom - top
        assert 0 <= left < right <= 120 and 0 <= top < bottom <= 90
        assert 0.07 < wide * tall / (120 * 90) <= 1  # half a pixel of rounding
        assert 0.7 < wide / tall < 1.43


def test_an_image_too_long_for_any_crop_gives_its_middle():
    box = augment.crop(augment.generator(0, 0), width=1000, height=10, area=(0.9, 1.0), aspect=(3 / 4, 4 / 3))
    assert box == (493, 0, 506, 10)  # 10 × 4/3 is 13 pixels wide
    box = augment.crop(augment.generator(0, 0), width=10, height=1000, area=(0.9, 1.0), aspect=(3 / 4, 4 / 3))
    assert box == (0, 493, 10, 506)


def test_flips_have_even_odds_and_belong_to_the_sample():
    flips = [augment.flip(augment.generator(0, number)) for number in range(2000)]
    assert 900 < sum(flips) < 1100
    assert flips != [augment.flip(augment.generator(1, number)) for number in range(2000)]


def test_erasing_zeroes_one_rectangle_of_the_asked_area():
    image = np.ones((3, 60, 60), np.float32)
    options = {"area": (0.02, 0.25), "aspect": (0.3, 1.0)}
    shares, shapes_seen = [], Counter()
    for number in range(1000):
        erased = augment.erase(augment.generator(0, number), image, probability=0.5, **options)
        hole = erased == 0
        shares.append(hole.mean())
        if hole.any():
            tall, wide = hole[0].any(1).sum(), hole[0].any(0).sum()
            assert hole.sum() == 3 * tall * wide
            shapes_seen[np.sign(tall - wide)] += 1
    assert image.all()  # the argument is left alone
    shares = np.array(shares)
    assert 430 < (shares > 0).sum() < 570
    assert shares[shares > 0].min() > 0.015 and shares.max() < 0.26
    assert 0.7 < shapes_seen[1] / shapes_seen[-1] < 1.4  # upright and lying in even numbers
    assert augment.erase(augment.generator(0, 0), image, probability=0.0, **options) is image


# ------------------------------------------------------------------------------------------------------ digits
def test_digits_are_the_known_ones():
    digits = Digits()
    assert digits.data.samples == {"train": 1437, "valid": 360}
    assert digits.data.identity == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
    assert "0.28 points" in digits.data.note
    images, labels = read(digits, "train", np.arange(1437))
    assert abs(images.mean()) < 1e-4 and abs(images.std() - 1) < 1e-4  # by the training split's own statistics
    np.testing.assert_array_equal(images[:, 0], images[:, 2])
    _, held_out = read(digits, "valid", np.arange(360))
    assert sum(np.bincount(held_out) + np.bincount(labels)) == 1797 and np.bincount(held_out).min() > 20


def test_digits_are_enlarged_as_a_pillow_image_would_be():
    from sklearn.datasets import load_digits

    flat, _ = load_digits(return_X_y=True)
    images, _ = read(Digits(size=20), "valid", [0])
    row = order.permutation(1797, seed=0, epoch=0)[0]
    expected = Image.fromarray(flat[row].reshape(8, 8).astype(np.float32)).resize((20, 20), Image.Resampling.BILINEAR)
    assert (
        np.corrcoef(images[0, 0].ravel(), np.asarray(expected).ravel())[0, 1] > 1 - 1e-6
    )  # equal up to mean and scale


# ------------------------------------------------------------------------------------------------------ shapes
def test_shapes_have_balanced_classes_and_splits_of_their_own():
    source = Shapes(train=64, valid=32)
    train, labels = read(source, "train", np.arange(64))
    valid, held_out = read(source, "valid", np.arange(32))
    assert np.bincount(labels).tolist() == [4] * 16 and np.bincount(held_out).tolist() == [2] * 16
    np.testing.assert_array_equal(labels[:32], held_out)
    assert (train[:32] != valid).mean() > 0.99
    assert len(np.unique(train.reshape(64, -1), axis=0)) == 64


def test_a_shape_does_not_depend_on_how_many_are_made_or_in_which_order():
    together, _ = paint("train", np.arange(200))
    for row in (0, 57, 199):
        np.testing.assert_array_equal(paint("train", np.array([row]))[0][0], together[row])
    np.testing.assert_array_equal(paint("train", np.arange(200)[::-1])[0], together[::-1])
    few, many = Shapes(train=20, valid=1), Shapes(train=300, valid=1)  # 300 takes more than one chunk
    np.testing.assert_array_equal(read(few, "train", [7, 19])[0], read(many, "train", [7, 19])[0])
    beyond = (paint("train", np.array([299]))[0] - np.float32(0.5)) / np.float32(0.35)
    np.testing.assert_array_equal(read(many, "train", [299])[0], beyond)


def test_shapes_are_the_same_in_every_version():
    images, _ = paint("train", np.array([0, 7, 8191]))
    np.testing.assert_allclose(images[:, 1, 24, 24], [0.35329, 0.22661, 0.46759], atol=1e-4)


def test_each_texture_has_the_wave_its_name_says():
    images, labels = paint("train", np.arange(320), noise=0.0, radius=(2.0, 2.0))  # shapes larger than the image
    waves = 2 * np.pi * np.fft.fftfreq(256)
    for kind, (frequency, direction) in enumerate([(0.5, 0), (0.5, 90), (1.1, 45), (1.1, 135)]):
        for disc in images[(labels // 4 == 0) & (labels % 4 == kind), 0]:
            spectrum = np.abs(np.fft.fft2(disc - disc.mean(), s=(256, 256)))
            y, x = np.unravel_index(spectrum.argmax(), spectrum.shape)
            assert np.hypot(waves[y], waves[x]) == pytest.approx(frequency, rel=0.15)
            turned = np.rad2deg(np.arctan2(waves[y], waves[x])) - direction
            assert abs((turned + 90) % 180 - 90) < 30  # within 4 standard deviations of 0.12 rad


def test_each_shape_covers_its_area():
    images, labels = paint("train", np.arange(160), noise=0.0, radius=(0.3, 0.3))
    covered = (images != images[:, :, :1, :1]).any(axis=1).sum(axis=(1, 2)) / (0.3 * 48) ** 2  # no shape has the corner
    triangle, cross = 1.6**2 / 1.9, 2 * 0.6 * 1.9 - 0.6**2
    for kind, area in enumerate([np.pi, 1.6**2, triangle, cross]):
        assert covered[labels // 4 == kind].mean() == pytest.approx(area, rel=0.02)


def test_difficulty_changes_only_what_it_names():
    rows = np.arange(16)
    easy, _ = paint("train", rows, noise=0.0)
    noisy, _ = paint("train", rows, noise=0.2)
    assert (noisy - easy).std() == pytest.approx(0.2, rel=0.02)
    small, _ = paint("train", rows, noise=0.0, radius=(0.1, 0.12))
    assert (small != easy).any(axis=1).mean(axis=(1, 2)).max() < 0.7  # the background stays
    identities = {
        Shapes(noise=noise, radius=radius).data.identity for noise in (0.1, 0.2) for radius in ((0.2, 0.3), (0.3, 0.4))
    }
    assert len(identities) == 4


# ------------------------------------------------------------------------------------------------------ folder
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


def test_a_damaged_file_stops_the_run_with_its_name(writable):
    folder = Folder(writable, size=40)
    victim = sorted((writable / "train" / shapes.NAMES[2]).iterdir())[0]
    truncate(victim)
    with pytest.raises(UserError, match=victim.name) as caught:
        read(folder, "train", np.arange(32))
    assert "on_error=skip" in str(caught.value)
    assert read(folder, "train", [0])[0].shape == (1, 3, 40, 40)  # the others are fine
    (fault,) = verify(writable)
    assert fault.startswith(f"train/{shapes.NAMES[2]}/{victim.name}: ") and "truncated" in fault


# Shortened by 1 and by 4,096 bytes; Pillow raises ValueError for the one, SyntaxError for the other.
@pytest.mark.parametrize(("chunk", "place", "bit"), [(b"IHDR", 1, 1), (b"IDAT", 2, 16)])
def test_a_damaged_png_is_unreadable_like_any_other(writable, chunk, place, bit):
    path = next((writable / "val").glob("03*")) / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)).save(path)
    assert verify(writable) == []
    data = bytearray(path.read_bytes())
    data[data.index(chunk) - place] ^= bit  # in the chunk's length, about 6,000 for IDAT
    path.write_bytes(data)
    (fault,) = verify(writable)
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
    assert [fault.split(":")[0] for fault in verify(writable)] == folder.skipped


def test_a_split_without_a_readable_image_is_an_error(writable):
    for path in (writable / "val").glob("*/*"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="not one image of the valid split"):
        read(Folder(writable, on_error="skip"), "valid", [0])


def test_on_error_knows_two_words(written):
    with pytest.raises(UserError, match="on_error=ignore"):
        Folder(written, on_error="ignore")


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


def test_a_flat_validation_folder_with_its_list_equals_class_directories(writable):
    rows = np.arange(16)
    images, labels = read(Folder(writable, size=40), "valid", rows)
    lines = []
    for path in sorted((writable / "val").glob("*/*")):
        lines.append(f"{path.name} {path.parent.name}\n")
        path.rename(writable / "val" / path.name)
        path.parent.rmdir()
    with pytest.raises(UserError, match=r"val\.txt is missing"):
        Folder(writable)
    listing = writable / "val.txt"
    listing.write_text("".join(lines))
    flat = Folder(writable, size=40)
    flat_images, flat_labels = read(flat, "valid", rows)
    np.testing.assert_array_equal(flat_images, images)
    np.testing.assert_array_equal(flat_labels, labels)
    assert Folder(writable, classes=list(shapes.NAMES[:2])).data.samples["valid"] == 2

    for line, problem in (("absent.JPEG 00-disc-coarse0", "no image"), ("000000.JPEG 17", "no class"), ("x", "is not")):
        listing.write_text("".join(lines) + line + "\n")
        with pytest.raises(UserError, match=f"line 17: .*{problem}"):
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
    assert verify(CLOTHING) == []
