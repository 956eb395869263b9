"""A small network in somebody's own jax training loop, which steps with any of the suite's optimizers."""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mlps
import numpy as np
import optax

from suite.contract import Layer
from suite.engine.jax_alone import observing, shapes_of

NAMES = [name for name in mlps.NAMES if name != "external"]
OBSERVING = ("kfac", "kbfgs", "vogn")
LAYERED = (*OBSERVING, "muon")
LAYERS = {name: Layer("linear", (f"{name}.weight", f"{name}.bias")) for name in ("first", "last")}
Run = tuple[Any, Any]  # parameters and state


def start() -> dict[str, dict[str, Any]]:
    """A network's parameters in float32."""
    drawn = np.random.default_rng(3)
    sizes = {"first": (6, 5), "last": (3, 6)}
    return {
        name: {"weight": jnp.float32(drawn.normal(size=size) * 0.4), "bias": jnp.zeros(size[0], jnp.float32)}
        for name, size in sizes.items()
    }


def batch() -> tuple[Any, Any]:
    x, y = mlps.batch(0)
    return jnp.float32(x), jnp.float32(y)


def loss_by_hand(params: Any, x: Any, y: Any, tap: Any = lambda name, x, y: y) -> Any:
    """Compute the mean loss of the network."""
    hidden = jnp.tanh(tap("first", x, x @ params["first"]["weight"].T + params["first"]["bias"]))
    out = tap("last", hidden, hidden @ params["last"]["weight"].T + params["last"]["bias"])
    return jnp.square(out - y).sum(1).mean()


def make(name: str, params: Any, layers: dict[str, Layer], **settings: Any) -> Any:
    """Make the optimizer, with settings whose effect shows."""
    made = importlib.import_module(f"suite.optimizers.{name}.jax").make
    given = mlps.asked(name, "jax", layers, **({"excluded": []} if name == "muon" else {}), **settings)
    return made(**given, **({"shapes": shapes_of(params)} if name in OBSERVING else {}))


def train(name: str, loss: Callable[..., Any], params: Any, layers: dict[str, Layer], optimizer: Any = None) -> Run:
    """Four compiled steps."""
    optimizer = optimizer or make(name, params, layers)
    state, (x, y) = optimizer.init(params), batch()

    @jax.jit
    def step(params: Any, state: Any) -> Run:
        if name in OBSERVING:
            look = observing(loss, optimizer)
            _, grads, statistics = look(params, state, x, y)
            extra = {"statistics": statistics}
            if name == "kbfgs":
                extra["evaluate"] = lambda params: look(params, state, x, y)
        else:
            grads, extra = jax.grad(loss)(params, x, y), {}
        updates, state = optimizer.update(grads, state, params, **extra)
        return optax.apply_updates(params, updates), state

    for _ in range(4):
        params, state = step(params, state)
    return params, state


def check_equal(found: Any, expected: Any, tolerance: float = 2e-6) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=tolerance)
