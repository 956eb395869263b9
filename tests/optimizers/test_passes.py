"""How often an optimizer looks at the model, and from how many batches it begins, counted; VOGN's tempering by hand."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from engines import BACKENDS, config, engine
from sampling import mostly_torch

from suite.contract import Layer
from suite.optimizers.vogn.jax import vogn
from suite.optimizers.vogn.torch import VOGN

Tree = dict[str, np.ndarray]


@pytest.mark.quick
@pytest.mark.parametrize("draws, accumulate", [(1, 1), (3, 1), (2, 4)])
def test_vogn_passes_as_often_as_it_draws_each_time_with_other_weights(draws: int, accumulate: int) -> None:
    """A pass over a batch is one over each of its micro-batches. The first step is made at the mean, without noise."""
    run, seen = engine(config("vogn", "torch", hyper={"draws": draws}, accumulate=accumulate)), list[float]()
    run.model.register_forward_pre_hook(lambda model, inputs: seen.append(float(model.fc.weight.detach().sum())))
    for step in range(3):
        seen.clear()
        run.step(step, run.task.batch("train", 0, step), {})
        assert len(seen) == draws * accumulate and len(set(seen)) == (draws if step else 1)


def perturb(backend: str, step: int, **hyper: float) -> np.ndarray:
    """Return the weights of a step's forward pass, at a mean of zero without curvature; of 50 samples."""
    layers = {"a": Layer("linear", ("w",))}
    options: dict[str, Any] = {"samples": 50, "damping": 0.0, "augmentation": 2.0, **hyper}
    if backend == "torch":
        weight = torch.nn.Parameter(torch.zeros(6, 5))
        with VOGN([("w", weight)], layers=layers, **options).forward_params((0, step)):
            return weight.detach().numpy().copy()
    optimizer, params = vogn(layers=layers, shapes={"w": (6, 5)}, **options), {"w": jnp.zeros((6, 5))}
    return np.asarray(
        optimizer.forward_params(params, optimizer.init(params), jnp.asarray([0, step], jnp.uint32), 0)["w"]
    )


@pytest.mark.quick
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("warmup, course", [(0, [0.9] * 6), (1, [0.9] * 6), (4, [0.3, 0.5, 0.7, 0.9, 0.9, 0.9])])
def test_tempering_rises_from_its_start_in_so_many_steps(backend: str, warmup: int, course: list[float]) -> None:
    """By equal amounts, from 0.1 at step 0 to 0.9. Noise has the variance 1 / (τ δ), as with this τ from the start."""
    for step, tau in enumerate(course, 1):
        found = perturb(backend, step, tempering=0.9, tempering_start=0.1, tempering_warmup=warmup)
        expected = perturb(backend, step, tempering=0.4, tempering_start=0.4, tempering_warmup=0) * (0.4 / tau) ** 0.5
        assert np.allclose(found, expected, rtol=1e-5) and np.abs(found).max() > 0.1


@mostly_torch
@pytest.mark.parametrize("name, held", [("kfac", "factor"), ("kbfgs", "a")])
def test_a_warm_start_is_the_mean_over_so_many_batches(name: str, held: str, backend: str) -> None:
    """Its statistics are the mean of those of three starts from one batch each."""

    def prepare(*batches: int) -> Tree:
        made = engine(config(name, backend, hyper={"warm_start": len(batches)}))
        given = [made.task.batch("train", 0, index) for index in batches]
        made.warm(given[0], range(4), {})
        made.prepare(given)
        kept = f"['{held}']" if backend == "jax" else f".{held}."
        return {key: value.copy() for key, value in made.snapshot()[0].items() if kept in key}

    found, parts = prepare(0, 1, 2), [prepare(index) for index in range(3)]
    assert found and all(np.abs(value).max() > 1e-3 for value in found.values())
    for key, value in found.items():
        assert np.abs(value - np.mean([part[key] for part in parts], 0)).max() < 1e-12, key
        assert np.abs(parts[0][key] - value).max() > 1e-6, key
