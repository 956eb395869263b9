"""K-FAC's fallback: AdamW for parameters without factors, the same in the reference, torch and jax."""

from typing import Any

import kfacs
import mlps
import numpy as np
import pytest
import ranks
import twins
from conformance.test_reference import STEPS, specified
from engines import BACKENDS, advance, config, engine, gap, weights
from sampling import mostly_torch

from suite.contract import UserError
from suite.optimizers.adamw import Settings as AdamW
from suite.optimizers.adamw import reference as adamw

TASK = {"module": "mylab.partly"}  # two of its layers are described
REST = ("embed.weight", "norm.weight", "norm.bias")
FALLBACK = {"fallback_ratio": 0.4, "fallback_beta1": 0.8, "fallback_beta2": 0.9, "fallback_epsilon": 1e-4}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"kl_clip": 1e-5, "momentum_on": "gradient", "weight_decay": 0.1},
    "stale": {"stale": True, "stale_alpha": 0.15, "factor_interval": 1, "inverse_interval": 1, "rescale": True},
    "sampled": {"fisher": "sampled"},
}
both = pytest.mark.parametrize("backend", BACKENDS)


def made(backend: str, option: str = "plain", **changes: Any) -> Any:
    hyper = FALLBACK | OPTIONS[option] | changes.pop("hyper", {})
    return engine(config("kfac", backend, task=TASK, hyper=hyper, **changes))


def trained(*args: Any, **changes: Any) -> dict[str, np.ndarray]:
    run = made(*args, **changes)
    advance(run, range(STEPS))
    return weights(run)


@pytest.mark.sample(1)
@pytest.mark.parametrize("option", ["clipped", "plain", "stale"])
def test_both_backends_follow_the_reference(option: str) -> None:
    expected = specified("kfac", task=TASK["module"], **FALLBACK | OPTIONS[option])
    for backend in BACKENDS:
        found = trained(backend, option)
        assert gap({name: found[name] for name in expected}, expected) <= 1e-10, backend


@both
def test_what_has_no_factors_takes_adamws_step(backend: str) -> None:
    """As AdamW's own specification says; a bound on K-FAC's step neither counts nor scales it."""
    shapes = kfacs.SHAPES | {"free.weight": (3, 2), "free.bias": (2,)}
    free = {name: shape for name, shape in shapes.items() if name.startswith("free")}
    settings = AdamW(lr=0.04, beta1=0.8, beta2=0.9, epsilon=1e-4, weight_decay=0.1)
    kinds = {"torch": kfacs.Torch, "jax": kfacs.Jax}
    hyper = FALLBACK | {"kl_clip": 1e-6, "weight_decay": 0.1}
    found, small = (kinds[backend](shapes=shapes, **hyper) if scale else kinds[backend](**hyper) for scale in (1, 0))
    params, state = twins.draw(free, 0), adamw.init(twins.draw(free, 0))
    for step in range(5):
        grads = twins.draw(shapes, 10 + step)
        for run in found, small:
            run.refresh(step, kfacs.statistics(step))
            run.update({name: grads[name] for name in run.params})
        params, state = adamw.update(params, {name: grads[name] for name in free}, state, settings, step=step)
    assert gap({name: found.params[name] for name in free}, params) <= 1e-12
    assert all(np.array_equal(found.params[name], value) for name, value in small.params.items())


@both
def test_without_a_ratio_nothing_changes(backend: str) -> None:
    """By a bit; nor does the state hold more."""
    plain, off = engine(config("kfac", backend, task=TASK)), made(backend, hyper={"fallback_ratio": 0.0})
    assert plain.snapshot()[0].keys() == off.snapshot()[0].keys() != made(backend).snapshot()[0].keys()
    for run in plain, off:
        advance(run, range(STEPS))
    assert gap(weights(plain), weights(off)) == 0.0
    assert min(np.abs(trained(backend)[name] - weights(off)[name]).max() for name in REST) > 1e-3


@pytest.mark.parametrize("option", OPTIONS)
def test_micro_batches_equal_one_large_batch(option: str) -> None:
    assert gap(trained("torch", option, accumulate=4), trained("torch", option)) <= 1e-10


@pytest.mark.slow
def test_two_jax_devices_equal_one() -> None:
    assert gap(trained("jax", "clipped", world=2), trained("jax", "clipped")) <= 1e-10


@pytest.mark.xdist_group("world")
@mostly_torch
def test_two_processes_equal_one(backend: str) -> None:
    names = OPTIONS if backend == "torch" else ["clipped"]
    run = {name: config("kfac", backend, world=2, task=TASK, hyper=FALLBACK | OPTIONS[name]) for name in names}
    for name, case in ranks.start(backend, 2, {name: [None, STEPS, run[name]] for name in run}).items():
        one = trained(backend, name)
        assert gap({key: case[key] for key in one}, one) <= 1e-10, name


@mostly_torch
def test_restored_it_goes_on_bit_for_bit(backend: str) -> None:
    run, again = made(backend, precision="float32"), made(backend, precision="float32")
    advance(run, range(3))
    arrays, skeleton = run.snapshot()
    again.restore({name: array.copy() for name, array in arrays.items()}, skeleton)
    for each in run, again:
        advance(each, range(3, STEPS))
    assert gap(weights(run), weights(again)) == 0.0


@pytest.mark.parametrize("name, other", [("kfac", {"fallback_ratio": 0.0}), ("muon", {"excluded": ["0"]})])
def test_a_state_with_another_fallback_is_refused(name: str, other: dict[str, Any]) -> None:
    """In torch, instead of a step that fails later."""
    states = [mlps.Torch(name), mlps.Torch(name, **other)]
    for one, two in states, states[::-1]:
        with pytest.raises(UserError, match=r"belongs to other parameters or settings: .* instead of"):
            one.optimizer.load_state_dict(two.optimizer.state_dict())
