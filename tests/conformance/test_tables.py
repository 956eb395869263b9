"""A table placed by rows: its gradient is (ids, rows), its devices hold parts of it, and a run is what it was."""

from typing import Any

import numpy as np
import pytest
import ranks
import torch
from engines import BACKENDS, advance, config, engine, gap, tiny, weights
from sampling import mostly_torch, sampled

from suite import load
from suite.contract import Rows, UserError

pytestmark = pytest.mark.xdist_group("tables")
STEPS, TABLE, WORDS = 6, "embed.weight", 7  # odd: two devices share eight rows, one of them padding
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {  # the first two are truly sparse, the others reach every row
    "plain": ("sgd", {"momentum": 0.0, "weight_decay": 0.0}),
    "adagrad": ("adagrad", {"initial_accumulator": 0.1}),
    "momentum": ("sgd", {"momentum": 0.9, "weight_decay": 1e-3}),
    "adamw": ("adamw", {}),
    "rmsprop": ("rmsprop", {}),
}
for member in load.find_members("optimizers"):
    if "rows" in load.load_member(f"suite.optimizers.{member}").NEEDS and member != "sgd":
        OPTIMIZERS.setdefault(member, (member, {}))


def settings(name: str, backend: str, **changes: Any) -> dict[str, Any]:
    optimizer, hyper = OPTIMIZERS[name]
    return config(optimizer, backend, **changes, hyper=hyper)


def after(name: str, backend: str, placement: str, **changes: Any) -> dict[str, np.ndarray]:
    made = engine(settings(name, backend, **changes), tiny(placement=placement))
    advance(made, range(STEPS))
    return cut(weights(made))


def cut(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Without the padding, which must have stayed zero."""
    assert not found[TABLE][WORDS:].any()
    return found | {TABLE: found[TABLE][:WORDS]}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name, backend", sampled(OPTIMIZERS, BACKENDS))
def test_by_rows_equals_replicated(name: str, backend: str) -> None:
    whole = after(name, backend, "replicated")
    for changes in ({}, {"accumulate": 4}, {"clip_norm": 0.05}):
        expected = after(name, backend, "replicated", **changes) if "clip_norm" in changes else whole
        assert gap(expected, after(name, backend, "rows", **changes)) <= 1e-12, changes


@pytest.mark.sample(1, keep=("plain",))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_jax_devices_equal_one(name: str) -> None:
    for changes in ({}, {"accumulate": 2}, {"clip_norm": 0.05}):
        one = after(name, "torch", "replicated", **changes)
        assert gap(one, after(name, "jax", "rows", world=2, **changes)) <= 1e-12


@mostly_torch
def test_two_processes_equal_one(backend: str) -> None:
    rows = {"task": {"placement": "rows"}}
    cases = {name: [optimizer, STEPS, {"hyper": hyper, **rows}] for name, (optimizer, hyper) in OPTIMIZERS.items()}
    cases["clipped"] = ["sgd", STEPS, {"hyper": OPTIMIZERS["plain"][1], "clip_norm": 0.05, **rows}]
    found = ranks.start(backend, 2, cases)
    for name, weights_found in found.items():
        changes = {"clip_norm": 0.05} if name == "clipped" else {}
        one = after("plain" if name == "clipped" else name, backend, "replicated", **changes)
        ours = cut({key: weights_found[key] for key in one})
        assert gap(one, ours) <= 1e-12, name


@pytest.mark.sample(2)
@pytest.mark.parametrize("name, backend, world", sampled(OPTIMIZERS, [("torch", 1), ("jax", 1), ("jax", 2)]))
def test_resumed_bit_for_bit(name: str, backend: str, world: int) -> None:
    chosen = settings(name, backend, precision="float32", world=world)
    whole = engine(chosen, tiny(placement="rows"))
    advance(whole, range(3))
    arrays, skeleton = whole.snapshot()
    arrays = {key: value.copy() for key, value in arrays.items()}
    advance(whole, range(3, STEPS))
    again = engine(chosen, tiny(placement="rows"))
    again.restore(arrays, skeleton)
    advance(again, range(3, STEPS))
    assert gap(weights(whole), weights(again)) == 0.0


@pytest.mark.parametrize("name", ["plain", "adagrad"])
def test_untouched_rows_are_not_written_by_a_plain_step(name: str) -> None:
    """A batch names words 0…3 only; the others keep their bits, although the step is in float32."""
    for backend in BACKENDS:
        made = engine(settings(name, backend, precision="float32"), tiny(placement="rows"))
        before = weights(made)[TABLE]
        batch = made.task.batch("train", 0, 0)
        batch["token"] = batch["token"] % 4
        made.warm(batch, range(1), {})
        made.step(0, batch, {})
        now = weights(made)[TABLE]
        assert np.array_equal(now[4:], before[4:]) and (now[:4] != before[:4]).any(1).all()


def test_what_the_optimizer_is_handed() -> None:
    """Torch: a sparse tensor of the touched rows; jax: Rows, one for each id of the batch."""
    import jax.numpy as jnp

    from suite.comm.tables import jax as in_jax
    from suite.comm.transport.jax import Transport

    made = engine(settings("momentum", "torch"), tiny(placement="rows"))
    grad = made.maths.table_gradients({TABLE: [(torch.tensor([[1, 1], [3, 1]]), torch.ones(2, 2, 4))]})
    assert grad[TABLE].is_sparse and grad[TABLE].indices().tolist() == [[1, 3]]
    assert grad[TABLE].values().tolist() == [[3.0] * 4, [1.0] * 4]
    rows = in_jax.sum_gradient(TABLE, jnp.array([[1, 1], [3, 1]]), jnp.ones((2, 2, 4)), jnp.zeros((7, 4)), Transport(1))
    assert isinstance(rows, Rows) and rows.ids.tolist() == [1, 1, 3, 1] and rows.values.shape == (4, 4)


def test_an_optimizer_that_needs_the_whole_table_is_refused() -> None:
    for backend in BACKENDS:
        with pytest.raises(UserError, match=r"task\.placement=replicated"):
            engine(config("kfac", backend), tiny(placement="rows"))
