"""Every optimizer in both backends, in the tree and outside it: found by folder, held to the same questions."""

import io
from typing import Any

import numpy as np
import pytest
from engines import BACKENDS, OPTIMIZERS, OUTSIDE, advance, config, engine, gap, tiny, weights

from suite import load
from suite.contract import UserError

# another worker may be writing the program that jax reads; jax (0.10) writes it in place, and compiles anew
pytestmark = pytest.mark.filterwarnings("error", "ignore:Error reading persistent compilation cache")
# one worker for all questions to an optimizer, so that its uninterrupted run is made once
every = pytest.mark.parametrize(
    "optimizer", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in sorted(OPTIMIZERS)]
)
both = pytest.mark.parametrize("backend", BACKENDS)
STEPS = 8


@pytest.fixture(scope="module")
def uninterrupted() -> Any:
    """Weights after STEPS updates, run once for each optimizer, backend and precision."""
    cache: dict[Any, Any] = {}

    def run(optimizer: str, backend: str, precision: str = "float64") -> tuple[list[float], dict[str, np.ndarray]]:
        key = optimizer, backend, precision
        if key not in cache:
            made = engine(config(optimizer, backend, precision=precision))
            cache[key] = advance(made, range(STEPS)), weights(made)
        return cache[key]

    return run


@pytest.mark.sample(8, keep=("kfac", "kbfgs", "shampoo", "soap", "vogn"))
@every
@both
def test_restored_at_any_step_goes_on_bit_for_bit(optimizer: str, backend: str, uninterrupted: Any) -> None:
    """So the same run makes the same bits twice. The suite's own also go on in an engine that has trained since, as
    policies do after a trial."""
    losses, expected = uninterrupted(optimizer, backend, "float32")
    made, again = (engine(config(optimizer, backend, precision="float32")) for _ in range(2))
    for step in range(STEPS - 1):
        advance(made, range(step, step + 1))
        arrays, skeleton = made.snapshot()
        if optimizer in OUTSIDE:
            again = engine(config(optimizer, backend, precision="float32"))
        again.restore({name: array.copy() for name, array in arrays.items()}, skeleton)
        assert advance(again, range(step + 1, STEPS)) == losses[step + 1 :], f"restored after step {step + 1}"
        assert gap(weights(again), expected) == 0.0, f"restored after step {step + 1}"


@every
@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.slow)])  # see two devices below
def test_micro_batches_equal_one_large_batch(optimizer: str, backend: str, uninterrupted: Any) -> None:
    made = engine(config(optimizer, backend, accumulate=4))
    advance(made, range(STEPS))
    assert gap(weights(made), uninterrupted(optimizer, backend)[1]) <= 1e-12


def test_a_clipped_gradient_has_the_largest_norm_allowed() -> None:
    """One step of lr 1 without momentum is the gradient."""
    settings = {"hyper": {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}}
    for backend in BACKENDS:
        norms = []
        for limit in (0.0, 1e9, 0.01):
            made = engine(config("sgd", backend, clip_norm=limit, **settings))
            before = weights(made)
            advance(made, range(1))
            after = weights(made)
            parameters = [name for name in after if "running" not in name]
            norms.append(float(np.sqrt(sum(((after[name] - before[name]) ** 2).sum() for name in parameters))))
        assert norms[0] == norms[1] > 0.01 and abs(norms[2] - 0.01) < 1e-12


@pytest.mark.sample(0, keep=("kfac", "lamb", "noisy", "secant", "soap", "vogn"))  # one of each kind
@every
def test_backends_agree_in_float32(optimizer: str, uninterrupted: Any) -> None:
    assert gap(uninterrupted(optimizer, "torch", "float32")[1], uninterrupted(optimizer, "jax", "float32")[1]) <= 2e-4


@every
def test_two_jax_devices_equal_torch(optimizer: str, uninterrupted: Any) -> None:
    """One device equals the reference, as torch does (test_reference.py), so that two equal one."""
    made = engine(config(optimizer, "jax", world=2, accumulate=2))
    advance(made, range(STEPS))
    bound = 1e-7 if optimizer == "noisy" else 1e-10  # its noise is float32, whose cosine differs in the last bit
    assert gap(weights(made), uninterrupted(optimizer, "torch")[1]) <= bound


@pytest.mark.sample(4)
@every
@both
def test_loss_falls(optimizer: str, backend: str) -> None:
    losses = advance(engine(config(optimizer, backend, precision="float32")), range(60))
    assert np.mean(losses[-5:]) < 0.98 * np.mean(losses[:5])


@every
def test_torch_state_loads_with_weights_only(optimizer: str) -> None:
    import torch

    made = engine(config(optimizer, "torch"))
    advance(made, range(3))
    file = io.BytesIO()
    torch.save(made.optimizer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    made.optimizer.load_state_dict(loaded)


@every
def test_jax_state_is_arrays_only(optimizer: str) -> None:
    import jax

    made = engine(config(optimizer, "jax"))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(made.run["opt"]))


@both
def test_who_needs_to_reset_blocks_can(backend: str) -> None:
    for name, node in OPTIMIZERS.items():
        if "reset" in load.load_member(node["module"]).NEEDS:
            reset = getattr(engine(config(name, backend)).optimizer, "reset", None)
            assert callable(reset), f"{name} names `reset` in NEEDS and does not define it"


SCHEDULED = {
    "kfac": {"damping": 0.3, "factor_decay": 0.9},  # asks for work on the host: merged before it
    "kbfgs": {"damping": 0.3, "factor_decay": 0.9},  # does not: merged inside the step's own program
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("optimizer", SCHEDULED)
def test_what_is_scheduled_counts_from_the_steps_beginning(optimizer: str) -> None:
    """Statistics and inverses of a step use its own values, in both backends: not the step's before."""
    ends = []
    for backend in BACKENDS:
        made = engine(config(optimizer, backend))
        for step in range(STEPS):
            hyper = {name: value / (step + 1) for name, value in SCHEDULED[optimizer].items()}
            made.step(step, made.task.batch("train", 0, step), hyper)
        ends.append(weights(made))
    assert gap(*ends) <= 1e-10


# settings in which every hyper-parameter counts
LIVE: dict[str, dict[str, Any]] = {
    "adagrad": {"momentum": 0.5},
    "rmsprop": {"momentum": 0.5},
    "kfac": {"stale": True, "stale_alpha": 1e-9, "factor_interval": 1, "inverse_interval": 1},
}
# what each becomes: half of what it was, but for these
EDITS = {"epsilon": 0.3, "fallback_epsilon": 0.3, "weight_decay": 0.3, "initial_accumulator": 1.0, "stale_alpha": 10.0}
EDITS |= {"kl_clip": 1e-6, "least_ratio": 2.0, "largest_ratio": 0.5}


def edited(made: Any, values: dict[str, float]) -> dict[str, dict[str, np.ndarray]]:
    """Weights after three steps and four more in which one hyper-parameter is another, by its name; "" for none.

    All are handed in at each step, so that jax compiles one program for all of them. "still" has the weights after a
    first step at a learning rate of zero.
    """

    def go(steps: range, hyper: dict[str, float]) -> None:
        for step in steps:
            made.step(step, made.task.batch("train", 0, step), hyper)

    def keep() -> tuple[dict[str, np.ndarray], Any]:
        arrays, skeleton = made.snapshot()
        return {name: array.copy() for name, array in arrays.items()}, skeleton

    start, found = keep(), {}
    go(range(1), values | {"lr": 0.0})
    found["still"] = weights(made)
    made.restore(*start)
    go(range(3), values)
    arrays, skeleton = keep()
    for name in ("", *values, ""):
        made.restore({name: array.copy() for name, array in arrays.items()}, skeleton)
        go(range(3, 7), values | ({name: EDITS.get(name, values[name] / 2)} if name else {}))
        after = weights(made)
        assert name or "" not in found or gap(after, found[""]) == 0.0, "what was edited has left a trace"
        found[name] = after
    return found


@pytest.mark.sample(4)
@every
def test_an_edit_of_any_live_hyper_parameter_takes_effect(optimizer: str) -> None:
    """Of those that jax holds in its state; all of them in torch too, and to the same end. At lr 0 nothing moves."""
    hyper = LIVE.get(optimizer, {})
    made = {backend: engine(config(optimizer, backend, hyper=dict(hyper))) for backend in BACKENDS}
    initial = weights(made["torch"])
    values = {name: float(value) for name, value in made["jax"].run["opt"]["hyper"].items()}
    assert "lr" in values and values.keys() <= made["torch"].optimizer.param_groups[0].keys()
    found = {backend: edited(made[backend], values) for backend in BACKENDS}
    for backend in BACKENDS:
        after = found[backend]["still"]
        assert all(np.array_equal(initial[name], after[name]) for name in after if "running" not in name), backend
    bound = 1e-7 if optimizer == "noisy" else 1e-10
    for name in values:
        # no parameter of the tiny task is without a layer; tests/optimizers/test_vogn.py edits these where one is
        silent = optimizer == "vogn" and name.startswith("fallback")
        for backend in BACKENDS:
            change = gap(found[backend][name], found[backend][""])
            assert change == 0.0 if silent else change > 1e-7, (backend, name)
        assert gap(found["torch"][name], found["jax"][name]) <= bound, name


def test_what_is_not_read_in_each_step_is_refused() -> None:
    """By both engines, before anything is compiled or changed; torch alone takes up a momentum that began at 0."""
    for backend in BACKENDS:
        made = engine(config("adagrad", backend))
        before, batch = weights(made), made.task.batch("train", 0, 0)
        for hyper in {"nothing": 1.0}, {"lr": 0.1, "nothing": 0.0}:
            with pytest.raises(
                UserError, match=r"nothing cannot be changed while it runs, only .*epsilon.*lr"
            ) as error:
                made.step(0, batch, hyper)
            assert "\n" not in str(error.value)
        if backend == "jax":
            with pytest.raises(UserError, match=r"begin with a small one, optimizer\.momentum=1e-6"):
                made.step(0, batch, {"momentum": 0.5})
            with pytest.raises(UserError, match=r"begin with a small one, optimizer\.momentum=1e-6"):
                made.warm(batch, range(2), {"momentum": 0.5})
        assert gap(weights(made), before) == 0.0
        made.step(0, batch, {"lr": 0.1} if backend == "jax" else {"momentum": 0.5})
        assert gap(weights(made), before) > 1e-3


def test_decay_of_a_table_by_rows_that_began_at_zero_is_taken_up_or_refused() -> None:
    """It reaches every row: torch goes over all of them from then on, jax has compiled a program without it."""
    hyper, ends = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}, []
    for backend, edit in ("torch", {}), ("jax", {}), ("torch", {"weight_decay": 0.3}):
        made = engine(config("sgd", backend, hyper=dict(hyper)), tiny(placement="rows"))
        made.step(0, made.task.batch("train", 0, 0), edit)
        ends.append(weights(made)["embed.weight"])
    assert np.allclose(ends[0], ends[1], rtol=0, atol=1e-12) and np.abs(ends[0] - ends[2]).max() > 1e-3
    made = engine(config("sgd", "jax", hyper=dict(hyper)), tiny(placement="rows"))
    for edit in {"weight_decay": 0.3}, {"momentum": 0.5}:
        with pytest.raises(UserError, match="cannot be changed while it runs, only lr;"):
            made.step(0, made.task.batch("train", 0, 0), edit)


def test_a_step_that_fails_in_its_loss_leaves_gradients_and_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In torch, where a step works in place."""
    made = engine(config("sgd", "torch"))
    advance(made, range(1))
    before, held = weights(made), {name: parameter.grad for name, parameter in made.named.items()}

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(made.model, "loss", fail)
    with pytest.raises(ZeroDivisionError):
        made.step(1, made.task.batch("train", 0, 1), {})
    assert any("running" in name for name in before) and gap(weights(made), before) == 0.0
    assert all(parameter.grad is held[name] for name, parameter in made.named.items())


@pytest.mark.sample(8)
@every
@both
def test_global_switches_are_left_as_found(optimizer: str, backend: str) -> None:
    import jax
    import torch

    def switches() -> tuple[Any, ...]:
        return (
            jax.config.jax_enable_x64,
            jax.config.jax_default_matmul_precision,
            torch.get_default_dtype(),
            torch.backends.cuda.matmul.allow_tf32,
            torch.get_deterministic_debug_mode(),
            torch.get_rng_state().sum().item(),
            str(np.random.get_state()[1][:5]),  # type: ignore[index]
            str(torch._tensor_str.PRINT_OPTS),
            str(np.get_printoptions()),
        )

    torch.set_deterministic_debug_mode("warn")
    try:
        before = switches()
        advance(engine(config(optimizer, backend, deterministic=True)), range(2))
        assert switches() == before
    finally:
        torch.set_deterministic_debug_mode("default")


@pytest.mark.parametrize("optimizer", sorted(set(load.find_members("optimizers")) - {"external"}))
def test_parameters_without_names_are_taken_or_asked_for(optimizer: str) -> None:
    import torch

    module, task = f"suite.optimizers.{optimizer}", tiny()
    weights = [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(3))]
    offers = {"layers": task.layers(), "world": 1, "samples": 8}
    asked = {name: value for name, value in offers.items() if name in load.load_member(module).NEEDS}
    make = load.load_half(module, "torch").make
    if "layers" in asked:
        with pytest.raises(UserError, match="named_parameters"):
            make(iter(weights), **asked)
    else:
        make(iter(weights))


@pytest.mark.sample(1)
@both
def test_tasks_own_randomness_is_pure(backend: str) -> None:
    """`labels="sampled"` draws the same labels in both backends, on any number of micro-batches."""
    hyper = {"fisher": "sampled"}
    one = engine(config("kfac", backend, hyper=hyper))
    advance(one, range(STEPS))
    four = engine(config("kfac", backend, hyper=hyper, accumulate=4))
    advance(four, range(STEPS))
    assert gap(weights(one), weights(four)) <= 1e-12
    given = engine(config("kfac", backend))
    advance(given, range(STEPS))
    assert gap(weights(one), weights(given)) > 1e-6
    other = engine(config("kfac", "jax" if backend == "torch" else "torch", hyper=hyper))
    advance(other, range(STEPS))
    assert gap(weights(one), weights(other)) <= 1e-10
