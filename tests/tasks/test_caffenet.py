"""CaffeNet: published sizes, Caffe's own conventions, and its squeezed photographs."""

from pathlib import Path

import numpy as np
import pytest
from abstract import check_torch, count_parameters, make_images, trace_jax
from PIL import Image

from suite.contract import UserError
from suite.launch.job import make_task
from suite.settings import configure
from suite.tasks.caffenet.architecture import Architecture, compute_pooled_side

PUBLISHED = {1000: 60_965_224, 16: 56_933_776}


@pytest.mark.parametrize("classes", PUBLISHED)
def test_parameters_of_the_published_network(classes: int) -> None:
    from suite.tasks.caffenet.torch import Model

    at = Architecture(96, 4096, classes, 227)
    assert count_parameters(at.shapes()) == PUBLISHED[classes]
    check_torch(lambda: Model(at), at.shapes())


def test_jax_takes_the_published_parameters() -> None:
    from suite.tasks.caffenet.jax import Model

    at = Architecture(96, 4096, 1000, 227)
    outputs, _ = trace_jax(Model(at), at.shapes(), make_images(2, 227), train=False)
    assert outputs["logits"].shape == (2, 1000)


@pytest.mark.quick
@pytest.mark.parametrize("side", [13, 14, 27, 55])
def test_pools_round_up_in_both_backends(side: int) -> None:
    import jax.numpy as jnp
    import torch

    from suite.tasks.caffenet.jax import _max_pool

    x = np.random.default_rng(0).normal(size=(1, side, side, 2)).astype(np.float32)
    ours = np.asarray(_max_pool(jnp.asarray(x)))
    theirs = torch.nn.functional.max_pool2d(torch.from_numpy(x.transpose(0, 3, 1, 2)), 3, 2, ceil_mode=True)
    assert ours.shape[1] == compute_pooled_side(side) == -(-(side - 3) // 2) + 1
    assert np.array_equal(ours, theirs.numpy().transpose(0, 2, 3, 1))


def test_local_response_normalisation_divides_alpha_by_the_window() -> None:
    """By hand at one place, with channels beyond the edge left out."""
    import jax.numpy as jnp
    import torch

    from suite.tasks.caffenet.jax import _local_response_norm
    from suite.tasks.caffenet.torch import normalize_responses

    x = 100 * np.random.default_rng(0).normal(size=(1, 1, 1, 7))
    expected = x[0, 0, 0, 1] / (1 + 1e-4 / 5 * (x[0, 0, 0, 0:4] ** 2).sum()) ** 0.75
    assert np.asarray(_local_response_norm(jnp.asarray(x, jnp.float32)))[0, 0, 0, 1] == pytest.approx(
        expected, rel=1e-5
    )
    in_torch = normalize_responses(torch.from_numpy(x.transpose(0, 3, 1, 2)))
    assert in_torch[0, 1, 0, 0].item() == pytest.approx(expected, rel=1e-9)


def test_local_response_normalisation_is_torchs_bit_for_bit() -> None:
    import torch

    from suite.tasks.caffenet.torch import normalize_responses

    def normalize(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.local_response_norm(x, 5, 1e-4, 0.75)

    values = 100 * torch.randn(2, 7, 5, 3, generator=torch.Generator().manual_seed(0))
    found = []
    for function in (normalize_responses, normalize):
        x = values.clone().requires_grad_()
        output = function(x)
        (output * values.flip(0)).sum().backward()
        found.append((output, x.grad))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_pooling_comes_before_normalisation() -> None:
    import torch

    from suite.tasks.caffenet import torch as caffenet

    model, seen = caffenet.Model(Architecture(6, 8, 3, 64)), []
    pool, norm = torch.nn.functional.max_pool2d, caffenet.normalize_responses
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "max_pool2d", lambda *a, **k: (seen.append("pool"), pool(*a, **k))[1])
        patch.setattr(caffenet, "normalize_responses", lambda *a: (seen.append("norm"), norm(*a))[1])
        model.eval()
        model.logits(torch.zeros(1, 3, 64, 64), key=None, index=torch.zeros(1, dtype=torch.long))
    assert seen == ["pool", "norm", "pool", "norm", "pool"]


def photographs(folder: Path, classes: list[str]) -> Path:
    for split, count in (("train", 3), ("val", 2)):
        for number, name in enumerate(classes):
            (folder / split / name).mkdir(parents=True)
            for place in range(count):
                pixels = np.full((40, 60, 3), 20 * number + place, np.uint8)
                pixels[:, 30:] += 100
                Image.fromarray(pixels).save(folder / split / name / f"{place}.png")
    return folder


def test_photographs_are_squeezed_then_cut(tmp_path: Path) -> None:
    """A picture twice as wide as high keeps both its halves, which a crop of the shorter side would not."""
    root = photographs(tmp_path, ["a", "b", "c"])
    chosen = ["task=caffenet", "task.data=folder", f"data_dir={root}", "task.image_size=227", "task.classes=[a,c]"]
    task = make_task(configure.resolve([*chosen, "task.batch_size=4", "task.eval_batch_size=4"]))
    batch = task.batch("valid", 0, 0)
    assert batch["image"].shape == (4, 3, 227, 227) and batch["label"].tolist() == [0, 0, 1, 1]
    left, right = batch["image"][0, 0, :, 0], batch["image"][0, 0, :, -1]
    assert np.allclose(left, -123) and np.allclose(right, -23), "the mean is subtracted and nothing divided"
    edge = [int(np.argmax(np.abs(image[0, 0] - image[0, 0, 0]) > 50)) for image in task.batch("train", 0, 0)["image"]]
    assert len(set(edge)) > 1 and all(84 <= place <= 128 for place in edge), "the square lies anywhere in 256 × 256"


def test_classes_need_directories(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has none"):
        make_task(configure.resolve(["task=caffenet", "task.classes=[a]"]))
    root = photographs(tmp_path, ["a", "b"])
    with pytest.raises(UserError, match="no class directory"):
        make_task(configure.resolve(["task=caffenet", "task.data=folder", f"data_dir={root}", "task.classes=[x]"]))


def test_real_photographs(shared_data: Path) -> None:
    chosen = ["task=caffenet", "task.data=folder", f"data_dir={shared_data / 'clothing16'}", "task.image_size=64"]
    task = make_task(configure.resolve([*chosen, "task.width=24", "task.hidden=32"]))
    assert task.architecture.classes == 16 and task.data.samples == {"train": 3068, "valid": 772}
    assert np.isfinite(task.batch("train", 0, 3)["image"]).all()


def test_a_head_of_1000_outputs_on_any_classes(tmp_path: Path) -> None:
    """61.0 million parameters, as the AdaPrec poster's on 16 classes; fewer outputs than classes are rejected."""
    root = photographs(tmp_path, ["a", "b", "c"])
    chosen = ["task=caffenet", "scale=gpu", f"data_dir={root}", "task.batch_size=2", "task.eval_batch_size=2"]
    task = make_task(configure.resolve([*chosen, "task.classes=[a,c]"]))
    assert sum(int(np.prod(spec.shape)) for spec in task.shapes().values()) == 60_965_224
    assert set(task.batch("train", 0, 0)["label"].tolist()) <= {0, 1}
    own = make_task(configure.resolve([*chosen, "task.head=0"]))
    assert own.architecture.classes == 3
    with pytest.raises(UserError, match=r"task\.head=2: fewer outputs than the 3 classes"):
        make_task(configure.resolve([*chosen, "task.head=2"]))
