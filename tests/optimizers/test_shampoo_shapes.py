"""Shampoo's shapes: how parameters are reshaped and cut, which sides have factors, to which power they are taken."""

import itertools
import re
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sampling
import torch
from alone import gap
from shampoos import BACKENDS, HYPER, SCHEDULE, TABLES, specified, train
from twins import Tree, draw, noisy

from suite import engine
from suite.contract import UserError
from suite.launch.job import make_task
from suite.optimizers.shampoo import Settings
from suite.optimizers.shampoo import jax_blocks as in_jax
from suite.optimizers.shampoo import torch_blocks as in_torch
from suite.optimizers.shampoo.plan import ShampooPlan, merge_sides, split_side
from suite.optimizers.shampoo.torch import Shampoo
from suite.settings import configure

both = pytest.mark.parametrize("backend", ["torch", "jax"])
SHAPES = {"matrix": (5, 4), "filter": (4, 3, 3, 3), "wide": (11, 3), "cube": (5, 4, 3), "narrow": (6, 1), "bias": (5,)}


def plan(shapes: dict[str, tuple[int, ...]], tables: Any = (), world: int = 1, **settings: Any) -> ShampooPlan:
    return ShampooPlan(shapes, Settings.given(settings), tables=tables, world=world)


# ------------------------------------------------------------------------------------------------------ the shapes
@pytest.mark.parametrize(
    "shape, matrix, merged, whole",
    [
        ((1024, 1024), (1024, 1024), (1024, 1024), (1024, 1024)),
        ((16, 3, 3, 3), (16, 27), (16, 27), (16, 3, 3, 3)),  # 432 in all, and no vector for that
        ((64, 1, 3, 3), (64, 9), (64, 9), (64, 3, 3)),
        ((1, 5, 1, 4), (5, 4), (5, 4), (5, 4)),
        ((512, 512, 3, 3), (512, 4608), (512, 512, 9), (512, 512, 3, 3)),
        ((2, 3, 1000, 5), (2, 15000), (6, 1000, 5), (2, 3, 1000, 5)),
        ((64, 1, 1, 1), (64,), (64,), (64,)),
        ((7,), (7,), (7,), (7,)),
        ((1,), (), (), ()),
        ((), (), (), ()),
    ],
)
def test_reshaping(shape: tuple[int, ...], matrix: Any, merged: Any, whole: Any) -> None:
    """With blocks of 512 a peer makes (1, 1024, 1024) and (1,) of the first two."""
    assert merge_sides(shape, "matrix", 512) == matrix
    assert merge_sides(shape, "merge", 512) == merged
    assert merge_sides(shape, "none", 512) == whole


@pytest.mark.parametrize(
    "changes, counts",
    [
        ({}, {"512/4": 8, "16/4": 1, "27/4": 1}),
        ({"reshape": "none"}, {"512/4": 8, "16/8": 1, "3/8": 3}),
        ({"reshape": "merge", "merge_size": 9}, {"512/4": 8, "16/6": 1, "9/6": 1, "3/6": 1}),
        ({"exponent": 3}, {"512/3": 8, "16/3": 1, "27/3": 1}),
        ({"max_size": 20}, {"16/2": 1}),
        ({"max_size": 20, "large": "skip"}, {}),
        ({"max_size": 1000, "large": "skip"}, {"16/4": 1, "27/4": 1}),
    ],
)
def test_which_sides_have_factors(changes: dict[str, Any], counts: dict[str, int]) -> None:
    """Settings decide how many factors there are of each size and order of root."""
    shapes = {"large": (1024, 1024), "filter": (16, 3, 3, 3), "bias": (16,), "point": (64, 1, 1, 1)}
    made = plan(shapes, block_size=512, **changes)
    assert made.counts == counts
    assert "bias" not in made.grids and "point" not in made.grids


def test_blocks() -> None:
    for side in range(1, 300):
        count, length = split_side(side, 128)
        assert length <= 128 and count == -(-side // 128) and 0 <= count * length - side < count
    assert split_side(129, 128) == (2, 65)
    table = plan({"table": (10_000, 256)}, max_size=4096)  # a side without a factor is not cut
    assert table.grids["table"].lengths == (10_000, 128) and table.counts == {"128/2": 2}


def test_equal_blocks_share_a_stack_and_equal_factors_another() -> None:
    """Whatever blocks they belong to: of a square one's two sides, too."""
    made = plan({"a": (6, 4), "b": (3, 4), "c": (2, 3, 2), "d": (3, 3)}, block_size=3, world=4)
    assert made.stacked == {"3x2": ["a", "b"], "2x3": ["c"], "3x3": ["d"]}
    assert made.counts == {"3/4": 10, "2/4": 8}
    three = [("3x2", 0, range(6)), ("2x3", 1, range(6, 8)), ("3x3", 0, range(8, 9)), ("3x3", 1, range(9, 10))]
    two = [("3x2", 1, range(6)), ("2x3", 0, range(6, 8))]
    for stack, expected in {"3/4": three, "2/4": two}.items():
        for key, side, rows in expected:
            assert made.place[key, side] == (stack, slice(rows.start, rows.stop))
    assert made.share("3/4") == 3 and made.owners(10) == (0, 0, 0, 1, 1, 1, 2, 2, 2, 3)
    assert made.size("3/4") == 3 and made.order("3/4") == 4


def test_cut_and_join() -> None:
    value = np.arange(7.0 * 5).reshape(7, 5)
    grid = plan({"w": (7, 5)}, block_size=3).grids["w"]
    blocks = torch.empty(6, 3, 3, dtype=torch.float64)
    in_torch.cut_blocks(torch.from_numpy(value), grid, blocks)
    assert blocks[3].tolist() == [[18.0, 19.0, 0.0], [23.0, 24.0, 0.0], [28.0, 29.0, 0.0]]  # rows 3-5, columns 3-4


@pytest.mark.parametrize("options", [{}, {"reshape": "none"}, {"reshape": "none", "max_size": 4}, {"block_size": 9}])
def test_cutting_is_undone_by_joining(options: dict[str, Any]) -> None:
    value = np.arange(7.0 * 5 * 4).reshape(7, 5, 4)
    grid = plan({"w": value.shape}, **{"block_size": 3, **options}).grids["w"]
    blocks = torch.empty(grid.blocks, *grid.lengths, dtype=torch.float64)
    in_torch.cut_blocks(torch.from_numpy(value), grid, blocks)
    assert np.array_equal(in_torch.join_blocks(blocks, grid).numpy().reshape(value.shape), value)
    with jax.enable_x64(True):
        again = in_jax.cut_blocks(jnp.asarray(value), grid)
        assert np.array_equal(np.asarray(again), blocks.numpy())
        assert np.array_equal(np.asarray(in_jax.join_blocks(again, grid)).reshape(value.shape), value)


@pytest.mark.parametrize("wrong", ["graft", "root", "reshape", "large"])
def test_unknown_options_say_what_to_type(wrong: str) -> None:
    with pytest.raises(UserError, match=rf"{wrong}=mistyped: must be one of .*(sgd|newton|merge|skip)"):
        plan({"w": (3, 3)}, **{wrong: "mistyped"})


PAGE = (conftest.TESTS.parent / "docs" / "shampoo.md").read_text()


@pytest.mark.parametrize("command", re.findall(r"^    suite -m (.+)$", PAGE, re.MULTILINE))
def test_documented_sweeps_are_plain_overrides(command: str) -> None:
    """Every run of each sweep has a configuration of its own that makes a plan."""
    typed = [override.lstrip("+").partition("=") for override in command.split()]
    runs = itertools.product(*(value.split(",") for _, _, value in typed))
    made = [
        configure.resolve([f"{name}={value}" for (name, _, _), value in zip(typed, run, strict=True)]) for run in runs
    ]
    nodes = [config.optimizer.options() for config in made]
    assert len({str(node) for node in nodes}) == len(nodes) > 1
    plans = [Shampoo([("w", torch.nn.Parameter(torch.zeros(40, 6, 3)))], **node).plan for node in nodes]
    assert all(plan.counts for plan in plans)


@pytest.mark.parametrize(
    "name, tables",
    [
        ("transformer", {"embedding.weight"}),
        ("transformer task.tying=decoder", {"source_embedding.weight", "target_embedding.weight"}),
        ("bert", {"word.weight", "position.weight", "segment.weight"}),
        ("dlrm", {"tables.weight"}),
    ],
)
def test_embeddings_in_or_out_are_the_words_too_that_the_output_shares(name: str, tables: set[str]) -> None:
    task = make_task(configure.resolve([f"task={name.split()[0]}", "optimizer=shampoo", *name.split()[1:]]))
    assert set(engine.list_embeddings(task)) == tables
    shapes = {each: spec.shape for each, spec in task.shapes().items() if spec.kind == "parameter"}
    whole, without = (plan(shapes, tables, embeddings=choice).grids for choice in (True, False))
    assert whole.keys() - without.keys() == tables and without


def test_the_published_recipe_sets_what_the_row_says() -> None:
    node = configure.resolve(["experiment=C1-03"]).optimizer
    said = {"block_size": 128, "exponent": 4, "max_size": 8192, "large": "skip", "start_preconditioning": 25}
    assert {name: getattr(node, name) for name in said} == said


# --------------------------------------------------------------------------------------------- the specification
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "change, backend",
    sampling.sampled(
        [
            {"reshape": "none"},
            {"reshape": "none", "block_size": 128, "graft": "adam"},
            {"reshape": "merge", "merge_size": 12},
            {"exponent": 3},
            {"max_size": 4},
            {"max_size": 4, "reshape": "none", "nesterov": True},
            {"max_size": 4, "large": "skip"},
            {"embeddings": False},
        ],
        ["torch", "jax"],
    ),
)
def test_backends_equal_the_reference(backend: str, change: dict[str, Any]) -> None:
    hyper = HYPER | SCHEDULE | {"tables": TABLES} | change
    expected = specified(draw(SHAPES, 0), **hyper)
    assert gap(train(BACKENDS[backend](draw(SHAPES, 0), **hyper)), expected) <= 1e-10
    assert gap(specified(draw(SHAPES, 0), **HYPER | SCHEDULE), expected) > 1e-4  # each option does something


# ------------------------------------------------------------------------------------------------ closed forms
def ends(backend: str, shapes: dict[str, tuple[int, ...]], gradient: Any = noisy, **hyper: Any) -> Tree:
    return train(BACKENDS[backend](draw(shapes, 0), **HYPER | SCHEDULE | hyper), gradient)


@pytest.mark.sample(1)
@both
def test_an_embedding_left_out_takes_the_grafts_step(backend: str) -> None:
    """And so does one that is skipped for its size; the others go on as before."""
    left_out = ends(backend, SHAPES, tables=TABLES, embeddings=False)
    never = ends(backend, SHAPES, start_preconditioning=100)
    always = ends(backend, SHAPES)
    skipped = ends(backend, SHAPES, max_size=10, large="skip", reshape="none")
    assert np.array_equal(left_out["wide"], never["wide"]) and np.array_equal(skipped["wide"], never["wide"])
    # stacked with other blocks, whose products may be rounded otherwise
    assert all(np.abs(found["matrix"] - always["matrix"]).max() < 1e-12 for found in (left_out, skipped))
    assert np.abs(always["wide"] - never["wide"]).max() > 1e-3


@both
def test_one_side_alone_whitens_it(backend: str) -> None:
    """One gradient repeated with R = t Gᵀ G: G R^(-1/2) = U Vᵀ / √t, as with both sides and fourth roots."""
    g = draw({"w": (9, 4)}, 1)["w"]
    u, _, v = np.linalg.svd(g, full_matrices=False)
    hyper = {"lr": 1.0, "momentum": 0.0, "beta2": 1.0, "epsilon": 1e-14, "start_preconditioning": 1, "max_size": 5}
    hyper |= {"nesterov": False, "weight_decay": 0.0, "inverse_interval": 1}
    made = BACKENDS[backend]({"w": np.zeros((9, 4))}, **hyper)
    assert list(made.plan.counts) == ["4/2"]
    before = train(made, lambda params, step: {"w": g}, steps=4)["w"]
    after = train(made, lambda params, step: {"w": g}, steps=1)["w"]
    assert np.abs(before - after - np.linalg.norm(g) / 2.0 * u @ v).max() < 1e-9


@both
def test_rows_without_gradient_change_nothing(backend: str) -> None:
    """A table's one factor Gᵀ G is made of the rows that were looked up, however many others there are."""
    tables = []
    for rows, places in (6, [0, 1, 2]), (12, [2, 5, 11]):

        def spread(few: np.ndarray, rows: int = rows, places: list[int] = places) -> Tree:
            whole = np.zeros((rows, 4))
            whole[places] = few
            return {"w": whole}

        hyper = HYPER | SCHEDULE | {"weight_decay": 0.0, "block_size": 3, "max_size": 5}
        made = BACKENDS[backend](spread(draw({"w": (3, 4)}, 0)["w"]), **hyper)
        table = train(made, lambda params, step, put=spread: put(draw({"w": (3, 4)}, step)["w"]))["w"]
        assert np.abs(np.delete(table, places, 0)).max() == 0.0
        tables.append(table[places])
    assert np.abs(tables[0] - tables[1]).max() < 1e-12


@both
@pytest.mark.parametrize("columns", [4, 5])
def test_a_gradient_of_few_rows_is_like_any_other(backend: str, columns: int) -> None:
    """A table cut into one block or two, of which each step looks up other rows, and at last all of them."""

    def gradient(params: Tree, step: int) -> Tree:
        grad = noisy(params, step)
        kept = slice(None) if step == 8 else [step % 11, (3 * step) % 11, 10]
        return {"w": np.where(np.isin(np.arange(11), np.arange(11)[kept])[:, None], grad["w"], 0.0)}

    hyper = HYPER | SCHEDULE | {"weight_decay": 0.0, "block_size": 4, "max_size": 6}
    start = draw({"w": (11, columns)}, 0)
    assert gap(train(BACKENDS[backend](start, **hyper), gradient), specified(start, gradient, **hyper)) <= 1e-10


def test_which_rows_count_as_touched() -> None:
    table = torch.zeros(2, 7, 3)
    table[0, 5, 1], table[1, 2, 0] = -1.0, torch.nan
    rows = in_torch.find_touched_rows(table)
    assert rows is not None and rows.tolist() == [2, 5]
    assert (
        in_torch.find_touched_rows(torch.ones(2, 7, 3)) is None
        and in_torch.find_touched_rows(torch.zeros(1, 4, 4, 4)) is None
    )


@pytest.mark.sample(1)
@both
def test_a_block_as_long_as_the_side_is_no_block(backend: str) -> None:
    shapes = {"matrix": (7, 5), "filter": (4, 1, 3, 3)}
    for reshape in ("matrix", "none"):
        one, other, small = (ends(backend, shapes, block_size=size, reshape=reshape) for size in (9, 10**6, 4))
        assert gap(one, other) == 0.0
        assert gap(one, small) > 1e-3


@pytest.mark.sample(1)
@both
def test_rotated_cubes_give_a_rotated_step(backend: str) -> None:
    """Each side of an order-3 tensor may be rotated, with one block and the rotation-free graft."""
    shapes = {"w": (4, 3, 5)}
    turns = [np.linalg.qr(draw({"q": (side, side)}, side)["q"])[0] for side in shapes["w"]]

    def turned(value: np.ndarray, back: bool = False) -> np.ndarray:
        return np.einsum("abc,ia,jb,kc->ijk", value, *(q.T if back else q for q in turns))

    def gradient(params: Tree, step: int) -> Tree:
        return {"w": turned(noisy({"w": turned(params["w"], back=True)}, step)["w"])}

    options = HYPER | SCHEDULE | {"reshape": "none"}
    start = draw(shapes, 0)["w"]

    def both_ways(block_size: int) -> float:
        made = (
            BACKENDS[backend]({"w": value}, **options | {"block_size": block_size}) for value in (start, turned(start))
        )
        straight, other = next(made), next(made)
        return float(np.abs(train(other, gradient)["w"] - turned(train(straight)["w"])).max())

    assert both_ways(5) < 1e-10
    assert both_ways(2) > 1e-3
