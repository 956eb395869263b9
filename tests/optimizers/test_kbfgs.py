"""K-BFGS: its quasi-Newton updates by themselves, its warm start, and what its second pass asks for."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from engines import BACKENDS, advance, change, config, engine, gap, weights
from sampling import mostly_torch

from suite.optimizers.kbfgs import jax_pairs, reference, torch_pairs
from suite.training.loop import train

both = pytest.mark.parametrize("backend", BACKENDS)
WARM = {"hyper": {"warm_start": 3, "lr": 0.3}}


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def started(backend: str, **changes: Any) -> Any:
    """An engine whose optimizer has looked at three batches."""
    made = engine(config("kbfgs", backend, **WARM, **changes))
    batches = [made.task.batch("train", 0, index, *made.share) for index in range(3)]
    made.warm(batches[0], range(10), {})
    made.prepare(batches)
    return made


def factor(made: Any) -> np.ndarray:
    """A of the tiny task's only linear layer."""
    if hasattr(made, "run"):
        return np.asarray(made.run["opt"]["a"]["4x4+1"][0])
    return made.optimizer.state["kbfgs"]["a"]["4x4+1"][0].numpy()


@pytest.mark.quick
@both
def test_a_secant_pair_holds_after_the_update(backend: str) -> None:
    """H y = s is what BFGS is for; and H stays symmetric and positive."""
    h, s = draw(5, 5), draw(5, seed=1)
    h, y = h @ h.T + np.eye(5), s + 0.1 * draw(5, seed=2)
    if backend == "torch":
        new = torch.from_numpy(h.copy())
        assert torch_pairs.apply_bfgs(
            new[None], torch.from_numpy(s[None]), torch.from_numpy(y[None]), torch.zeros(1, 5).double()
        )
    else:
        with jax.enable_x64(True):
            (new,), used = jax_pairs.apply_bfgs(*(jnp.asarray(value)[None] for value in (h, s, y, np.zeros(5))))
            assert used
    new = np.asarray(new)
    assert np.allclose(new @ y, s) and np.allclose(new, new.T) and np.linalg.eigvalsh(new)[0] > 0
    assert np.allclose(new, reference.apply_bfgs(h, s, y, np.zeros(5)))


@both
def test_an_unusable_pair_changes_nothing_and_is_said(backend: str) -> None:
    h, s = np.eye(4), draw(4)
    for y in (-s, np.zeros(4), np.full(4, np.nan), np.full(4, 1e-320)):
        if backend == "torch":
            new = torch.from_numpy(h.copy())
            used = torch_pairs.apply_bfgs(
                new[None], torch.from_numpy(s[None]), torch.from_numpy(y[None]), torch.ones(1, 4).double()
            )
        else:
            with jax.enable_x64(True):
                (new,), used = jax_pairs.apply_bfgs(*(jnp.asarray(value)[None] for value in (h, s, y, np.ones(4))))
        assert not used and np.array_equal(np.asarray(new), h)


PAIRS = [(draw(4), draw(4, seed=seed)) for seed in range(1, 9)] + [(draw(4), -draw(4)), (draw(4), draw(4))]


@pytest.mark.quick
@both
def test_double_damping_bounds_the_curvature(backend: str) -> None:
    """sᵀy ≥ √λ sᵀs whatever the pair, and nothing changes where both bounds hold already, as in the last pair."""
    h = np.eye(4)

    def damped(s: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        if backend == "torch":
            given = [torch.from_numpy(value[None]) for value in (h, s, y)]
            return [value[0].numpy() for value in torch_pairs.double_damping(given[0], given[1], given[2], 0.5)]
        with jax.enable_x64(True):
            at, *pair = (jnp.asarray(value)[None] for value in (h, s, y))
            found = jax_pairs.double_damping(at, pair[0], pair[1], jnp.asarray(0.5))
            return [np.asarray(value)[0] for value in found]

    for s, y in PAIRS:
        found = damped(s, y)
        assert found[0] @ found[1] >= (0.5 - 1e-12) * found[0] @ found[0]
        assert np.allclose(found, reference.double_damping(h, s, y, 0.5))
    assert np.array_equal(damped(*PAIRS[-1]), PAIRS[-1])


@both
def test_warm_start_is_the_mean_over_its_batches(backend: str) -> None:
    made = started(backend)
    fresh = engine(config("kbfgs", backend))
    seen = []
    for index in range(3):  # a step without learning rate absorbs one batch and moves nothing but running statistics
        one = engine(config("kbfgs", backend, hyper={"factor_decay": 0.0, "lr": 0.0}))
        batch = one.task.batch("train", 0, index, *one.share)
        one.warm(batch, range(1), {})
        one.step(0, batch, {})
        seen.append(factor(one))
    assert np.allclose(factor(made), np.mean(seen, 0), rtol=0, atol=1e-12)
    assert gap(weights(made), weights(fresh)) == 0.0


@both
def test_the_first_step_leaves_a_as_the_warm_start_made_it(backend: str) -> None:
    made = started(backend)
    before = factor(made).copy()
    advance(made, range(1))
    assert np.array_equal(factor(made), before)
    advance(made, range(1, 2))
    assert np.abs(factor(made) - before).max() > 1e-3


@mostly_torch
def test_a_restored_run_is_not_warmed_up_again(backend: str) -> None:
    """Through the loop: four steps, and the last two of them after a restore, end at the same bits."""
    settings = change(config("kbfgs", backend, **WARM), {"max_steps": 4, "eval_every": 4, "checkpoint_every": 2})
    settings = change(
        settings,
        {"log_every": 1, "prefetch": 0, "schedule": {"shape": "constant", "warmup": 0}, "stop_at_target": False},
    )
    kept: dict[int, Any] = {}

    def save(step: int, state: Any, snapshot: Any) -> str:
        arrays, skeleton = snapshot
        kept[step] = {"step": step, **state}, ({name: value.copy() for name, value in arrays.items()}, skeleton)
        return ""

    whole, rest = engine(settings), engine(settings)
    list(train(whole.task, whole, settings, save=save))
    list(train(rest.task, rest, settings, restored=kept[2]))
    assert gap(weights(whole), weights(rest)) == 0.0
    cold = engine(change(settings, {"optimizer.warm_start": 0}))
    list(train(cold.task, cold, change(settings, {"optimizer.warm_start": 0})))
    assert gap(weights(whole), weights(cold)) > 1e-6


def test_warm_started_backends_devices_and_micro_batches_agree() -> None:
    ends = []
    for backend, changes in (("torch", {}), ("jax", {}), ("jax", {"world": 2}), ("torch", {"accumulate": 2})):
        made = started(backend, **changes)
        advance(made, range(6))
        ends.append(weights(made))
    assert max(gap(ends[0], end) for end in ends[1:]) <= 1e-10
    cold = engine(config("kbfgs", "torch"))
    advance(cold, range(6))
    assert gap(ends[0], weights(cold)) > 1e-6


def test_a_second_look_costs_only_means() -> None:
    """Statistics of the second pass hold no matrices: `evaluate` observes what it is told to."""
    shares = []
    made = engine(config("kbfgs", "torch"))
    evaluate = made._evaluate
    made._evaluate = lambda *given, **options: shares.append(evaluate(*given, **options)) or shares[-1]
    advance(made, range(1))
    first, second = ({value.ndim for value in share.statistics.values()} for share in shares[-2:])
    assert first == {1, 2} and second == {1}
