"""Tests of every first-order method, one list for all: its specification, edits, zero and spoilt gradients."""

from typing import Any

import numpy as np
import pytest
from alone import BACKENDS, Tree, draw, gap, pulled, specified, train
from sampling import sampled

from suite.contract import UserError

both = pytest.mark.parametrize("backend", BACKENDS)
ADAPTIVE = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3}
# one name for each form worth a test: the member, and hyper-parameters that all matter in ten steps
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("sgd", {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1}),
    "sgd-nesterov": ("sgd", {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1, "nesterov": True}),
    "adagrad": ("adagrad", {"lr": 0.1, "epsilon": 0.1}),
    "adagrad-momentum": (
        "adagrad",
        {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1, "epsilon": 0.1, "initial_accumulator": 0.5},
    ),
    "rmsprop": ("rmsprop", {"lr": 0.05, "beta2": 0.8, "epsilon": 0.1}),
    "rmsprop-momentum": (
        "rmsprop",
        {"lr": 0.02, "momentum": 0.8, "beta2": 0.8, "epsilon": 0.1, "weight_decay": 0.1, "centered": True},
    ),
    "rmsprop-tensorflow": (
        "rmsprop",
        {"lr": 0.02, "momentum": 0.8, "beta2": 0.8, "epsilon": 0.1, "tensorflow": True, "centered": True},
    ),
    "rmsprop-tensorflow-plain": ("rmsprop", {"lr": 0.05, "beta2": 0.8, "epsilon": 0.1, "tensorflow": True}),
    "adamw": ("adamw", {"lr": 0.02, **ADAPTIVE, "weight_decay": 0.1}),
    "adamw-uncorrected": ("adamw", {"lr": 0.02, **ADAPTIVE, "weight_decay": 0.1, "bias_correction": False}),
    "lamb": ("lamb", {"lr": 0.05, **ADAPTIVE, "weight_decay": 0.1}),
    "lamb-bounded": (
        "lamb",
        {"lr": 0.05, **ADAPTIVE, "weight_decay": 0.1, "adapt_vectors": True, "least_ratio": 1.0, "largest_ratio": 1.5},
    ),
    "lamb-uncorrected": ("lamb", {"lr": 0.05, **ADAPTIVE, "weight_decay": 0.1, "bias_correction": False}),
    "sm3-I": ("sm3", {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1, "variant": "I"}),
    "sm3-II": ("sm3", {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1, "variant": "II"}),
    "sm3-I-plain": ("sm3", {"lr": 0.1, "momentum": 0.0, "variant": "I"}),
    "sm3-II-plain": ("sm3", {"lr": 0.1, "momentum": 0.0, "variant": "II"}),
    "lars": ("lars", {"lr": 0.5, "momentum": 0.8, "weight_decay": 0.1, "trust": 0.5}),
}
every = pytest.mark.parametrize("form", FORMS)
EDITS = {"lr": 0.3, "momentum": 0.3, "weight_decay": 0.7, "epsilon": 0.9, "beta1": 0.2, "beta2": 0.4, "trust": 0.1}
EDITS |= {"initial_accumulator": 3.0, "least_ratio": 1.4, "largest_ratio": 1.1}
EDITED = [(form, key) for form, (_, hyper) in FORMS.items() for key in EDITS if hyper.get(key)]
# and from 0; momentum has a test of its own
EDITED += [("adagrad", "weight_decay"), ("adagrad", "initial_accumulator"), ("rmsprop", "weight_decay")]
EDITED += [("sm3-II-plain", "weight_decay"), ("lamb", "least_ratio"), ("lamb", "largest_ratio")]


def zeros(params: Tree, step: int) -> Tree:
    return {name: np.zeros(np.shape(value)) for name, value in params.items()}


@pytest.mark.quick
@every
@both
def test_backends_equal_the_reference(backend: str, form: str) -> None:
    name, hyper = FORMS[form]
    assert gap(train(backend, name, hyper=hyper), specified(name, **hyper)) <= 1e-12


# in jax one form of each member: all of a member's forms read the same hyper-parameters
ONCE = {(FORMS[form][0], key): (form, key) for form, key in reversed(EDITED)}.values()


@pytest.mark.parametrize(
    "backend, form, key",
    [
        pytest.param(backend, *pair, marks=[] if backend == "torch" or pair in ONCE else [pytest.mark.slow])
        for backend in BACKENDS
        for pair in EDITED
    ],
)
def test_an_edit_takes_effect_at_once(backend: str, form: str, key: str) -> None:
    name, hyper = FORMS[form]
    edit = {key: EDITS[key]}
    expected = specified(name, pulled, edit, **hyper)
    assert gap(train(backend, name, pulled, edit, hyper=hyper), expected) <= 1e-12
    assert gap(specified(name, **hyper), expected) > 1e-4


@pytest.mark.parametrize("form", ["adagrad", "rmsprop", "rmsprop-tensorflow-plain", "sm3-I-plain", "sm3-II-plain"])
def test_a_momentum_that_began_at_zero_is_taken_up_or_refused(form: str) -> None:
    """Torch begins a velocity there and then; jax, whose state has no room for one, says so."""
    name, hyper = FORMS[form]
    start = draw(5)

    def begun(momentum: float, edit: Tree | None = None) -> Tree:
        options: dict[str, Any] = {"hyper": hyper | {"momentum": momentum}, "start": start, "steps": 2}
        return train("torch", name, pulled, edit, **options)

    still, moving = begun(0.0), begun(0.0, {"momentum": 0.5})  # of two steps the second has the edit
    share = 0.5 if name == "sm3" else 1.0  # a velocity that begins at zero takes the step in: an average half of it
    first = train("torch", name, pulled, hyper=hyper, start=start, steps=1)
    for key, value in moving.items():
        assert np.allclose(value, first[key] + share * (still[key] - first[key]), rtol=0, atol=1e-12)
    longer = [train("torch", name, pulled, edit, hyper=hyper) for edit in ({}, {"momentum": 0.5})]
    assert gap(*longer) > 1e-4
    with pytest.raises(UserError, match=r"begin with a small one, momentum=1e-6"):
        train("jax", name, pulled, {"momentum": 0.5}, hyper=hyper)


@pytest.mark.sample(8)
@every
@both
def test_without_gradient_and_decay_nothing_moves(backend: str, form: str) -> None:
    """Not a bit, in float32 and at weights of zero too; later on as well, where nothing remembers a direction."""
    name, hyper = FORMS[form]
    hyper = hyper | ({"weight_decay": 0.0} if "weight_decay" in hyper else {})
    start = {name: value.astype("float32") for name, value in draw(0).items()} | {"none": np.zeros((3, 2), "float32")}
    options: dict[str, Any] = {"hyper": hyper, "start": start, "kind": "float32"}
    assert gap(train(backend, name, zeros, steps=3, **options), start) == 0.0
    if not hyper.get("momentum") and name not in ("adamw", "lamb"):
        stopping = lambda params, step: (pulled if step < 2 else zeros)(params, step)  # noqa: E731
        two, four = (train(backend, name, stopping, steps=steps, **options) for steps in (2, 4))
        assert gap(two, four) == 0.0 and gap(two, start) > 1e-3


@both
@pytest.mark.parametrize("form, bad", sampled(FORMS, [np.nan, np.inf]))
def test_a_gradient_that_is_not_finite_is_not_hidden(backend: str, form: str, bad: float) -> None:
    """Its element is lost for good, and no other tensor hears of it."""
    name, hyper = FORMS[form]

    def spoilt(params: Tree, step: int) -> Tree:
        grads = pulled(params, step)
        grads["matrix"][1, 2] = bad if step == 1 else 0.5
        return grads

    found, expected = (train(backend, name, gradient, steps=4, hyper=hyper) for gradient in (spoilt, pulled))
    assert np.isnan(found["matrix"][1, 2])
    others = [other for other in found if other != "matrix"]
    assert gap({n: found[n] for n in others}, {n: expected[n] for n in others}) == 0.0


@both
@pytest.mark.parametrize("form", [form for form in FORMS if FORMS[form][0] in ("adagrad", "rmsprop")])
def test_blocks_that_were_reset_start_again(backend: str, form: str) -> None:
    """Their next steps are a fresh optimizer's, those of the other blocks go on."""
    import importlib

    name, hyper = FORMS[form]
    make = importlib.import_module(f"suite.optimizers.{name}.{backend}").make
    begin, grad, mask = draw(1, {"w": (4, 2, 2)})["w"], draw(2, {"w": (4, 2, 2)})["w"], np.array([1, 0, 1, 0], bool)

    def steps(reset: bool, before: int) -> np.ndarray:
        """Return the last of `before` + 1 steps by the same gradient, from the same weights."""
        if backend == "torch":
            import torch

            weight = torch.nn.Parameter(torch.tensor(begin))
            optimizer = make([("w", weight)], **hyper)
            for step in range(before + 1):
                if step == before and reset:
                    optimizer.reset({weight: torch.from_numpy(mask)})
                weight.data.copy_(torch.tensor(begin))
                weight.grad = torch.tensor(grad)
                optimizer.step()
            return weight.detach().numpy()
        import jax
        import jax.numpy as jnp

        with jax.enable_x64(True):
            optimizer, params, updates = make(**hyper), {"w": jnp.asarray(begin)}, {}
            state = optimizer.init(params)
            for step in range(before + 1):
                if step == before and reset:
                    state = optimizer.reset(state, {"w": jnp.asarray(mask)})
                updates, state = optimizer.update({"w": jnp.asarray(grad)}, state, params)
            return np.asarray(params["w"] + updates["w"])

    after, fresh, on = steps(True, 3), steps(False, 0), steps(False, 3)
    assert np.array_equal(after[mask], fresh[mask]) and np.array_equal(after[~mask], on[~mask])
    assert np.abs(fresh - on).min() > 1e-6
