"""Every optimizer against its specification: ten updates of the tiny task in float64."""

import importlib
from typing import Any

import engines
import numpy as np
import pytest
from engines import OPTIMIZERS, advance, config, engine, gap, settings_of, weights

from suite.engine import list_embeddings
from suite.nodes import load_settings

STEPS = 10
# optimizers that change the weights of the forward pass by a draw have nothing of their own to specify
SPECIFIED = sorted(set(OPTIMIZERS) - {"noisy"})
# settings at which another part of one speaks, or that have the same default
FURTHER: list[tuple[str, dict[str, Any]]] = [
    ("vogn", {"draws": 3}),
    ("kbfgs", {"momentum": 0.6, "factor_decay": 0.8, "pair_decay": 0.7}),
]


class Oracle:
    """Gradients, taps and further evaluations of a small task at given weights, in float64."""

    def __init__(self, task: str) -> None:
        self.engine = engine(config("sgd", "torch", task={"module": task}))
        self.shapes = self.engine.task.shapes()
        self.params = {n: v for n, v in weights(self.engine).items() if self.shapes[n].kind == "parameter"}

    def evaluate(
        self, params: dict[str, np.ndarray], step: int, *, keep: bool, labels: str = "given"
    ) -> tuple[dict[str, np.ndarray], Any, Any, tuple[float, float]]:
        """Gradients, taps, weights, and the loss and its terms; `keep` moves buffers and carry on as a step would."""
        import torch

        made, taps = self.engine, {}

        def observe(seen: Any, weight: Any) -> dict[str, Any]:
            calls = [(name, (x.numpy(), dy.numpy())) for (name, _), (x, dy) in seen.items()]  # all of a layer's
            for name in {name for name, _ in calls}:
                pairs = [pair for other, pair in calls if other == name]
                taps[name] = pairs if len(pairs) > 1 else pairs[0]
            return {}

        made.optimizer.observe = observe
        for name, value in params.items():
            made.named[name].data.copy_(torch.from_numpy(value))
        batch = made.task.batch("train", 0, step)
        share = made._evaluate(made._micro(batch), (0, step), labels=labels, observe=made._curvature)
        if keep:
            made.carry = share.carry
            for name, value in share.buffers.items():
                made.buffers[name].copy_(value)
        grads = {n: g.numpy().copy() for n, g in share.grads.items()}
        return grads, taps, batch["weight"].astype(np.float64), (float(share.loss), float(share.weight))

    def look(self, params: dict[str, np.ndarray], step: int, labels: str) -> tuple[float, Any, Any, float]:
        """Loss, gradients, taps and number of terms."""
        grads, taps, _, (loss, terms) = self.evaluate(params, step, keep=False, labels=labels)
        return loss, grads, taps, terms


def specified(optimizer: str, task: str = "mylab.tinytask", **hyper: Any) -> dict[str, np.ndarray]:
    """Parameters after STEPS updates by the reference."""
    node = OPTIMIZERS[optimizer] | settings_of(optimizer) | hyper
    reference = importlib.import_module(f"{node['module']}.reference")
    oracle, declared, options = Oracle(task), load_settings(node["module"]), engines.options(node)
    # a member outside the tree that declares no settings takes its options by name
    settings, named = ([declared.given(options)], {}) if declared else ([], options)
    params = oracle.params
    state = reference.init(params)
    task = oracle.engine.task
    known = {"layers": task.layers(), "tables": list_embeddings(task), "samples": task.data.samples["train"]}
    for step in range(STEPS):
        at = params
        if hasattr(reference, "forward_params"):  # the weights that the step's own pass runs with
            at = reference.forward_params(params, state, *settings, key=(0, step), **known, **named)
        # a second evaluation starts from the same buffers and carry, so they move on only after the update
        grads, taps, weight, _ = oracle.evaluate(at, step, keep=False)
        again = lambda at, step=step: oracle.evaluate(at, step, keep=False)[0]  # noqa: E731
        tapped = lambda at, step=step: oracle.evaluate(at, step, keep=False)[1]  # noqa: E731
        look = lambda at, labels, step=step: oracle.look(at, step, labels)  # noqa: E731
        extra = {"taps": taps, "weight": weight, "evaluate": again, "tapped": tapped, "look": look}
        new, state = reference.update(params, grads, state, *settings, step=step, **extra, **known, **named)
        oracle.evaluate(at, step, keep=True)
        params = new
    return params


@pytest.mark.parametrize("optimizer, hyper", [*((name, {}) for name in SPECIFIED), *FURTHER])
def test_both_backends_follow_the_reference(optimizer: str, hyper: dict[str, Any]) -> None:
    expected = specified(optimizer, **hyper)
    for backend in ("torch", "jax"):
        made = engine(config(optimizer, backend, hyper=dict(hyper)))
        advance(made, range(STEPS))
        found = {name: value for name, value in weights(made).items() if name in expected}
        assert gap(found, expected) <= 1e-10, backend


@pytest.mark.sample(1)
@pytest.mark.parametrize("optimizer", ["kfac", "kbfgs", "vogn"])
def test_of_a_layer_that_is_called_twice_both_backends_follow_the_reference(optimizer: str) -> None:
    """At three positions of a sample, then at one."""
    expected = specified(optimizer, task="mylab.twice")
    for backend in ("torch", "jax"):
        made = engine(config(optimizer, backend, task={"module": "mylab.twice"}))
        before = weights(made)
        advance(made, range(STEPS))
        assert gap(weights(made), expected) <= 1e-10 < 1e-2 < gap(before, expected), backend
