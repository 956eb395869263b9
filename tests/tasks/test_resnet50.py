"""ResNet: sizes without allocation, and the same numbers in both backends."""

from typing import Any

import engines
import numpy as np
import pytest
from abstract import check_torch, count_gradients, count_parameters, find_parameters, make_images, trace_jax
from engines import gap, weights

from suite import load
from suite.tasks._data.shapes import Shapes
from suite.tasks._images.resnet import Architecture
from suite.tasks.resnet50 import ResNet50

PUBLISHED = Architecture((3, 4, 6, 3), 64, 1000, 32)
PARAMETERS = 25_557_032
SMALL = Architecture((1, 1, 1, 1), 4, 16, 8)


def task(**options: Any) -> ResNet50:
    images = Shapes(32, train=256, valid=40)
    defaults = {"batch_size": 16, "eval_batch_size": 16, "targets": [90]}
    return ResNet50(images, architecture=SMALL, **(defaults | options))


def engine(backend: str, made: ResNet50, optimizer: str = "sgd", **changes: Any) -> Any:
    settings = engines.change(
        engines.config(optimizer, backend, **changes), {"task": {"module": "suite.tasks.resnet50"}}
    )
    return engines.engine(settings, made)


def test_parameters_of_the_published_network_from_its_description() -> None:
    assert count_parameters(PUBLISHED.shapes()) == PARAMETERS


def test_parameters_of_the_published_network_in_torch() -> None:
    from suite.tasks._images.torch_resnet import ResNet

    model = check_torch(lambda: ResNet(PUBLISHED), PUBLISHED.shapes())
    described = {name: spec.shape for name, spec in PUBLISHED.shapes().items()}
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == described


def test_parameters_of_the_published_network_in_jax() -> None:
    """An abstract model takes exactly the described parameters and gives (N, 1000) logits."""
    from suite.tasks._images.jax_resnet import ResNet

    model, shapes, batch = ResNet(PUBLISHED), PUBLISHED.shapes(), make_images(32, 224)
    outputs, buffers = trace_jax(model, shapes, batch)
    assert outputs["logits"].shape == (32, 1000)
    described = {name: spec.shape for name, spec in shapes.items() if spec.kind != "parameter"}
    assert {name: value.shape for name, value in buffers.items()} == described
    assert count_gradients(model, shapes, batch) == PARAMETERS


def test_curvature_covers_the_107_layers_of_the_published_network() -> None:
    from suite.optimizers.kfac import Settings
    from suite.optimizers.kfac.plan import KFACPlan

    kinds = [layer.kind for layer in PUBLISHED.layers().values()]
    assert [kinds.count(kind) for kind in ("conv2d", "batchnorm", "linear")] == [53, 53, 1]
    shapes = find_parameters(PUBLISHED.shapes())
    assert KFACPlan(PUBLISHED.layers(), shapes, Settings()).covered == set(shapes)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"smoothing": 0.1, "mixup": 0.4}], ids=str)
def test_loss_and_every_gradient_agree(options: dict[str, Any]) -> None:
    """One step of lr 1 is the gradient: by name, relative to the global norm, in both precisions."""
    for precision, bound in (("float64", 1e-12), ("float32", 1e-4)):
        gradients, losses = [], []
        for backend in engines.BACKENDS:
            made = engine(backend, task(**options), hyper={"lr": 1.0, "momentum": 0.0}, precision=precision)
            before = weights(made)
            losses.append(engines.advance(made, range(1))[0])
            after = weights(made)
            gradients.append({name: before[name] - after[name] for name in before if "running" not in name})
        norm = np.sqrt(sum(float((value**2).sum()) for value in gradients[0].values()))
        assert abs(losses[0] - losses[1]) <= bound
        assert gap(*gradients) <= bound * norm


# eigenvectors are the same in both only where statistics have full rank: those of sides of a few channels have
FULL_RANK = {"soap": {"max_size": 8}}


LOOKS = [name for name, node in engines.INSIDE.items() if "shapes" in load.load_member(node["module"]).NEEDS]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", *LOOKS])
def test_ten_updates_agree(optimizer: str) -> None:
    """Those that look at layers or shapes. Running mixup is on, so that the carry is followed as well."""
    ends = []
    for backend in engines.BACKENDS:
        made = engine(backend, task(mixup=0.4), optimizer, hyper=FULL_RANK.get(optimizer, {}))
        engines.advance(made, range(10))
        ends.append(weights(made))
    assert gap(*ends) <= 1e-10


@pytest.mark.slow
def test_two_devices_and_micro_batches_with_mixup() -> None:
    ends = []
    for changes in ({}, {"accumulate": 2}, {"world": 2}):
        made = engine("jax", task(mixup=0.4), "sgd", **changes)
        engines.advance(made, range(6))
        ends.append(weights(made))
    assert gap(ends[0], ends[1]) <= 1e-10 and gap(ends[0], ends[2]) <= 1e-10


@pytest.mark.slow
def test_evaluation_agrees_and_counts_every_image_once() -> None:
    made = task()
    scores = []
    for backend in engines.BACKENDS:
        made_engine = engine(backend, made)
        engines.advance(made_engine, range(3))
        parts = list(made_engine.evaluate(made.batch("valid", 0, index) for index in range(made.batches("valid"))))
        assert sum(part["weight"].sum() for part in parts) == 40  # 16 + 16 + 8, the last batch padded
        scores.append(made.score(parts))
    assert scores[0]["top1"] == scores[1]["top1"]
    assert abs(scores[0]["loss"] - scores[1]["loss"]) < 1e-10


def test_evaluation_uses_running_statistics() -> None:
    """A batch of one image and a batch of many give an image the same logits."""
    for backend in engines.BACKENDS:
        made = task(eval_batch_size=8)
        made_engine = engine(backend, made)
        engines.advance(made_engine, range(2))
        batch = made.batch("valid", 0, 0)
        whole = next(iter(made_engine.evaluate([batch])))["logits"]
        part = next(iter(made_engine.evaluate([{name: value[:1] for name, value in batch.items()}])))["logits"]
        assert np.abs(whole[:1] - part).max() < 1e-12


def test_batch_norm_is_torchs_own_where_the_group_is_the_batch() -> None:
    import torch

    from suite.tasks._nn.torch import BatchNorm2d

    ours, theirs = BatchNorm2d(3, group=8), torch.nn.BatchNorm2d(3)
    x = torch.from_numpy(np.random.default_rng(0).normal(2.0, 3.0, size=(8, 3, 5, 5)).astype(np.float32))
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    assert torch.allclose(ours.running_mean, theirs.running_mean)
    assert torch.allclose(ours.running_var, theirs.running_var)
    ours.eval(), theirs.eval()
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)


def test_strided_layers_pad_alike() -> None:
    """Symmetric padding in jax too: its `SAME` would shift windows of stride 2 by one pixel."""
    import jax.numpy as jnp
    import torch

    from suite.tasks._nn.jax import conv2d, max_pool

    x = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)
    weight = np.random.default_rng(1).normal(size=(4, 3, 7, 7)).astype(np.float32)
    ours = conv2d(jnp.asarray(x.transpose(0, 2, 3, 1)), jnp.asarray(weight), stride=2, padding=3)
    theirs = torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(weight), stride=2, padding=3)
    assert np.allclose(np.asarray(ours).transpose(0, 3, 1, 2), theirs.numpy(), atol=1e-3)
    pooled = max_pool(jnp.asarray(x.transpose(0, 2, 3, 1)), window=3, stride=2, padding=1)
    assert np.array_equal(
        np.asarray(pooled).transpose(0, 3, 1, 2), torch.nn.functional.max_pool2d(torch.from_numpy(x), 3, 2, 1).numpy()
    )


@pytest.mark.quick
def test_running_mixup_blends_with_the_step_before() -> None:
    """x̃ᵗ = λ xᵗ + (1 - λ) x̃ᵗ⁻¹, from λ = 1 in the first step."""
    made = task(mixup=0.4)
    in_torch = engine("torch", made)
    blend = made.batch("train", 0, 0)["image"].astype(np.float64)
    engines.advance(in_torch, range(1))
    assert np.allclose(in_torch.carry[0]["image"].numpy(), blend)
    batch = made.batch("train", 0, 1)
    mix = batch["mix"].astype(np.float64)[:, None, None, None]
    engines.advance(in_torch, range(1, 2))
    assert np.allclose(in_torch.carry[0]["image"].numpy(), mix * batch["image"] + (1 - mix) * blend)


@pytest.mark.quick
def test_running_mixup_mixes_labels_as_images_in_jax() -> None:
    import jax.numpy as jnp

    from suite.tasks._images.jax import Classifier

    class Flat(Classifier):
        def logits(self, params, buffers, x, *, train, key, index, tap):
            return x.reshape(len(x), -1)[:, : self.architecture.classes], {}

    batch = {"image": jnp.ones((2, 3, 4, 4)), "label": jnp.array([0, 1]), "index": jnp.arange(2)}
    carry = {"image": jnp.zeros((2, 3, 4, 4)), "target": jnp.zeros((2, SMALL.classes))}
    mix = jnp.array([0.25, 0.75])
    _, _, carry = Flat(SMALL).apply({}, {}, carry, batch | {"mix": mix}, train=True, key=None, tap=lambda *_: None)
    assert np.allclose(carry["image"], mix[:, None, None, None] * np.ones((2, 3, 4, 4)))
    assert np.allclose(carry["target"], mix[:, None] * np.eye(SMALL.classes)[:2])
