"""Shampoo's refreshes: failed ones, shared out among ranks, spread over an interval, and taken by the host."""

import threading
from typing import Any

import numpy as np
import pytest
import ranks
import sampling
import torch
from alone import gap
from engines import advance, change, config, engine, weights
from shampoos import BACKENDS, HYPER, SHAPES, STEPS, Jax, Torch, held, specified, train
from twins import draw

from suite.contract import UserError
from suite.optimizers._linalg import host as on_host
from suite.optimizers.shampoo import Settings
from suite.optimizers.shampoo.plan import ShampooPlan

both = pytest.mark.parametrize("backend", ["torch", "jax"])


def plan(shapes: dict[str, tuple[int, ...]], **settings: Any) -> ShampooPlan:
    return ShampooPlan(shapes, Settings.given(settings))


SPREAD = {"tall": (10, 3), "wide": (3, 7), "cube": (4, 3, 5)}


# ------------------------------------------------------------------------------------------------ the schedule
@pytest.mark.parametrize("start, first", [(0, 0), (1, 1), (5, 5)])
def test_schedule(start: int, first: int) -> None:
    made = plan({"w": (3, 2)}, inverse_interval=4, start_preconditioning=start)
    assert [step for step in range(14) if made.programs(step)] == list(range(first, 14, 4))
    assert made.programs(first) == ("3/4", "2/4")


def test_schedule_with_a_lag() -> None:
    made = plan({"w": (3, 2)}, inverse_interval=4, start_preconditioning=2, lag=4)
    take, install = (tuple(f"{size}/4/{what}" for size in (3, 2)) for what in ("take", "install"))
    assert {step: made.programs(step) for step in range(11) if made.programs(step)} == {
        2: take,
        6: install + take,  # in this order: there is room for one refresh under way
        10: install + take,
    }
    assert [step for step in range(11) if made.flying(step)] == list(range(3, 11))


def test_turns_are_dealt_out_evenly() -> None:
    """After the first refresh, which is of all: each root once an interval, equally many a step, or one more."""
    made = plan(SPREAD, block_size=3, inverse_interval=5, start_preconditioning=1, stagger=True)
    blocks = sum(grid.blocks for grid in made.grids.values())
    assert made.programs(0) == () and made.programs(1) == tuple(made.counts)
    sizes = []
    for turn in range(5):
        programs = [made.programs(step) for step in (2 + turn, 7 + turn, 502 + turn)]
        assert programs[0] == programs[1] == programs[2]
        sizes.append(sum(len(turns.get(turn, [])) for turns in made.turns.values()))
    assert sum(sizes) == 2 * blocks and max(sizes) - min(sizes) <= 2  # both sides of a block take the same turn
    for stack, turns in made.turns.items():
        rows = [row for chosen in turns.values() for row in chosen]
        assert sorted(rows) == list(range(made.counts[stack]))


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"lag": 5}, "set 0 to inverse_interval=4"),
        ({"lag": -1}, "lag=-1: must be at least 0"),
        ({"lag": 2, "stagger": True}, "choose one of the two"),
        ({"lag": 2, "root": "newton"}, "with lag choose one of auto, eigh"),
    ],
)
def test_what_cannot_be_says_what_to_type(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan({"w": (3, 3)}, inverse_interval=4, **wrong)


# --------------------------------------------------------------------------------------------- the specification
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "change, backend",
    sampling.sampled(
        [
            {"lag": 1},
            {"lag": 2, "graft": "adam"},
            {"lag": 3, "reshape": "none", "max_size": 4},
            {"stagger": True},
            {"stagger": True, "inverse_interval": 5, "block_size": 2, "graft": "rmsprop"},
            {"stagger": True, "reshape": "none"},
        ],
        ["torch", "jax"],
    ),
)
def test_backends_equal_the_reference(backend: str, change: dict[str, Any]) -> None:
    hyper = HYPER | {"inverse_interval": 3, "start_preconditioning": 2} | change
    expected = specified(draw(SHAPES, 0), steps=14, **hyper)
    assert gap(train(BACKENDS[backend](draw(SHAPES, 0), **hyper), steps=14), expected) <= 1e-10
    at_once = hyper | {"lag": 0, "stagger": False}
    assert gap(specified(draw(SHAPES, 0), steps=14, **at_once), expected) > 1e-4


@both
def test_the_ridge_is_that_of_the_statistics(backend: str) -> None:
    """An epsilon edited while roots are under way counts from the next refresh on."""
    hyper = HYPER | {"inverse_interval": 3, "start_preconditioning": 2, "lag": 2}
    edits = {3: {"epsilon": 0.3}}  # taken at step 2, installed at step 4
    expected = specified(draw(SHAPES, 0), edits=edits, **hyper)
    assert gap(train(BACKENDS[backend](draw(SHAPES, 0), **hyper), edits=edits), expected) <= 1e-10
    assert gap(specified(draw(SHAPES, 0), **hyper | {"epsilon": 0.3}), expected) > 1e-4


@both
def test_an_interval_of_one_has_nothing_to_spread(backend: str) -> None:
    ends = [
        train(BACKENDS[backend](draw(SPREAD, 0), **HYPER, inverse_interval=1, stagger=stagger))
        for stagger in (False, True)
    ]
    assert gap(*ends) == 0.0


# ------------------------------------------------------------------------------------------------- on the host
LAGGED = {"lag": 3, "inverse_interval": 4, "start_preconditioning": 2, "block_size": 3, "lr": 0.05}
ENDS = 13  # three refreshes, the last one still under way


SPREAD_OUT = LAGGED | {"lag": 0, "stagger": True}  # all at step 2, then a quarter of the roots at every step


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "backend, world, hyper, interrupted",
    [
        ("torch", 1, LAGGED, range(ENDS)),
        ("jax", 1, LAGGED, range(ENDS)),
        ("jax", 2, LAGGED, range(ENDS)),
        ("torch", 1, SPREAD_OUT, range(ENDS)),
        ("jax", 1, SPREAD_OUT, (1, 3, 5)),
    ],
    ids=["torch", "jax", "jax-2", "torch-staggered", "jax-staggered"],
)
def test_restored_inside_a_refresh_the_same_bits_land(
    backend: str, world: int, hyper: dict[str, Any], interrupted: Any
) -> None:
    """A new engine at every step: whatever is under way, and whose turn is next, is in the checkpoint."""
    settings = config("shampoo", backend, precision="float32", hyper=hyper, world=world)
    straight, made = engine(settings), engine(settings)
    advance(straight, range(ENDS))
    expected = weights(straight)
    for step in range(ENDS):
        advance(made, range(step, step + 1))
        if step not in interrupted:
            continue
        arrays, skeleton = made.snapshot()
        made = engine(settings)
        made.restore({name: array.copy() for name, array in arrays.items()}, skeleton)
    found = weights(made)
    assert max(np.abs(found[name] - expected[name]).max() for name in expected) == 0.0


@pytest.mark.xdist_group("world")
@sampling.mostly_torch
def test_two_processes_land_the_same_bits(backend: str) -> None:
    """Each takes the roots of its slices; interrupted while they are under way, or not; and as one process would."""
    lagged, spread = {"hyper": LAGGED}, {"hyper": SPREAD_OUT}
    cases = {
        "straight": ["shampoo", ENDS, lagged],
        "restored": ["shampoo", ENDS, lagged | {"restored": [3, 5]}],
        "spread": ["shampoo", ENDS, spread],
    }
    found = ranks.start(backend, 2, cases)
    for name in weights(engine(config("shampoo", backend))):
        assert np.array_equal(found["straight"][name], found["restored"][name])
    for case, settings in ("straight", lagged), ("spread", spread):
        alone = engine(config("shampoo", backend, **settings))
        advance(alone, range(ENDS))
        assert max(np.abs(value - found[case][name]).max() for name, value in weights(alone).items()) <= 1e-10


@both
def test_an_engine_that_goes_back_in_time_forgets_its_work(backend: str) -> None:
    """Restored to before a refresh while another one's is under way: its roots are not those of these statistics."""
    settings = config("shampoo", backend, precision="float32", hyper=LAGGED)
    made = engine(settings)
    advance(made, range(4))
    arrays, skeleton = made.snapshot()
    arrays = {name: array.copy() for name, array in arrays.items()}
    other = engine(change(settings, {"seed": 1}))
    advance(other, range(4))
    other.restore(arrays, skeleton)
    for either in (made, other):
        batches = [either.task.batch("train", 0, step) for step in range(4, ENDS)]
        either.seed = 0
        for step, batch in enumerate(batches, 4):
            either.step(step, batch, {})
    found, expected = weights(other), weights(made)
    assert max(np.abs(found[name] - expected[name]).max() for name in expected) == 0.0


@both
def test_training_goes_on_while_the_host_works(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps up to the one that needs the roots do not wait for them; `synchronize` does, so that they are billed."""
    made = engine(config("shampoo", backend, precision="float32", hyper=LAGGED))
    batch = made.task.batch("train", 0, 0)
    made.warm(batch, range(6), {})
    gate, right, ended = threading.Event(), on_host.inverse_root, []

    def slow(*arguments: Any, **options: Any) -> np.ndarray:
        assert gate.wait(60)
        found = right(*arguments, **options)
        ended.append(found)
        return found

    monkeypatch.setattr(on_host, "inverse_root", slow)
    for step in range(5):  # statistics are taken in step 2, their roots installed in step 5
        made.step(step, batch, {})
    assert not ended
    threading.Timer(0.1, gate.set).start()
    made.synchronize()
    assert len(ended) == len(made.plan.counts)
    made.step(5, batch, {})
    assert len(ended) == len(made.plan.counts), "the thread's work was taken up, not done again"
    assert bool(np.all(np.isfinite(weights(made)["fc.weight"])))


# ------------------------------------------------------------------------------------------------------ failures
BROKEN = {
    "zero": np.zeros((4, 4)),
    "denormal": 1e-41 * np.eye(4),
    "nan": np.full((4, 4), np.nan),
    "one nan": np.where(np.arange(16).reshape(4, 4) == 2, np.nan, np.eye(4)),
    "infinite": np.diag([1.0, np.inf, 1.0, 1.0]),
    "singular": np.diag([1.0, 1.0, 0.0, 0.0]),
    **{f"rank {rank}": rows.T @ rows for rank, rows in ((n, draw({"x": (n, 4)}, 7)["x"]) for n in (1, 2, 3))},
    "negative": -np.eye(4),
}


def refresh(made: Any, how: dict[str, Any]) -> None:
    """Refresh the first stack, at once or through the host."""
    if not how.get("lag"):
        made.refresh("4/4")
        return
    made.refresh("4/4/take")
    made.host(2)  # a refresh of step 1 lands before step 2
    made.refresh("4/4/install")


@both
@pytest.mark.parametrize("how", [{"root": "eigh"}, {"root": "eigh32"}, {"root": "newton"}, {"lag": 1}])
def test_a_failed_root_keeps_the_previous_one_and_is_counted(backend: str, how: dict[str, Any]) -> None:
    """Without a ridge; their neighbours in the stack are refreshed all the same."""
    count = 2 * len(BROKEN)
    options = {"block_size": 4, "epsilon": 0.0, "start_preconditioning": 1}
    made = BACKENDS[backend]({"w": np.zeros((4 * count, 2))}, "float32", **options, **how)
    good = np.tile(16.0 * np.eye(4, dtype=np.float32), (count, 1, 1))
    made.place("4/4", good)
    refresh(made, how)
    before = held(made, "4/4")
    assert np.allclose(before, 0.5 * np.eye(4), atol=1e-6) and int(made.state["kept"]) == 0
    mixed = good / 16.0
    mixed[1::2] = list(BROKEN.values())
    made.place("4/4", mixed)
    refresh(made, how)
    after = held(made, "4/4")
    assert [kind for kind, now, old in zip(BROKEN, after[1::2], before[1::2], strict=True) if (now != old).any()] == []
    assert np.allclose(after[::2], np.eye(4), atol=1e-6)
    assert int(made.state["kept"]) == len(BROKEN)


@both
def test_in_its_turn_a_failed_root_is_kept_and_counted_as_well(backend: str) -> None:
    """Twice around: ten blocks in turns of three and four, every other one without a root."""
    options = {"block_size": 4, "inverse_interval": 3, "stagger": True, "start_preconditioning": 1}
    made = BACKENDS[backend]({"w": np.zeros((40, 2))}, "float32", **options)
    mixed = np.tile(np.float32(16.0) * np.eye(4, dtype=np.float32), (10, 1, 1))
    mixed[1::2] = np.nan
    made.place("4/4", mixed)
    for turn in range(6):
        made.refresh("4/4/turn")
        done = sum(map(len, made.plan.rows("4/4")[: turn + 1]))
        changed = [not np.array_equal(root, np.eye(4)) for root in held(made, "4/4")]
        assert sum(changed) == min(sum(n % 2 == 0 for rows in made.plan.rows("4/4")[: turn + 1] for n in rows), done)
    assert int(made.state["kept"]) == 10
    assert np.allclose(held(made, "4/4")[::2], 0.5 * np.eye(4), atol=1e-6)


def test_an_eigensolver_that_gives_up_keeps_every_root(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Torch({"w": np.zeros((4, 2))}, beta2=1.0)
    made.update({"w": np.eye(4, 2)})

    def fails(stack: torch.Tensor) -> None:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    made.refresh("4/4")
    assert np.array_equal(held(made, "4/4")[0], np.eye(4)) and int(made.state["kept"]) == 1


def test_zero_gradients_move_nothing() -> None:
    hyper = {"weight_decay": 0.0, "inverse_interval": 1, "start_preconditioning": 1}
    for made in (Torch(draw(SHAPES, 0), **hyper), Jax(draw(SHAPES, 0), **hyper)):
        after = train(made, lambda params, step: {name: np.zeros_like(value) for name, value in params.items()})
        assert gap(after, draw(SHAPES, 0)) == 0.0
        assert int(made.state["kept"]) == (STEPS - 1) * sum(made.plan.counts.values())
