"""K-FAC's exact quadratic model: products with each sample's own gradient, the fit, and Levenberg's rule.

test_kfac_options.py compares whole runs with the reference.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conformance.test_reference import specified
from engines import BACKENDS, advance, config, engine, gap, weights
from torch import nn

from suite.contract import Layer, UserError
from suite.optimizers.kfac import jax_quadratic, reference, reference_quadratic, torch_quadratic
from suite.optimizers.kfac.torch import KFAC

MODEL = {"quadratic_model": True, "damping": 1.0}
LAYERS = {
    "linear": (Layer("linear", ("w", "b")), nn.Linear(3, 2), (4, 5, 3)),
    "conv2d": (Layer("conv2d", ("w", "b"), kernel=3, stride=2, padding=1), nn.Conv2d(3, 2, 3, 2, 1), (4, 3, 5, 7)),
    "embedding": (Layer("embedding", ("w",)), nn.Embedding(6, 2), (4, 3)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_products_are_those_of_each_samples_own_gradient(kind: str) -> None:
    """Against gradients of torch's own, one sample at a time; a sample without weight gives 0 or is left out."""
    layer, module, shape = LAYERS[kind]
    module, drawn = module.double(), np.random.default_rng(5)
    weight = np.array([1.0, 0.5, 0.0, 2.0])
    x = drawn.integers(6, size=shape) if kind == "embedding" else drawn.normal(size=shape)
    sent = torch.from_numpy(x)
    dy = drawn.normal(size=module(sent).shape) * weight.reshape(-1, *[1] * (module(sent).ndim - 1))
    v = {name: drawn.normal(size=p.shape) for name, p in zip(layer.parameters, module.parameters(), strict=True)}
    expected = []
    for n in range(4):
        own = (module(sent[n : n + 1]) * torch.from_numpy(dy[n])).sum()
        grads = torch.autograd.grad(own, list(module.parameters()))
        expected.append(sum(np.vdot(g.numpy(), v[name]) for name, g in zip(layer.parameters, grads, strict=True)))
    given = [torch.from_numpy(v[name]) for name in layer.parameters]
    found = {"torch": torch_quadratic.multiply_gradients(layer, sent, torch.from_numpy(dy), *given).numpy()}
    turn = (lambda a: np.moveaxis(a, 1, -1)) if kind == "conv2d" else (lambda a: a)
    arrays = [jnp.asarray(turn(a)) for a in (x, dy)] + [jnp.asarray(v[name]) for name in layer.parameters]
    found["jax"] = np.asarray(jax_quadratic.multiply_gradients(layer, *arrays))
    found["reference"] = weight * reference_quadratic.multiply_gradients(
        {"": (x, dy)}, weight, {"": layer}, v, reference.unfold_inputs
    )
    for name, value in found.items():
        assert np.abs(value - expected).max() <= 1e-6 * np.abs(expected).max(), name  # jax in float32


@pytest.mark.parametrize("task", ["mylab.twice"])
def test_of_a_layer_that_is_called_twice_both_backends_follow_the_reference(task: str) -> None:
    expected = specified("kfac", task=task, **MODEL)
    for backend in BACKENDS:
        made = engine(config("kfac", backend, task={"module": task}, hyper=MODEL))
        advance(made, range(10))
        assert gap({name: weights(made)[name] for name in expected}, expected) <= 1e-10, backend


@pytest.mark.parametrize("backend", BACKENDS)
def test_damping_follows_how_much_of_the_promise_was_kept(backend: str) -> None:
    rule: Any = {"torch": torch_quadratic, "jax": jax_quadratic}[backend].adapt_damping
    array = {"torch": torch.tensor, "jax": jnp.asarray}[backend]
    for ratio, power in ((0.8, 5), (0.7, 0), (0.3, 0), (0.2, -5), (-1.0, -5), (float("nan"), -5)):
        found = float(rule(array(8.0), array(2.0 * ratio), array(2.0)))
        assert found == pytest.approx(8.0 * 0.95**power, rel=1e-6), ratio


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_step_has_no_momentum_and_a_direction_of_zero_no_length(backend: str) -> None:
    fit: Any = {"torch": torch_quadratic, "jax": jax_quadratic}[backend].fit_step
    array = {"torch": torch.tensor, "jax": jnp.asarray}[backend]

    def fitted(model: list[list[float]], slopes: list[float]) -> list[float]:
        return [float(value) for value in fit(array(model), array(slopes))]

    assert fitted([[2.0, 0.0], [0.0, 0.0]], [3.0, 0.0]) == [1.5, 0.0]
    assert fitted([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]) == [0.0, 0.0]
    assert fitted([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kl_clip": 0.1}, "set optimizer.kl_clip=0"),
        ({"damping": 0.0}, "set optimizer.damping=1"),
        ({"momentum_on": "gradient", "rescale": True}, "set optimizer.momentum_on=direction optimizer.rescale=false"),
    ],
)
def test_settings_that_the_model_replaces_are_refused(changes: dict[str, Any], message: str) -> None:
    for backend in BACKENDS:
        with pytest.raises(UserError, match=message):
            engine(config("kfac", backend, hyper=MODEL | changes))


def test_in_your_own_loop_the_model_is_refused() -> None:
    model = nn.Linear(2, 1)
    optimizer = KFAC(model.named_parameters(), layers={"": Layer("linear", ("weight", "bias"))}, quadratic_model=True)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(UserError, match=r"KFAC\(quadratic_model=True\): needs"):
        optimizer.step()


def test_a_penalty_in_the_tasks_loss_does_not_count_as_terms() -> None:
    """It has a gradient, but adds no terms: the step stays as long as the model of the data's loss makes it."""
    made: Any = engine(config("kfac", "torch", hyper=MODEL))
    parameters, plain = list(made.model.parameters()), made.model.loss

    def penalised(outputs: Any, batch: Any) -> tuple[Any, Any]:
        total, count = plain(outputs, batch)
        return total + 0.05 * sum(p.square().sum() for p in parameters) * count.detach(), count

    made.model.loss = penalised
    losses = advance(made, range(10))
    assert np.isfinite(losses).all() and losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_step_does_not_depend_on_how_many_terms_the_loss_counts(backend: str) -> None:
    """Three times as many terms, such as words: a third of the loss, and the same minimum of its model."""
    ends = []
    for times in (1, 3):
        made: Any = engine(config("kfac", backend, hyper=MODEL | {"weight_decay": 0.0}))
        model = made.model if backend == "torch" else made.maths.model
        plain = model.loss
        object.__setattr__(model, "loss", lambda *inputs, plain=plain, times=times: _recounted(plain(*inputs), times))
        made.step(0, made.task.batch("train", 0, 0), {})
        ends.append({name: value for name, value in weights(made).items() if name in made.optimizer.plan.covered})
    assert len(ends[0]) > 3 and gap(*ends) <= 1e-12


def _recounted(loss: tuple[Any, Any], times: int) -> tuple[Any, Any]:
    return loss[0], loss[1] * times
