"""Benchmark of the engine's loop against a bare loop of the same framework that makes the same steps."""

from pathlib import Path
from typing import Any

import engines
import pytest

from suite import load
from suite.contract import Step
from suite.record.log import Log
from suite.settings.run import Run
from suite.training.loop import train

from .measure import check_limit, interleaved, ratio

pytestmark = pytest.mark.bench
LIMIT = 1.02
ROUNDS = 40
LR, MOMENTUM = 1e-4, 0.9


def settings(backend: str) -> Run:
    base = engines.config("sgd", backend, precision="float32", hyper={"lr": LR, "momentum": MOMENTUM})
    loop = {"max_steps": 10**6, "eval_every": 10**6, "checkpoint_every": 0, "log_every": 1, "prefetch": 0}
    still = {
        "task": {"module": "mylab.encoder"},
        "schedule": {"shape": "constant", "warmup": 0},
        "stop_at_target": True,
    }
    return engines.change(base, loop | still)


def bare_torch(engine: Any) -> Any:
    """Forward, backward, torch's own SGD, loss to the host."""
    import torch

    model, task = engine.model, engine.task
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    model.train()

    def call() -> None:
        batch = {name: torch.from_numpy(value) for name, value in task.batch("train", 0, 0).items()}
        total, weight = model.loss(model(batch)[0], batch)
        (total / weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        total.item()

    return call


def bare_jax(engine: Any) -> Any:
    """One jitted step with optax's SGD, loss to the host."""
    import jax
    import jax.numpy as jnp
    import optax

    model, task, optimizer = engine.maths.model, engine.task, optax.sgd(LR, MOMENTUM)
    params = jax.tree.map(jnp.array, engine.run["params"])
    state: Any = [params, optimizer.init(params)]

    def loss(params: Any, batch: Any) -> Any:
        outputs, _, _ = model.apply(params, {}, {}, batch, train=True, key=None, tap=lambda name, x, y: y)
        total, weight = model.loss(outputs, batch)
        return total / weight

    @jax.jit
    def step(params: Any, inner: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, inner = optimizer.update(grads, inner)
        return optax.apply_updates(params, updates), inner, value

    def call() -> None:
        *state[:], value = step(*state, task.batch("train", 0, 0))
        float(value)

    return call


@pytest.mark.parametrize("backend", load.BACKENDS)
def test_loop_against_bare_loop(backend: str, tmp_path: Path, benchmark: Any, capsys: Any) -> None:
    config = settings(backend)
    engine = engines.engine(config)
    bare = {"torch": bare_torch, "jax": bare_jax}[backend](engines.engine(config))
    log = Log(tmp_path / "events.jsonl")
    events = train(engine.task, engine, config)

    def ours() -> None:
        for event in events:
            log(event)
            if isinstance(event, Step):
                return

    seconds = interleaved({"ours": ours, "bare": bare}, ROUNDS, warmup=3)
    benchmark.pedantic(ours, rounds=5)
    found = ratio(seconds, "ours", "bare")
    benchmark.extra_info["ratio"] = found
    with capsys.disabled():
        rounds = f"rounds {found['least']:.3f} to {found['most']:.3f}"
        print(f"\nloop · {backend} · ours / bare {found['median']:.3f} ({rounds})")
    check_limit(found["median"] <= LIMIT)
