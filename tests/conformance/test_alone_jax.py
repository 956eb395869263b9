"""Every optimizer in a jax training loop of one's own: what users of optax expect, and the reference."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alone import gap
from mlps import NAMES, USED, Jax, Torch, batch, initial, layers, loss_of, nested, specified

from suite import load
from suite.contract import UserError

STEPS = 8
every = pytest.mark.parametrize("name", NAMES)
OWN = [name for name in NAMES if name != "external"]
own = pytest.mark.parametrize("name", OWN)
OBSERVING = [name for name in NAMES if "observe" in load.load_member(f"suite.optimizers.{name}").NEEDS]
Make = Callable[..., Any]
# settings that a step is compiled for
COMPILED = {
    "shampoo": (
        "world",
        "block_size",
        "merge_size",
        "inverse_interval",
        "start_preconditioning",
        "lag",
    ),
    "soap": ("world", "precondition_frequency", "start_preconditioning", "max_size"),
    "muon": ("iterations",),
    "kfac": (
        *("world", "factor_interval", "inverse_interval", "inverse_warmup", "warm_start"),
        *("fallback_ratio", "fallback_beta1", "fallback_beta2", "fallback_epsilon"),
    ),
    "kbfgs": ("warm_start",),
    "vogn": ("draws",),
}


def injected(make: Make, given: dict[str, Any]) -> Any:
    """Return the optimizer as `optax.inject_hyperparams` makes it."""
    static = COMPILED.get(make.__name__, ())
    return optax.inject_hyperparams(make, static_args=static)(**given)


# ----------------------------------------------------------------------------------------------------- what it does
@pytest.mark.sample(6)
@own
def test_it_follows_the_reference(name: str) -> None:
    """In one compiled step whose parameters are nested; refreshes and all: `update` is complete."""
    expected = specified(name, STEPS)
    assert gap(Jax(name).train(range(STEPS)), expected) <= 1e-11
    assert gap(initial(*USED), expected) > 1e-2


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "hyper",
    [
        {"lag": 2, "inverse_interval": 3, "start_preconditioning": 1},
        {"lag": 3, "inverse_interval": 3, "start_preconditioning": 0, "graft": "adam", "epsilon": 1e-3},
        {"stagger": True, "inverse_interval": 3, "start_preconditioning": 1, "block_size": 2},
    ],
)
def test_shampoos_schedules_follow_the_reference(hyper: dict[str, Any]) -> None:
    assert gap(Jax("shampoo", **hyper).train(range(12)), specified("shampoo", 12, **hyper)) <= 1e-11


def test_kfacs_schedules_follow_the_reference() -> None:
    hyper = {"inverse_warmup": 2, "factor_interval": 2, "inverse_interval": 3}
    assert gap(Jax("kfac", **hyper).train(range(12)), specified("kfac", 12, **hyper)) <= 1e-11


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["adamw", "shampoo"])
def test_an_update_that_is_not_compiled_is_the_same(name: str) -> None:
    made = Jax(name)
    made.train(range(STEPS))
    with jax.enable_x64(True):
        params = jax.tree.map(lambda v: jnp.asarray(v, "float64"), nested(initial(*USED)))
        state = made.optimizer.init(params)
        differentiate = jax.jit(jax.grad(lambda p, x, y: loss_of(p, x, y, lambda name, x, out: out)))
        for step in range(STEPS):
            updates, state = made.optimizer.update(differentiate(params, *batch(step)), state, params)
            params = optax.apply_updates(params, updates)
    assert all(
        np.allclose(one, other, rtol=0, atol=1e-12)
        for one, other in zip(*map(jax.tree.leaves, (params, made.params_)), strict=True)
    )


# ------------------------------------------------------------------------------------------------------- rejections
@pytest.mark.parametrize("name", OBSERVING)
def test_without_what_the_layers_see_it_says_what_to_call(name: str) -> None:
    made = Jax(name)
    with pytest.raises(UserError, match=r"from suite\.engine\.jax_alone import observing"):
        made.optimizer.update(made.params_, made.state, made.params_)


@every
def test_without_the_parameters_it_says_what_to_call(name: str) -> None:
    made = Jax(name)
    with pytest.raises(UserError, match=r"call update\(grads, state, params\)"):
        made.optimizer.update(made.params_, made.state)


@pytest.mark.parametrize(
    "name, hyper, said",
    [
        ("kfac", {"stale": True, "factor_interval": 1, "inverse_interval": 1}, "stale"),
        ("kfac", {"fisher": "sampled"}, "fisher"),
        ("kfac", {"warm_start": 2}, "warm_start=2"),
        ("kbfgs", {"warm_start": 2}, "warm_start=2"),
        ("vogn", {"draws": 2}, "draws=2"),
        ("shampoo", {"world": 2}, "world=2"),
        ("soap", {"world": 2}, "world=2"),
        ("kfac", {"world": 2}, "world=2"),
    ],
)
def test_what_takes_an_engine_says_so(name: str, hyper: dict[str, Any], said: str) -> None:
    """In both backends; a waiting time of each factor is read on the host, which torch can do alone."""
    with pytest.raises(UserError, match=rf"{said}.*(leave it out|leave world out)"):
        Jax(name, **hyper).train(range(1))
    if said != "stale":
        with pytest.raises(UserError, match=rf"{said}.*(leave it out|leave world out)"):
            Torch(name, **hyper).train(range(1))


def test_a_layer_that_the_loss_does_not_tap_is_named() -> None:
    from suite.engine.jax_alone import observing, shapes_of

    params = jax.tree.map(lambda value: jnp.asarray(value, "float32"), nested(initial(*USED)))
    made = load.load_half("suite.optimizers.kfac", "jax").make(layers=layers(*USED), shapes=shapes_of(params))
    with pytest.raises(UserError, match="the loss does not tap last; write y = tap"):
        observing(loss_of, made)(params, jax.jit(made.init)(params), *batch(0))
    with pytest.raises(UserError, match=r"takes what kfac, kbfgs or vogn returned"):
        observing(loss_of, load.load_half("suite.optimizers.sgd", "jax").make())


def test_an_interval_too_long_to_be_compiled_is_rejected() -> None:
    with pytest.raises(UserError, match="1,000,000,000 steps is too long"):
        Jax("shampoo", inverse_interval=10**9).train(range(1))


def test_two_parameters_of_one_name_are_rejected() -> None:
    made = load.load_half("suite.optimizers.adamw", "jax").make()
    with pytest.raises(UserError, match="the same path"):
        made.init({"a.b": jnp.ones(2), "a": {"b": jnp.ones(2)}})


# ---------------------------------------------------------------------------------------------------- optax's protocol
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in OBSERVING])
def test_it_takes_its_place_in_a_chain(name: str) -> None:
    """Behind a clipping of the whole gradient: like gradients that come in clipped."""
    ends = []
    for limit in (1e9, 1e-3):
        made = Jax(
            name, wrap=lambda make, given, limit=limit: optax.chain(optax.clip_by_global_norm(limit), make(**given))
        )
        ends.append(made.train(range(4)))
    assert gap(ends[0], Jax(name).train(range(4))) == 0.0
    if name in ("sgd", "external", "shampoo"):  # whose steps are as long as their gradients
        assert gap(ends[1], initial(*USED)) < 1e-2 < gap(ends[0], initial(*USED))


# what a setting becomes: half of what it was, but for these
EDITS = {"weight_decay": 0.3, "kl_clip": 1e-6, "tempering_warmup": 20.0, "least_ratio": 3.0, "largest_ratio": 0.3}
EDITS |= {"epsilon": 0.3, "fallback_epsilon": 0.3}
OFTEN = {"kfac": {"factor_interval": 1, "inverse_interval": 1}}  # settings in which each of them counts


@pytest.mark.sample(2, keep=("vogn",))
@every
def test_a_hyper_parameter_that_is_injected_counts(name: str) -> None:
    """Each of them, in one program: as a constant it changes nothing, and another value changes the parameters."""
    hyper = OFTEN.get(name, {})
    plain, made = Jax(name, **hyper), Jax(name, wrap=injected, **hyper)
    start, chosen = (made.params_, made.state), plain.state["hyper"].keys() - {"stale_alpha"}
    expected = plain.train(range(4))
    assert gap(made.train(range(4)), expected) <= 1e-12
    assert chosen <= start[1].hyperparams.keys() and "lr" in chosen
    for key in sorted(chosen):
        old = start[1].hyperparams[key]
        with jax.enable_x64(True):
            new = jnp.asarray(EDITS.get(key, float(old) / 2 or 0.4), old.dtype)
        made.params_, made.state = start[0], start[1]._replace(hyperparams=start[1].hyperparams | {key: new})
        assert gap(made.train(range(4)), expected) > 1e-7, f"{key} was ignored"


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_of_optax_is_followed(name: str) -> None:
    """Weights stay the same from the third step on, where the rate is 0."""
    hyper = {"momentum": 0.0} if name == "lars" else {}  # whose velocity holds the rate
    rate = optax.piecewise_constant_schedule(0.05, {1: 0.0})
    made = Jax(name, wrap=lambda make, given: injected(make, given | {"lr": rate}), **hyper)
    before = made.train(range(2))
    assert gap(made.train(range(2, 4)), before) <= 1e-15 < 1e-4 < gap(before, initial(*USED))


@pytest.mark.parametrize("name", COMPILED)
def test_what_cannot_be_traced_says_what_to_type(name: str) -> None:
    with pytest.raises(UserError, match=rf"static_args=\(.*\"{COMPILED[name][-1]}\"") as error:
        Jax(name, wrap=lambda make, given: optax.inject_hyperparams(make)(**given)).train(range(1))
    assert all(key in str(error.value) for key in COMPILED[name])


# ------------------------------------------------------------------------------------------------- state and precision
@pytest.mark.sample(2)
@every
def test_a_state_that_was_stored_goes_on_bit_for_bit(name: str) -> None:
    made, again = Jax(name), Jax(name)
    made.train(range(4))
    leaves, structure = jax.tree.flatten((made.params_, made.state))
    with jax.enable_x64(True):
        stored = [np.asarray(leaf).copy() for leaf in leaves]
        again.params_, again.state = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in stored])
    assert gap(again.train(range(4, STEPS)), made.train(range(4, STEPS))) == 0.0


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OWN)
def test_parameters_in_bfloat16_are_updated_in_float32(name: str) -> None:
    narrow, wide = Jax(name, "bfloat16"), Jax(name, "float32")
    wide.params_ = jax.tree.map(lambda value: value.astype("float32"), narrow.params_)
    start = wide.params
    narrow.train(range(STEPS))
    end = wide.train(range(STEPS))
    kinds = {leaf.dtype for leaf in jax.tree.leaves(narrow.state) if jnp.issubdtype(leaf.dtype, jnp.floating)}
    assert kinds == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(narrow.params_)} == {jnp.dtype("bfloat16")}
    length = np.sqrt(sum(((end[key] - start[key]) ** 2).sum() for key in end))
    apart = np.sqrt(sum(((narrow.params[key] - end[key]) ** 2).sum() for key in end))
    assert apart < 0.5 * length  # K-BFGS subtracts nearly equal gradients, which amplifies rounding
