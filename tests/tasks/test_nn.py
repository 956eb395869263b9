"""Layers that several models share: the same numbers in both backends, and what their papers say."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch

from suite import stream
from suite.contract import Spec
from suite.tasks import _nn
from suite.tasks._nn.torch import BatchNorm2d, cross_entropies

pytestmark = pytest.mark.quick

KEY = (3, 17)
KNOWN = ["...xx.........x.", "xxxx.xx.xx.xxx.."]


@pytest.mark.parametrize("index", [0, 5, 2**31 + 7])
@pytest.mark.parametrize("key", [KEY, (2**32 - 1, 0)])
def test_torch_draws_what_numpy_draws(index: int, key: tuple[int, int]) -> None:
    from suite.stream.torch import keep, uniform

    places = index + np.arange(1000)
    there = torch.from_numpy(places)
    assert np.array_equal(uniform(key, "layer", there).numpy(), stream.uniform(np, key, "layer", places))
    traced = tuple(map(torch.tensor, key))
    assert np.array_equal(uniform(traced, "layer", there).numpy(), stream.uniform(np, key, "layer", places))
    for size, rate in ((1, 0.5), (2, 0.1), (7, 0.9), (64, 1e-6), (64, 0.999999)):
        assert np.array_equal(
            keep(key, "layer", there, size, rate).numpy(), stream.keep(np, key, "layer", places, size, rate)
        )


def test_normal_draws_in_torch_are_numpys_but_for_their_last_bits() -> None:
    from suite.stream.torch import normal

    places = np.arange(100_000)
    found = normal(KEY, "layer", torch.from_numpy(places)).numpy()
    assert found.dtype == np.float32
    assert np.allclose(found, stream.normal(np, KEY, "layer", places), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_labels_are_the_first_whose_cumulative_probability_is_not_below_the_draw(kind: str) -> None:
    """Of many classes and few, likely and impossible ones, in both frameworks."""
    import jax
    import jax.numpy as jnp

    from suite.tasks._nn import jax as in_jax
    from suite.tasks._nn import torch as in_torch

    generator = np.random.default_rng(7)
    for classes, size in ((2, 500), (3000, 50)):
        logits = (4.0 * generator.normal(size=(3, size, classes))).astype(kind)
        logits[0, :, 1] = -np.inf
        draws = stream.uniform(np, KEY, "label", np.arange(3 * size)).reshape(3, size)
        shares = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
        cumulative = np.cumsum(shares / shares.sum(-1, keepdims=True), -1)
        found = in_torch.draw_labels(torch.from_numpy(logits), torch.from_numpy(draws)).numpy()
        with jax.enable_x64(kind == "float64"):
            assert np.array_equal(found, np.asarray(in_jax.draw_labels(jnp.asarray(logits), jnp.asarray(draws))))
        before = np.take_along_axis(np.pad(cumulative, ((0, 0), (0, 0), (1, 0))), found[..., None], -1)[..., 0]
        after = np.take_along_axis(cumulative, found[..., None], -1)[..., 0]
        assert np.all((before - 1e-6 <= draws) & (draws <= after + 1e-6)) and not (found[0] == 1).any()


def test_the_elements_of_dropout_are_independent() -> None:
    """Neighbours share a word, samples share the columns' words: no pair of either may agree too often."""
    rate, samples, size = 0.25, 256, 256
    kept = np.stack([stream.keep(np, (1, step), "d", np.arange(samples), size, rate) for step in range(4)])
    assert abs(kept.mean() - 0.75) < 4 * (rate * (1 - rate) / kept.size) ** 0.5
    centred = (kept - 0.75) / (rate * (1 - rate)) ** 0.5
    for values in (centred.reshape(-1, size).T, centred.transpose(1, 0, 2).reshape(samples, -1)):
        correlations = (values @ values.T)[np.triu_indices(len(values), 1)] / values.shape[1] ** 0.5
        assert abs(correlations.std() - 1) < 0.02 and np.abs(correlations).max() < 5.5
    square = centred[:, ::2, ::2] * centred[:, 1::2, ::2] * centred[:, ::2, 1::2] * centred[:, 1::2, 1::2]
    assert abs(square.mean()) < 4 / square.size**0.5


def test_the_masks_of_dropout_are_known() -> None:
    """Written down once: a change of the stream would change every run with dropout."""
    kept = stream.keep(np, (3, 5), "d", np.arange(2), 16, 0.5)
    assert ["".join("x."[1 - bit] for bit in row) for row in kept.astype(int)] == KNOWN


def test_dropout_is_the_same_in_both_backends_and_belongs_to_the_sample() -> None:
    import jax.numpy as jnp

    from suite.tasks._nn import jax as in_jax
    from suite.tasks._nn import torch as in_torch

    x, index = np.ones((8, 40, 50), np.float32), np.array([3, 1, 4, 15, 9, 2, 6, 5])
    ours = in_torch.dropout(torch.from_numpy(x), 0.3, key=KEY, name="d", index=torch.from_numpy(index)).numpy()
    key = jnp.asarray(KEY, jnp.uint32)
    theirs = in_jax.dropout(jnp.asarray(x), 0.3, key=key, name="d", index=jnp.asarray(index))
    assert np.array_equal(ours, np.asarray(theirs))
    assert set(np.unique(ours)) == {0.0, np.float32(1 / stream.share_kept(0.3))}
    assert abs((ours == 0).mean() - 0.3) < 4 * (0.3 * 0.7 / x.size) ** 0.5
    part = in_torch.dropout(torch.from_numpy(x[4:6]), 0.3, key=KEY, name="d", index=torch.from_numpy(index[4:6]))
    assert np.array_equal(part.numpy(), ours[4:6]), "a sample's mask does not depend on its neighbours"


@pytest.mark.parametrize("dropped", [False, True])
def test_attention_agrees_with_its_formula(dropped: bool) -> None:
    import jax.numpy as jnp

    from suite.tasks._nn import jax as in_jax
    from suite.tasks._nn import torch as in_torch

    draw = np.random.default_rng(0).normal
    q, k, v = draw(size=(2, 3, 5, 4)), draw(size=(2, 3, 7, 4)), draw(size=(2, 3, 7, 4))
    allowed = np.arange(7) <= np.arange(5)[:, None] + 1
    scores = np.where(allowed, np.einsum("nhtd,nhsd->nhts", q, k) / 2.0, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    half: Any = (lambda p: 0.5 * p) if dropped else None
    expected = (0.5 if dropped else 1.0) * (weights / weights.sum(-1, keepdims=True)) @ v
    tensors = [torch.from_numpy(value) for value in (q, k, v, allowed)]
    assert np.allclose(in_torch.attention(*tensors, drop=half).numpy(), expected)
    arrays = [jnp.asarray(value) for value in (q, k, v, allowed)]
    assert np.allclose(np.asarray(in_jax.attention(*arrays, drop=half)), expected, atol=1e-5)


def test_an_unknown_initializer_is_named() -> None:
    with pytest.raises(ValueError, match="w: initializer fan_in: unknown; did you mean fan_in_normal"):
        _nn.draw_initial_value(Spec((3, 2), "fan_in"), 0, "w")


@pytest.mark.parametrize(
    "initializer, deviation, largest",
    [
        ("normal(0.02)", 0.02, np.inf),
        ("truncated_normal(0.02)", 0.02 * 0.8796, 0.04),  # deviation of a normal cut at two deviations
        ("uniform(0.3)", 0.3 / 3**0.5, 0.3),
        ("glorot_uniform", (2 / 500) ** 0.5, (6 / 500) ** 0.5),
        ("glorot_normal", (2 / 500) ** 0.5, np.inf),
        ("fan_in_uniform", 200**-0.5 / 3**0.5, 200**-0.5),
        ("fan_in_normal", (2 / 200) ** 0.5, np.inf),
    ],
)
def test_initial_values(initializer: str, deviation: float, largest: float) -> None:
    spec = Spec((300, 200), initializer)
    values = _nn.draw_initial_value(spec, 0, "w")
    assert values.dtype == np.float32 and abs(values.std() / deviation - 1) < 0.02 and np.abs(values).max() <= largest
    assert np.array_equal(_nn.draw_initial_value(spec, 0, "w", slice(10, 20)), values[10:20])
    assert not np.array_equal(_nn.draw_initial_value(spec, 0, "other"), values)


def test_a_large_table_by_the_slice() -> None:
    spec = Spec((3 * _nn.CHUNK + 5, 2), "uniform(1)")
    whole = _nn.draw_initial_value(spec, 1, "table")
    part = slice(_nn.CHUNK - 3, 2 * _nn.CHUNK + 4)
    assert np.array_equal(_nn.draw_initial_value(spec, 1, "table", part), whole[part])


def test_each_group_of_a_batch_has_an_equal_share_in_the_running_statistics() -> None:
    norm = BatchNorm2d(3, group=2)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3, 4, 4))).float()
    norm.train()(x)
    means = x.reshape(3, 2, 3, 4, 4).mean((1, 3, 4))
    assert torch.allclose(norm.running_mean, norm.momentum * means.mean(0), atol=1e-6)


def normalize(group: int, compiler: str | None) -> dict[str, torch.Tensor]:
    """Return what batch normalisation of 24 samples gives, compiled or not, with the gradients of a weighted sum."""
    generator = torch.Generator().manual_seed(0)
    norm = BatchNorm2d(3, group=group).train()
    x = torch.randn(24, 3, 5, 4, generator=generator).add_(2.0).requires_grad_()
    torch._dynamo.reset()
    output = (torch.compile(norm, backend=compiler) if compiler else norm)(x)
    (output * torch.randn(output.shape, generator=generator)).sum().backward()
    grads = {f"grad of {name}": value.grad for name, value in [("x", x), *norm.named_parameters()]}
    return {"output": output, **dict(norm.named_buffers()), **grads}


@pytest.mark.parametrize("group", [4, 24])
def test_compiled_groups_are_those_of_one_call_for_each(group: int) -> None:
    usual, compiled = normalize(group, None), normalize(group, "eager")
    for name, value in usual.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch compiles with g++")
def test_groups_are_compiled_to_about_as_many_kernels_as_one() -> None:
    from torch._inductor import metrics

    counts = []
    for group in (24, 2):
        metrics.reset()
        normalize(group, "inductor")
        counts.append(metrics.generated_kernel_count)
    assert counts[1] <= counts[0] + 3


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_cross_entropies_are_torchs_bit_for_bit(kind: torch.dtype) -> None:
    generator, found = torch.Generator().manual_seed(0), []
    values = torch.randn(4, 6, 9, generator=generator, dtype=kind)
    labels = torch.randint(9, (4, 6), generator=generator)

    def by_torch(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")

    for function in (cross_entropies, by_torch):
        logits = values.clone().requires_grad_()
        losses = function(logits, labels)
        (losses * labels).sum().backward()
        found.append((losses, logits.grad))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
