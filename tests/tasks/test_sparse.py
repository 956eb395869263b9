"""Block-sparse matrices: their products, where blocks stand and move, what is forgotten, what a run says of them."""

import math
from typing import Any

import engines
import numpy as np
import pytest
import ranks
from engines import BACKENDS, advance, weights
from sampling import mostly_torch
from small import SMALL_BERT, SPARSE, small

from suite import load, published
from suite.contract import UserError
from suite.launch.checks import check_run
from suite.launch.job import make_task
from suite.record import record
from suite.settings import configure
from suite.tasks._sparse import Sparsity, cut_blocks
from suite.track import console
from suite.training import loop

SHAPE = (48, 96)
DYNAMIC = {name: options for name, options in zip(("random", "gradient", "balanced"), SPARSE[1:], strict=True)}


def sparsity(**changes: Any) -> Sparsity:
    plain = {"kind": "dynamic", "share": 0.9, "block": 4, "pattern": "random", "growth": "random", "ratio": 0.5}
    return Sparsity(**(plain | {"intervals": 160, "steps": 500, "execution": "auto", "scale_rate": True} | changes))


def bert(backend: str, *options: str, **changes: Any) -> Any:
    settings = small("bert", [*SMALL_BERT, *options], "optimizer=adamw", f"backend={backend}", **changes)
    return engines.engine(settings, make_task(settings))


def assemble_matrix(weight: np.ndarray, pattern: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Assemble the dense matrix (O, I) from blocks (n, b, b) at the places `pattern`."""
    block = weight.shape[1]
    rows, columns = (size // block for size in shape)
    matrix = np.zeros((rows * columns, block, block), weight.dtype)
    matrix[pattern] = weight
    return matrix.reshape(rows, columns, block, block).swapaxes(1, 2).reshape(shape)


def product(backend: str, x: Any, weight: Any, pattern: Any, slope: Any, kind: str) -> list[np.ndarray]:
    """x Wᵀ and its gradients by x and by the blocks, in float64."""
    half = load.load_half("suite.tasks._sparse", backend)
    if backend == "torch":
        import torch

        leaves = [torch.from_numpy(value).requires_grad_() for value in (x, weight)]
        places = torch.from_numpy(pattern)
        if kind == "blocks":
            result = half.multiply_blocks(*leaves, places, SHAPE[0])
        else:
            result = leaves[0] @ half.assemble_matrix(leaves[1], places, SHAPE).T
        gradients = torch.autograd.grad(result, leaves, torch.from_numpy(slope))
        return [value.detach().numpy() for value in (result, *gradients)]
    import jax

    def multiply(x: Any, weight: Any) -> Any:
        if kind == "blocks":
            return half.multiply_blocks(x, weight, pattern, SHAPE[0])
        return x @ half.assemble_matrix(weight, pattern, SHAPE).T

    with jax.enable_x64(True):
        result, back = jax.vjp(multiply, jax.numpy.asarray(x), jax.numpy.asarray(weight))
        return [np.asarray(value) for value in (result, *back(jax.numpy.asarray(slope)))]


# ---------------------------------------------------------------------------------------------------- products
@pytest.mark.parametrize("kind", ["blocks", "dense"])
@pytest.mark.parametrize("block", [1, 4, 8, 16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_product_is_that_of_the_whole_matrix(backend: str, block: int, kind: str) -> None:
    """Blocks in no order, some rows of blocks empty."""
    draws, form = np.random.default_rng(block), sparsity(block=block)
    pattern = draws.permutation(form.start(0, "w", SHAPE))
    weight, x = draws.normal(size=(len(pattern), block, block)), draws.normal(size=(5, SHAPE[1]))
    slope, matrix = draws.normal(size=(5, SHAPE[0])), assemble_matrix(weight, pattern, SHAPE)
    assert (matrix != 0).sum() == weight.size
    result, by_x, by_weight = product(backend, x, weight, pattern, slope, kind)
    grid = cut_blocks(slope.T @ x, block).reshape(-1, block, block)
    for found, expected in ((result, x @ matrix.T), (by_x, slope @ matrix), (by_weight, grid[pattern])):
        assert np.abs(found - expected).max() <= 1e-12


# ------------------------------------------------------------------------------------- where blocks stand and move
@pytest.mark.parametrize("pattern", ["random", "balanced"])
def test_the_first_pattern(pattern: str) -> None:
    form = sparsity(pattern=pattern)
    rows, columns = form.grid("w", SHAPE)
    found = form.start(0, "w", SHAPE)
    assert len(found) == len(set(found.tolist())) == form.count("w", SHAPE) and found.dtype == np.int32
    assert len(found) == (rows * round(0.1 * columns) if pattern == "balanced" else round(0.1 * rows * columns))
    assert (np.diff(found) > 0).all() and found[0] >= 0 and found[-1] < rows * columns
    if pattern == "balanced":
        assert len(set(np.bincount(found // columns, minlength=rows))) == 1
    assert not np.array_equal(found, form.start(1, "w", SHAPE))
    assert not np.array_equal(found, form.start(0, "v", SHAPE))


@pytest.mark.parametrize("growth", ["random", "gradient"])
@pytest.mark.parametrize("pattern", ["random", "balanced"])
def test_a_move_keeps_the_density_and_takes_the_smallest(pattern: str, growth: str) -> None:
    form, draws = sparsity(pattern=pattern, growth=growth, share=0.75), np.random.default_rng(0)
    columns = form.grid("w", SHAPE)[1]
    at = form.start(0, "w", SHAPE)
    gone: set[int] = set()
    for step in (2, 100, 250, 400):
        weight, gradient = draws.normal(size=(len(at), 4, 4)), draws.normal(size=SHAPE)
        new, moved = form.move(0, step, "w", SHAPE, weight, at, gradient if growth == "gradient" else None)
        expected = round(0.5 * 0.5 * (1 + math.cos(math.pi * (step + 1) / 500)) * len(at))
        assert moved.sum() == expected > 0
        assert len(set(new.tolist())) == len(at), "two blocks in one place"
        assert np.array_equal(new[~moved], at[~moved]), "a block that stays has moved"
        assert not set(at.tolist()) & set(new[moved].tolist()), "a place was filled that was full"
        norms = np.abs(weight).sum((1, 2))
        assert norms[moved].max() < norms[~moved].min()
        if pattern == "balanced":
            assert np.array_equal(new // columns, at // columns), "a block has left its row"
        if growth == "gradient" and pattern == "random":
            worth = np.abs(cut_blocks(gradient, 4)).sum((2, 3)).reshape(-1)
            rest = np.delete(worth, np.union1d(at, new))
            assert worth[new[moved]].min() > rest.max()
        again = form.move(0, step, "w", SHAPE, weight, at, gradient if growth == "gradient" else None)
        assert np.array_equal(new, again[0])
        gone |= set(at.tolist()) - set(new.tolist())
        at = new
    assert gone


def test_blocks_move_between_the_intervals_less_and_less() -> None:
    form = sparsity()
    ends = [step for step in range(500) if form.moves(step)]
    assert len(ends) == 159 and ends[-1] < 499  # n intervals have n - 1 ends inside the run
    moving = [form.moving(step, 1000, 9000) for step in ends]
    assert moving == sorted(moving, reverse=True) and moving[0] == 500 and moving[-1] == 0
    assert not any(sparsity(kind="static").moves(step) for step in range(500))
    assert form.moving(0, 1000, 3) == 3, "more blocks move than there are empty places"


# ---------------------------------------------------------------------------------------------------- in training
@pytest.mark.sample(3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", DYNAMIC)
def test_moved_blocks_and_their_moments_are_zero(backend: str, name: str) -> None:
    made = bert(backend, *DYNAMIC[name])
    before = weights(made)
    advance(made, range(1))
    after, moved_blocks, alive = weights(made), 0, 0
    state = made.snapshot()[0]
    keys = list(weights(made))
    for matrix in made.task.matrices():
        at = f"{matrix}.pattern"
        moved = before[at] != after[at]
        moved_blocks += moved.sum()
        visited = np.zeros_like(after[f"{matrix}.visited"])
        visited[before[at]] = visited[after[at]] = 1
        assert np.array_equal(after[f"{matrix}.visited"], visited)
        weight = f"{matrix}.weight"
        values = {"weight": after[weight]}
        for moment in ("first", "second"):
            if backend == "jax":
                values[moment] = state[f"run['opt']['{moment}']['{weight}']"]
            else:
                number = [key for key in keys if made.task.shapes()[key].kind == "parameter"].index(weight)
                values[moment] = state[f"run.optimizer.state.{number}.{moment}"]
        for value in values.values():
            assert (value[moved] == 0).all()
        alive += sum((value[~moved] != 0).sum() for value in values.values())
    assert moved_blocks > 0 and alive > 0
    assert 0.0 < made.facts()["explored"] <= 1.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_resumed_between_two_moves_bit_for_bit(backend: str) -> None:
    whole_run = bert(backend, *DYNAMIC["random"])
    advance(whole_run, range(2))
    arrays, skeleton = whole_run.snapshot()
    arrays = {key: value.copy() for key, value in arrays.items()}
    advance(whole_run, range(2, 4))
    again = bert(backend, *DYNAMIC["random"])
    again.restore(arrays, skeleton)
    advance(again, range(2, 4))
    ends = weights(whole_run), weights(again)
    assert all(np.array_equal(ends[0][key], ends[1][key]) for key in ends[0])


@pytest.mark.xdist_group("world")
@mostly_torch
def test_two_processes_hold_the_same_pattern_and_equal_one(backend: str) -> None:
    """`ranks.start` checks that both hold the same bits. SGD, as Adam makes a step of a gradient's last bit."""
    settings = small("bert", [*SMALL_BERT, *DYNAMIC["gradient"]], "optimizer=sgd", f"backend={backend}")
    settings = engines.change(settings, {"precision": "float64"})
    found = ranks.start(backend, 2, {"moving": [None, 4, engines.change(settings, {"world": 2})]})["moving"]
    alone = engines.engine(settings, make_task(settings))
    advance(alone, range(4))
    for key, value in weights(alone).items():
        assert np.abs(found[key].astype(np.float64) - value).max() <= 1e-10, key


@mostly_torch
def test_the_whole_gradient_is_that_of_the_matrix_with_its_zeros(backend: str) -> None:
    """A dense network with the same matrices has the gradient by which new blocks are chosen."""
    sparse = bert(backend, *DYNAMIC["gradient"], precision="float64")
    asked: dict[str, np.ndarray] = {}
    given = sparse.task.move

    def move(seed: int, step: int, name: str, weight: Any, pattern: Any, gradient: Any) -> Any:
        asked[name] = gradient
        return given(seed, step, name, weight, pattern, gradient)

    sparse.task.move = move
    advance(sparse, range(1), lr=0.0)
    plain = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "module": "suite.optimizers.sgd", "nesterov": False}
    dense = bert(backend, precision="float64", optimizer=plain)
    start, initial = weights(dense), sparse.task
    for name, shape in initial.architecture.sparse().items():
        blocks = initial.init(0, f"{name}.weight"), initial.init(0, f"{name}.pattern")
        start[f"{name}.weight"] = assemble_matrix(*blocks, shape).astype(np.float64)
    others = {name: initial.init(0, name).astype(np.float64) for name in start if "encoder" not in name}
    start |= others
    arrays, skeleton = dense.snapshot()
    held = {
        key: start.get(key.removeprefix("run.model.").removeprefix("run['params']['").removesuffix("']"), value)
        for key, value in arrays.items()
    }
    dense.restore(held, skeleton)
    before = weights(dense)
    advance(dense, range(1))
    after = weights(dense)
    for name in initial.matrices():
        expected = before[f"{name}.weight"] - after[f"{name}.weight"]
        scale = (expected * asked[name]).sum() / (expected**2).sum()  # up to a factor, which is one for all
        assert scale > 0 and np.abs(asked[name] - scale * expected).max() <= 1e-9 * np.abs(asked[name]).max()


# -------------------------------------------------------------------------------------------------- what is said
PUBLISHED = {"E1-01": "small", "E1-03": "base", "E1-07": "mini", "E1-09": "medium"}


@pytest.mark.parametrize("row", PUBLISHED)
def test_operations_are_those_of_the_published_table(row: str) -> None:
    details = next(one for one in published.find_rows("bert") if one.id == row).details
    sizes = ["data=records", f"variant={PUBLISHED[row]}", "sequence=128"]
    if "block" in details:
        sizes += ["sparsity=dynamic", f"sparse.block={details['block']}"]
    config = configure.resolve(["task=bert", "scale=gpu", *(f"task.{size}" for size in sizes)])
    assert make_task(config, absent=True).flops() == pytest.approx(details["flops"], rel=1e-3)


def test_the_learning_rate_follows_the_published_rule_and_the_result_counts() -> None:
    assert sparsity().rate == pytest.approx(6.4, abs=0.01)  # the paper's own figure at 0.9
    assert sparsity(scale_rate=False).rate == 1.0
    dense = small("bert", SMALL_BERT, "optimizer=adamw", max_steps=2, eval_every=2)
    sparse = small("bert", [*SMALL_BERT, *DYNAMIC["random"]], "optimizer=adamw", max_steps=2, eval_every=2)
    rates, folded = [], []
    for settings in (dense, sparse):
        task = make_task(settings)
        events = list(loop.train(task, engines.engine(settings, task), settings))
        told = [{"event": type(event).__name__.lower(), **vars(event)} for event in events]
        rates.append([event["hyper"]["lr"] for event in told if event["event"] == "step"])
        folded.append((record.fold_events(told, task.targets), task))
    assert rates[1] == pytest.approx([sparsity(share=0.6).rate * rate for rate in rates[0]])
    (dense_result, dense_task), (result, task) = folded
    assert result["flops"] == {"sample": task.flops(), "trained": task.flops() * 16}
    assert result["flops"]["sample"] < dense_result["flops"]["sample"] == dense_task.flops()
    assert 0.0 < result["explored"] < 1.0 and "explored" not in dense_result
    assert result["parameters"] < dense_result["parameters"]


@pytest.mark.parametrize("optimizer", ["kfac", "shampoo", "lars"])
def test_an_optimizer_that_sees_whole_matrices_is_refused(optimizer: str) -> None:
    with pytest.raises(UserError, match=f"optimizer={optimizer}: needs whole matrices.*optimizer=adamw"):
        run = small("bert", [*SMALL_BERT, *DYNAMIC["random"]], f"optimizer={optimizer}")
        check_run(run, make_task(run))


@pytest.mark.parametrize(
    "option, said",
    [
        ("sparse.block=5", "does not divide the shape of encoder.0.query, 16 × 16"),
        ("sparse.share=1.0", "must lie between 0 and 1"),
        ("sparse.block=0", "task.sparse.block=0: must be at least 1"),
        ("sparse.growth=magic", "one of random, gradient"),
        ("sparse.ratio=2.0", "task.sparse.ratio=2.0: must be at most 1"),
    ],
)
def test_what_cannot_be_is_refused(option: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        task = make_task(small("bert", [*SMALL_BERT, *DYNAMIC["random"], option], "optimizer=sgd"))
        task.shapes()


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["blocks", "dense"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_keeps_sums_wide_and_grows_by_gradient(backend: str, execution: str) -> None:
    made = bert(backend, *DYNAMIC["gradient"], f"sparse.execution={execution}", precision="bfloat16")
    exact = bert(backend, *DYNAMIC["gradient"], f"sparse.execution={execution}")
    losses = [advance(one, range(3)) for one in (made, exact)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-2) and made.facts()["explored"] > 0.4


def test_the_first_line_of_a_run_says_that_it_is_sparse() -> None:
    for options, said in ((SPARSE[1], "dynamic random blocks of 4 × 4, 60 % zero · learning rate × 2.4"), ([], "")):
        settings = small("bert", [*SMALL_BERT, *options], "optimizer=adamw")
        line = console.describe_run(settings, make_task(settings))
        assert said in line and ("blocks" in line) == bool(said)
