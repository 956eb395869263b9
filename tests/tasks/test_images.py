"""Image sources: pure functions of their arguments, exact in what they hold."""

from collections import Counter

import numpy as np
import pytest
from idxes import write_set
from pictures import read
from PIL import Image

from suite.tasks._data import augment, order
from suite.tasks._data.digits import Digits
from suite.tasks._data.fashion import Fashion
from suite.tasks._data.folder import Folder
from suite.tasks._data.shapes import Shapes, paint_images


@pytest.fixture(params=["digits", "shapes", "fashion", "folder"])
def source(request, written, tmp_path):
    write_set(tmp_path, labelled=True, train=32, valid=16)
    sources = {
        "digits": Digits,
        "shapes": lambda: Shapes(train=32, valid=16),
        "fashion": lambda: Fashion(40, data_dir=str(tmp_path)),
        "folder": lambda: Folder(written, size=40, erase=0.5),
    }
    return sources[request.param]()


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


@pytest.mark.quick
# ------------------------------------------------------------------------------------------------------- order
def test_every_epoch_holds_each_row_once_across_ragged_batches():
    samples, batch_size, epochs = 23, 7, 7
    parts = [
        order.select_training_rows(samples, batch_size=batch_size, seed=1, index=i)
        for i in range(samples * epochs // batch_size)
    ]
    rows, numbers = (np.concatenate(part) for part in zip(*parts, strict=True))
    np.testing.assert_array_equal(numbers, np.arange(samples * epochs))
    passes = rows.reshape(epochs, samples)
    np.testing.assert_array_equal(np.sort(passes, axis=1), np.tile(np.arange(samples), (epochs, 1)))
    assert len({tuple(one) for one in passes}) == epochs


@pytest.mark.quick
def test_order_does_not_depend_on_batch_size_but_on_the_seed():
    def rows(batch_size, seed):
        return np.concatenate(
            [
                order.select_training_rows(10, batch_size=batch_size, seed=seed, index=i)[0]
                for i in range(60 // batch_size)
            ]
        )

    np.testing.assert_array_equal(rows(4, seed=0), rows(30, seed=0))  # 30 rows span three epochs at once
    assert (rows(4, seed=0) != rows(4, seed=1)).any()


@pytest.mark.quick
def test_order_is_the_same_in_every_version():
    assert order.draw_permutation(8, seed=0, epoch=0).tolist() == [4, 5, 0, 7, 1, 6, 3, 2]


@pytest.mark.quick
def test_a_sweep_covers_each_row_once_and_pads_with_weight_zero():
    parts = [order.select_evaluation_rows(10, batch_size=4, index=i) for i in range(3)]
    rows, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    assert weight.tolist() == [1] * 10 + [0] * 2 and weight.dtype == np.float32
    assert rows.tolist() == [*range(10), 0, 0]


# ------------------------------------------------------------------------------------------------ augmentation
def test_crops_keep_inside_the_image_and_within_area_and_aspect():
    for number in range(500):
        left, top, right, bottom = augment.draw_crop_box(
            augment.make_generator(0, number), width=120, height=90, area=(0.08, 1.0), aspect=(3 / 4, 4 / 3)
        )
        wide, tall = right - left, bottom - top
        assert 0 <= left < right <= 120 and 0 <= top < bottom <= 90
        assert 0.07 < wide * tall / (120 * 90) <= 1  # half a pixel of rounding
        assert 0.7 < wide / tall < 1.43


@pytest.mark.quick
@pytest.mark.parametrize("rows", [order.select_training_rows, order.compute_training_rows])
def test_each_epoch_and_each_seed_has_another_order(rows):
    found = {tuple(rows(64, batch_size=64, seed=seed, index=epoch)[0]) for seed in (0, 1) for epoch in (0, 1)}
    assert len(found) == 4


def test_an_image_too_long_for_any_crop_gives_its_middle():
    box = augment.draw_crop_box(
        augment.make_generator(0, 0), width=1000, height=10, area=(0.9, 1.0), aspect=(3 / 4, 4 / 3)
    )
    assert box == (493, 0, 506, 10)  # 10 × 4/3 is 13 pixels wide
    box = augment.draw_crop_box(
        augment.make_generator(0, 0), width=10, height=1000, area=(0.9, 1.0), aspect=(3 / 4, 4 / 3)
    )
    assert box == (0, 493, 10, 506)


@pytest.mark.quick
def test_flips_have_even_odds_and_belong_to_the_sample():
    flips = [augment.draw_flip(augment.make_generator(0, number)) for number in range(2000)]
    assert 900 < sum(flips) < 1100
    assert flips != [augment.draw_flip(augment.make_generator(1, number)) for number in range(2000)]


def test_erasing_zeroes_one_rectangle_of_the_asked_area():
    options = {"area": (0.02, 0.25), "aspect": (0.3, 1.0)}
    shares, shapes_seen = [], Counter()
    for number in range(1000):
        image = np.ones((3, 60, 60), np.float32)
        augment.erase_rectangle(augment.make_generator(0, number), image, probability=0.5, **options)
        hole = image == 0
        shares.append(hole.mean())
        if hole.any():
            tall, wide = hole[0].any(1).sum(), hole[0].any(0).sum()
            assert hole.sum() == 3 * tall * wide
            shapes_seen[np.sign(tall - wide)] += 1
    shares = np.array(shares)
    assert 430 < (shares > 0).sum() < 570
    assert shares[shares > 0].min() > 0.015 and shares.max() < 0.26
    assert 0.7 < shapes_seen[1] / shapes_seen[-1] < 1.4  # upright and lying in even numbers
    image = np.ones((3, 60, 60), np.float32)
    augment.erase_rectangle(augment.make_generator(0, 0), image, probability=0.0, **options)
    assert image.all()


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
    row = order.draw_permutation(1797, seed=0, epoch=0)[0]
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
    together, _ = paint_images("train", np.arange(200))
    for row in (0, 57, 199):
        np.testing.assert_array_equal(paint_images("train", np.array([row]))[0][0], together[row])
    np.testing.assert_array_equal(paint_images("train", np.arange(200)[::-1])[0], together[::-1])
    few, many = Shapes(train=20, valid=1), Shapes(train=300, valid=1)  # 300 takes more than one chunk
    np.testing.assert_array_equal(read(few, "train", [7, 19])[0], read(many, "train", [7, 19])[0])
    beyond = (paint_images("train", np.array([299]))[0] - np.float32(0.5)) / np.float32(0.35)
    np.testing.assert_array_equal(read(many, "train", [299])[0], beyond)


def test_shapes_are_the_same_in_every_version():
    images, _ = paint_images("train", np.array([0, 7, 8191]))
    np.testing.assert_allclose(images[:, 1, 24, 24], [0.35329, 0.22661, 0.46759], atol=1e-4)


def test_each_texture_has_the_wave_its_name_says():
    images, labels = paint_images("train", np.arange(320), noise=0.0, radius=(2.0, 2.0))  # shapes larger than the image
    waves = 2 * np.pi * np.fft.fftfreq(256)
    for kind, (frequency, direction) in enumerate([(0.5, 0), (0.5, 90), (1.1, 45), (1.1, 135)]):
        for disc in images[(labels // 4 == 0) & (labels % 4 == kind), 0]:
            spectrum = np.abs(np.fft.fft2(disc - disc.mean(), s=(256, 256)))
            y, x = np.unravel_index(spectrum.argmax(), spectrum.shape)
            assert np.hypot(waves[y], waves[x]) == pytest.approx(frequency, rel=0.15)
            turned = np.rad2deg(np.arctan2(waves[y], waves[x])) - direction
            assert abs((turned + 90) % 180 - 90) < 30  # within 4 standard deviations of 0.12 rad


def test_each_shape_covers_its_area():
    images, labels = paint_images("train", np.arange(160), noise=0.0, radius=(0.3, 0.3))
    covered = (images != images[:, :, :1, :1]).any(axis=1).sum(axis=(1, 2)) / (0.3 * 48) ** 2  # no shape has the corner
    triangle, cross = 1.6**2 / 1.9, 2 * 0.6 * 1.9 - 0.6**2
    for kind, area in enumerate([np.pi, 1.6**2, triangle, cross]):
        assert covered[labels // 4 == kind].mean() == pytest.approx(area, rel=0.02)


def test_difficulty_changes_only_what_it_names():
    rows = np.arange(16)
    easy, _ = paint_images("train", rows, noise=0.0)
    noisy, _ = paint_images("train", rows, noise=0.2)
    assert (noisy - easy).std() == pytest.approx(0.2, rel=0.02)
    small, _ = paint_images("train", rows, noise=0.0, radius=(0.1, 0.12))
    assert (small != easy).any(axis=1).mean(axis=(1, 2)).max() < 0.7  # the background stays
    identities = {
        Shapes(noise=noise, radius=radius).data.identity for noise in (0.1, 0.2) for radius in ((0.2, 0.3), (0.3, 0.4))
    }
    assert len(identities) == 4
