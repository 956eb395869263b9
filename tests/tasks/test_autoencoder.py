"""Autoencoders: published sizes, formats and what may be wrong with them, and generated images whose floor is known."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from abstract import check_torch, count_parameters, trace_jax
from engines import engine
from idxes import write_set
from small import small

from suite.contract import UserError
from suite.launch.job import make_task
from suite.settings import configure
from suite.tasks.autoencoder import curves, faces, files
from suite.tasks.autoencoder.architecture import Architecture

CARD = Path(curves.__file__).parent / "CARD.md"
PARAMETERS = {"mnist": 2_837_314, "curves": 842_340, "faces": 7_537_655}


def absent(variant: str) -> Any:
    config = configure.resolve(["task=autoencoder", f"task.variant={variant}"])
    return make_task(config, absent=True)


@pytest.mark.parametrize("variant", PARAMETERS)
def test_parameters_of_the_published_networks(variant: str) -> None:
    from suite.tasks.autoencoder.torch import Model

    made = absent(variant)
    assert count_parameters(made.shapes()) == PARAMETERS[variant]
    check_torch(lambda: Model(made.architecture), made.shapes())


@pytest.mark.parametrize("variant", PARAMETERS)
def test_jax_takes_the_published_parameters(variant: str) -> None:
    from suite.tasks.autoencoder.jax import Model

    at = absent(variant).architecture
    outputs, _ = trace_jax(Model(at), at.shapes(), {"image": np.zeros((4, at.widths[0]), np.float32)})
    assert outputs["output"].shape == (4, at.widths[0])


def test_the_code_and_the_output_are_linear() -> None:
    relu = [follows for *_, follows in Architecture((784, 1000, 500, 250, 30), "bernoulli").sequence]
    assert relu == [True, True, True, False, True, True, True, False]


@pytest.mark.quick
@pytest.mark.parametrize("loss", ["bernoulli", "squared"])
def test_loss_and_penalty_by_hand(loss: str) -> None:
    import torch

    from suite.tasks.autoencoder.torch import Model

    model = Model(Architecture((4, 3), loss, penalty=0.1)).double()
    image = torch.rand(5, 4, dtype=torch.float64)
    batch = {"image": image, "weight": torch.tensor([1.0, 1.0, 0.0, 2.0, 1.0], dtype=torch.float64)}
    total, weight = model.loss(model(batch)[0], batch)
    z = (image @ model.layers[0].weight.T + model.layers[0].bias) @ model.layers[1].weight.T + model.layers[1].bias
    p = z.sigmoid()
    entropy = -(image * p.log() + (1 - image) * (1 - p).log()).sum(1)
    each = entropy if loss == "bernoulli" else 0.5 * ((z - image) ** 2).sum(1)
    norm = sum((value**2).sum() for value in model.parameters())
    assert weight == 5 and torch.allclose(total, (each * batch["weight"]).sum() + 5 * 0.05 * norm)


# ------------------------------------------------------------------------------------------------- files
@pytest.mark.parametrize("pack", [False, True])
def test_idx_files(pack: bool, tmp_path: Path) -> None:
    write_set(tmp_path, pack=pack, train=7, valid=3)
    images = files.load_mnist(data_dir=str(tmp_path))
    expected = np.random.default_rng(7).integers(0, 256, (7, 28, 28), np.uint8).reshape(7, -1)
    assert np.allclose(images.read("train", np.array([6, 0])), expected[[6, 0]] / 255, atol=1e-7)
    assert images.data.samples == {"train": 7, "valid": 3} and "not the canonical" in images.data.note
    assert len(files.check(str(tmp_path))) == 2 and files.census(str(tmp_path))["valid"] == {"images": 3}


@pytest.mark.quick
@pytest.mark.parametrize("pack", [False, True])
def test_idx_files_with_a_dot_in_their_names(pack: bool, tmp_path: Path) -> None:
    """As in some archives; the folder's name does not make them MNIST."""
    (tmp_path / "MNIST").mkdir()
    write_set(tmp_path / "MNIST", pack=pack, train=7, valid=3)
    expected = files.load_mnist(data_dir=str(tmp_path / "MNIST"))
    for path in list((tmp_path / "MNIST").iterdir()):
        path.rename(path.with_name(path.name.replace("-idx3", ".idx3")))
    found = files.load_mnist(data_dir=str(tmp_path / "MNIST"))
    assert found.data == expected.data and found.data.name == "idx-images"
    assert len(files.check(str(tmp_path / "MNIST"))) == 2


def test_damaged_idx_files_are_named(tmp_path: Path) -> None:
    write_set(tmp_path, train=7, valid=3)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz: damaged"):
        files.load_mnist(data_dir=str(tmp_path))
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-10]))
    with pytest.raises(UserError, match=r"5,494 bytes instead of 5,504"):
        files.load_mnist(data_dir=str(tmp_path))
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + gzip.decompress(whole)[4:]))
    with pytest.raises(UserError, match="begins with 2049"):
        files.load_mnist(data_dir=str(tmp_path))
    path.unlink()
    with pytest.raises(UserError, match="missing; put the set's four"):
        files.load_mnist(data_dir=str(tmp_path))


def test_matlab_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat

    draw = np.random.default_rng(0)
    strokes = {"bdata": draw.random((6, 784)), "bdatatest": draw.random((3, 784))}
    savemat(tmp_path / "digs3pts_1.mat", strokes)
    made = files.load_curves(data_dir=str(tmp_path))
    assert np.allclose(made.read("valid", np.array([2])), strokes["bdatatest"][2])
    monkeypatch.setattr(files, "FACES_SPLIT", (5, 2))
    faces_in = draw.random((625, 10))
    savemat(tmp_path / "newfaces_rot_single.mat", {"newfaces_single": faces_in})
    made = files.load_faces(data_dir=str(tmp_path))
    assert made.data.samples == {"train": 5, "valid": 2}
    assert np.allclose(made.read("train", np.array([0])), faces_in[:, 0]), "images are columns"
    assert np.allclose(made.read("valid", np.array([1])), faces_in[:, 9]), "the last are for testing"
    savemat(tmp_path / "digs3pts_1.mat", {"bdata": strokes["bdata"]})
    with pytest.raises(UserError, match="contains no bdatatest"):
        files.load_curves(data_dir=str(tmp_path))


def test_real_mnist_has_the_known_floor(shared_data: Path) -> None:
    """Cross-entropy of the test images with themselves, and of the mean training image, from the CARD."""
    images = files.load_mnist(data_dir=str(shared_data / "mnist"))
    assert images.data.name == "MNIST" and images.data.note == "" and files.check(str(shared_data / "mnist")) == []
    naive, floor = bounds(images)
    assert f"{naive:.2f}" in CARD.read_text() and f"{floor:.2f}" in CARD.read_text()


def test_images_must_fit_the_network(tmp_path: Path) -> None:
    write_set(tmp_path, train=7, valid=3)
    chosen = ["task=autoencoder", "task.variant=faces", "task.data=mnist", f"data_dir={tmp_path}"]
    with pytest.raises(UserError, match="images have 784 pixels"):
        make_task(configure.resolve(chosen))


def test_the_authors_logs_are_of_the_training_images_and_the_penalty(tmp_path: Path) -> None:
    write_set(tmp_path, train=7, valid=3)
    chosen = ["task=autoencoder", "scale=gpu", f"data_dir={tmp_path}", "task.eval_batch_size=5"]
    usual = make_task(configure.resolve(chosen))
    theirs = make_task(configure.resolve([*chosen, "task.evaluate_on=train", "task.metric=objective"]))
    assert (usual.batches("valid"), theirs.batches("valid")) == (1, 2)
    seen = np.concatenate([theirs.batch("valid", 0, index)["image"] for index in range(2)])
    assert np.array_equal(seen[:7], usual.images.read("train", np.arange(7)))
    assert np.array_equal(usual.batch("valid", 0, 0)["image"][:3], usual.images.read("valid", np.arange(3)))
    assert {target.metric for target in usual.targets} == {"loss"} and {t.metric for t in theirs.targets} == {
        "objective"
    }
    assert "measured on the training images" in theirs.data.note and usual.data.note != theirs.data.note
    part = {"loss": np.array([1.0, 3.0, 9.0]), "error": np.zeros(3), "penalty": np.full(3, 0.25)}
    scored = theirs.score([part | {"weight": np.array([1.0, 1.0, 0.0])}])
    assert (scored["loss"], scored["objective"]) == (2.0, 2.25)


@pytest.mark.quick
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_evaluation_puts_out_the_penalty(backend: str) -> None:
    settings = small("autoencoder", None, f"backend={backend}", precision="float64")
    task = make_task(settings)
    made = engine(settings, task)
    norm = sum(float((task.init(settings.seed, name).astype(float) ** 2).sum()) for name in task.shapes())
    part = next(iter(made.evaluate([task.batch("valid", 0, 0)])))
    assert np.allclose(part["penalty"], 0.5 * task.architecture.penalty * norm, rtol=1e-12, atol=0.0)


# ------------------------------------------------------------------------------------------------- generated images
def bounds(images: Any) -> tuple[float, float]:
    """Cross-entropy of the validation images with the mean training image, and with themselves."""
    mean = images.read("train", np.arange(images.data.samples["train"])).mean(0, dtype=np.float64).clip(1e-7, 1 - 1e-7)
    valid = images.read("valid", np.arange(images.data.samples["valid"])).astype(np.float64)
    inside = valid.clip(1e-12, 1 - 1e-12)
    entropy = lambda p: float(-(valid * np.log(p) + (1 - valid) * np.log(1 - p)).sum(1).mean())  # noqa: E731
    return entropy(mean), entropy(inside)


def test_generated_strokes_have_the_bounds_of_the_card() -> None:
    naive, floor = bounds(curves.make())
    assert f"| {naive:.1f} | {floor:.2f} |" in CARD.read_text()


def test_generated_faces_have_the_bound_of_the_card() -> None:
    images = faces.make()
    mean = images.read("train", np.arange(20_000)).mean(0)
    valid = images.read("valid", np.arange(5_000))
    assert f"| {0.5 * ((valid - mean) ** 2).sum(1).mean():.1f} | 0 |" in CARD.read_text()
    assert valid.min() > -0.3 and valid.max() < 2.0


@pytest.mark.parametrize("source, chunk", [(curves, curves.CHUNK), (faces, faces.CHUNK)])
def test_an_image_does_not_depend_on_how_many_are_made(source: Any, chunk: int) -> None:
    whole = source.make(train=2 * chunk + 3, valid=chunk)
    few = source.make(train=chunk + 2, valid=chunk)
    rows = np.arange(chunk + 2)
    assert np.array_equal(whole.read("train", rows), few.read("train", rows))
    assert not np.array_equal(whole.read("train", rows[:chunk]), whole.read("valid", rows[:chunk]))
