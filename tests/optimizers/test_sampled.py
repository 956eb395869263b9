"""Fisher matrix by one draw of labels: they come from the model's own distribution, and so do the factors."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from engines import BACKENDS, config, engine
from small import small

from suite import load
from suite.launch.job import make_task

COUNT = 20_000


def drawn(backend: str, key: tuple[int, int], logits: np.ndarray) -> np.ndarray:
    """Whole numbers (n,): the classes that an image classifier's `sample` draws."""
    settings = small("cifar10", None, "optimizer=sgd", f"backend={backend}")
    model = load.load_half(settings.task.module, backend).make(make_task(settings))
    words, index = np.asarray(key, np.uint32), np.arange(len(logits))
    if backend == "torch":
        outputs = {"logits": torch.from_numpy(logits), "target": torch.zeros(logits.shape)}
        target = model.sample(outputs, words, {"index": torch.from_numpy(index)})["target"].numpy()
    else:
        outputs = {"logits": jnp.asarray(logits), "target": jnp.zeros(logits.shape)}
        target = np.asarray(model.sample(outputs, jnp.asarray(words), {"index": jnp.asarray(index)})["target"])
    assert set(np.unique(target)) == {0.0, 1.0} and (target.sum(1) == 1.0).all()
    return target.argmax(1)


def softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_labels_are_drawn_from_the_models_own_distribution(backend: str) -> None:
    """Each sample from its own: frequencies, and their correlation with the probabilities, within four deviations."""
    logits = 2.0 * np.random.default_rng(0).normal(size=(COUNT, 10)).astype(np.float32)
    p = softmax(logits)
    labels = {key: drawn(backend, key, logits) for key in ((0, 0), (0, 7), (3, 0))}
    for found in labels.values():
        excess, variance = np.eye(10)[found] - p, p * (1.0 - p)
        for weight in (np.ones_like(p), p):
            assert (np.abs((weight * excess).sum(0)) < 4.0 * np.sqrt((weight**2 * variance).sum(0))).all()
    same = (p * p).sum(1)  # how often two independent draws agree
    for one, other in ((0, 0), (0, 7)), ((0, 0), (3, 0)):
        equal = labels[one] == labels[other]
        assert abs((equal - same).sum()) < 4.0 * np.sqrt((same * (1.0 - same)).sum()), "each step and seed draws anew"


def test_both_backends_draw_the_same_labels() -> None:
    logits = 2.0 * np.random.default_rng(1).normal(size=(COUNT, 10)).astype(np.float32)
    one, other = (drawn(backend, (5, 6), logits) for backend in BACKENDS)
    assert (one != other).sum() <= 3, "but for draws within a rounding of the border between two classes"


def test_the_last_layers_factor_is_the_fisher_matrix_on_average() -> None:
    """Over many steps' draws G is Σ w (diag p - p pᵀ) / Σ w within four deviations; with the given labels it is not."""
    made: Any = engine(config("kfac", "torch", hyper={"fisher": "sampled"}))
    batch, seen = made.task.batch("train", 0, 0), []
    hook = made.model.fc.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().numpy()))
    micro = made._micro(batch)

    def factor(step: int, labels: str) -> np.ndarray:
        share = made._evaluate(micro, (0, step), labels=labels, observe=made._curvature)
        return share.statistics["fc/out"].numpy().copy()

    found = np.stack([factor(step, "sampled") for step in range(600)])
    given = factor(0, "given")
    hook.remove()
    p, weight = softmax(seen[0]), batch["weight"] / batch["weight"].sum()
    exact = np.einsum("n,ni,ij->ij", weight, p, np.eye(4)) - np.einsum("n,ni,nj->ij", weight, p, p)
    deviation = found.std(0) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - exact) < 4.0 * deviation).all()
    assert (np.abs(given - exact) > 4.0 * deviation).any()
