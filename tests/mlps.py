"""A small network with its gradients and taps in NumPy, the same in torch and jax, and every optimizer on it alone."""

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from alone import chosen
from engines import settings_of

from suite import load
from suite.contract import Layer

Tree = dict[str, np.ndarray]
NAMES = tuple(sorted(load.find_members("optimizers")))
SIZES = {"unused": (4, 6), "0": (6, 5), "2": (4, 6), "4": (3, 4), "last": (3, 3)}  # outputs and inputs
USED = ("0", "2", "4", "last")
DESCRIBED = ("unused", "0", "2", "4")  # what the optimizers are told of; the last layer is none of theirs
SAMPLES = 8
# intervals at which some steps refresh and some do not
HYPER: dict[str, dict[str, Any]] = {
    "shampoo": {"inverse_interval": 3, "start_preconditioning": 2},
    "soap": {"lr": 0.01, "epsilon": 1e-3, "precondition_frequency": 3},
    "sm3": {"lr": 0.03},
    "kbfgs": {"lr": 0.1},
    "sgd": {"lr": 0.05},
    "kfac": {"fallback_ratio": 0.5, "fallback_epsilon": 1e-4},  # the last layer has no factors
    "external": {"lr": 0.05},
    "vogn": {"augmentation": 1.0},
}


def layers(*names: str) -> dict[str, Layer]:
    """Return the network's layers as the optimizers are told of them."""
    return {name: Layer("linear", (f"{name}.weight", f"{name}.bias")) for name in names or DESCRIBED}


def initial(*names: str) -> Tree:
    """Weights and biases by name."""
    found: Tree = {}
    for name in names or SIZES:
        drawn = np.random.default_rng([7, *name.encode()])
        outputs, inputs = SIZES[name]
        found[f"{name}.weight"] = drawn.normal(size=(outputs, inputs)) / np.sqrt(inputs)
        found[f"{name}.bias"] = drawn.normal(size=outputs) * 0.1
    return found


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and targets of a regression."""
    drawn = np.random.default_rng([11, step])
    x = drawn.normal(size=(SAMPLES, 5))
    return x, np.stack([np.sin(x[:, 0]), x[:, 1] * x[:, 2], np.cos(x[:, 3])], 1)


def differentiated(params: Tree, step: int) -> tuple[float, Tree, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Compute the mean loss ½ |f(x) - y|², gradients, and described layers' inputs and gradients of the summed loss."""
    (h, y), inputs = batch(step), {}
    for name in USED:
        inputs[name] = h
        h = h @ params[f"{name}.weight"].T + params[f"{name}.bias"]
        h = h if name == "last" else np.tanh(h)
    loss, dy = 0.5 * ((h - y) ** 2).sum() / SAMPLES, h - y
    grads, taps = {}, {}
    for name in reversed(USED):
        grads[f"{name}.weight"], grads[f"{name}.bias"] = dy.T @ inputs[name] / SAMPLES, dy.mean(0)
        if name in DESCRIBED:
            taps[name] = inputs[name], dy
        dy = (dy @ params[f"{name}.weight"]) * (1.0 - inputs[name] ** 2)
    return float(loss), grads, taps


def asked(name: str, backend: str, described: dict[str, Layer], **hyper: Any) -> dict[str, Any]:
    """Return the optimizer's arguments beside its parameters."""
    needs = load.load_member(f"suite.optimizers.{name}").NEEDS
    offers: dict[str, Any] = {"layers": described, "samples": 100}
    return {key: offers[key] for key in offers if key in needs} | settings_of(name) | HYPER.get(name, {}) | hyper


def specified(name: str, steps: int, **hyper: Any) -> Tree:
    """Parameters after some steps by the reference."""
    reference = importlib.import_module(f"suite.optimizers.{name}.reference")
    params, described = initial(*USED), layers(*(layer for layer in DESCRIBED if layer in USED))
    state, settings = reference.init(params), chosen(name, settings_of(name) | HYPER.get(name, {}) | hyper)
    known = {"layers": described, "samples": 100, "tables": ()}
    for step in range(steps):
        at = params
        if hasattr(reference, "forward_params"):
            at = reference.forward_params(params, state, settings, key=(0, step), **known)
        _, grads, taps = differentiated(at, step)
        looks = {
            "evaluate": lambda at, step=step: differentiated(at, step)[1],
            "tapped": lambda at, step=step: differentiated(at, step)[2],
        }
        extra = {"taps": taps, "weight": np.ones(SAMPLES), **looks}
        params, state = reference.update(params, grads, state, settings, step=step, **extra, **known)
    return params


# ----------------------------------------------------------------------------------------------------------- torch
def network(kind: str = "float64", *names: str) -> Any:
    """Make the network in torch; layers that it does not use are given no gradient."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in names or SIZES:
                outputs, inputs = SIZES[name]
                self.add_module(name, nn.Linear(inputs, outputs, dtype=getattr(torch, kind)))

        def forward(self, x: Any) -> Any:
            for name in USED:
                x = self.get_submodule(name)(x)
                x = x if name == "last" else torch.tanh(x)
            return x

    made = Network()
    made.load_state_dict({name: torch.tensor(value) for name, value in initial(*names).items()})
    return made


class Torch:
    """An optimizer alone on the network, as a user would have it."""

    def __init__(self, name: str, kind: str = "float64", *names: str, groups: Any = None, **hyper: Any):
        self.name, self.kind = name, kind
        self.model = network(kind, *names)
        make = load.load_half(f"suite.optimizers.{name}", "torch").make
        parameters = groups(self.model) if groups else self.model.named_parameters()
        described = layers(*(layer for layer in DESCRIBED if layer in (names or SIZES)))
        self.optimizer = make(parameters, **asked(name, "torch", described, **hyper))

    @property
    def params(self) -> Tree:
        from suite.optimizers._base.torch_shards import gather_whole

        parameters = {name: gather_whole(value.detach()) for name, value in self.model.named_parameters()}
        found = {name: value.double().numpy().copy() for name, value in parameters.items()}
        return {name: value for name, value in found.items() if not name.startswith("unused")}

    def closure(self, step: int) -> Callable[[], Any]:
        import torch

        from suite.engine.torch_alone import observed

        x, y = (torch.tensor(value).to(getattr(torch, self.kind)) for value in batch(step))
        sees = "observe" in load.load_member(f"suite.optimizers.{self.name}").NEEDS

        def again() -> Any:
            self.optimizer.zero_grad()
            with observed(self.model, self.optimizer) if sees else contextlib.nullcontext():
                loss = 0.5 * ((self.model(x) - y) ** 2).sum() / SAMPLES
                loss.backward()
            return loss

        return again

    def train(self, steps: range) -> Tree:
        for step in steps:
            self.optimizer.step(self.closure(step))
        return self.params


# ------------------------------------------------------------------------------------------------------------- jax
def nested(values: Tree) -> Any:
    """As a user has them: {"0": {"weight": …, "bias": …}, …}."""
    found: Any = {}
    for name, value in values.items():
        layer, _, leaf = name.partition(".")
        found.setdefault(layer, {})[leaf] = value
    return found


def loss_of(params: Any, x: Any, y: Any, tap: Any) -> Any:
    """Compute the mean loss in jax, of nested parameters."""
    import jax.numpy as jnp

    for name in USED:
        out = x @ params[name]["weight"].T + params[name]["bias"]
        out = tap(name, x, out) if name in DESCRIBED else out
        x = out if name == "last" else jnp.tanh(out)
    return 0.5 * ((x - y) ** 2).sum() / SAMPLES


class Jax:
    """An optimizer alone on the network, as a user would have it: one compiled step, whatever is due in it.

    `wrap` is given the optimizer's factory and its arguments, and returns the transformation that trains.
    """

    def __init__(self, name: str, kind: str = "float64", wrap: Any = None, **hyper: Any):
        import jax
        import jax.numpy as jnp
        import optax

        from suite.engine.jax_alone import observing, shapes_of

        self.wide, self.kind = kind == "float64", kind
        needs = load.load_member(f"suite.optimizers.{name}").NEEDS
        with jax.enable_x64(self.wide):
            self.params_ = jax.tree.map(lambda v: jnp.asarray(v, kind), nested(initial(*USED)))
            described = layers(*(layer for layer in DESCRIBED if layer in USED))
            given = asked(name, "jax", described, **hyper)
            given |= {"shapes": shapes_of(self.params_)} if "observe" in needs else {}
            make = load.load_half(f"suite.optimizers.{name}", "jax").make
            self.optimizer = made = wrap(make, given) if wrap else make(**given)
            self.state = jax.jit(made.init)(self.params_)
            look = observing(loss_of, make(**given)) if "observe" in needs else None

        def step(params: Any, state: Any, x: Any, y: Any) -> Any:
            if look is None:
                plain = functools.partial(loss_of, tap=lambda name, x, out: out)
                loss, grads = jax.value_and_grad(plain)(params, x, y)
                updates, state = made.update(grads, state, params)
            else:
                inner = state if isinstance(state, dict) else state.inner_state
                loss, grads, statistics = look(params, inner, x, y)
                again = {"evaluate": lambda at: look(at, inner, x, y)} if "program" in needs else {}
                updates, state = made.update(grads, state, params, statistics=statistics, **again)
            return optax.apply_updates(params, updates), state, loss

        self.step = jax.jit(step)

    @property
    def params(self) -> Tree:
        return {
            f"{layer}.{leaf}": np.asarray(value, np.float64)
            for layer, leaves in self.params_.items()
            for leaf, value in leaves.items()
        }

    def train(self, steps: range) -> Tree:
        import jax
        import jax.numpy as jnp

        with jax.enable_x64(self.wide):
            for step in steps:
                x, y = (jnp.asarray(value, self.kind) for value in batch(step))
                self.params_, self.state, self.loss = self.step(self.params_, self.state, x, y)
        return self.params


BACKENDS = {"torch": Torch, "jax": Jax}
