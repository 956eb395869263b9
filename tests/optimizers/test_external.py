"""Optimizers from elsewhere by their dotted path: the same numbers as their own, errors that say what to type."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import advance, config, engine, gap, weights

from suite.contract import UserError
from suite.settings import configure

STEPS = 6
RIVALS = [  # torch, its arguments, optax, its arguments, the suite's own and its settings
    (
        "torch.optim.SGD",
        {"momentum": 0.9},
        "optax.sgd",
        {"momentum": 0.9},
        "sgd",
        {"momentum": 0.9, "weight_decay": 0.0},
    ),
    ("torch.optim.RMSprop", {"alpha": 0.9}, "optax.rmsprop", {"eps_in_sqrt": False}, "rmsprop", {"epsilon": 1e-8}),
    ("torch.optim.Adam", {}, "optax.adam", {}, "adamw", {"weight_decay": 0.0}),
]
REMEMBERING = {"torch": {"torch": "torch.optim.Adam"}, "jax": {"jax": "optax.adam"}}
NEWOPT = """
import torch

class Signed(torch.optim.Optimizer):
    def __init__(self, params, lr, scale=1.0):
        super().__init__(params, {"lr": lr, "scale": scale})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * group["scale"] * p.grad.sign())
"""


def run(backend: str, **hyper: Any) -> Any:
    made = engine(config("external", backend, hyper=hyper))
    advance(made, range(STEPS))
    return made


@pytest.mark.parametrize("kind, given, function, others, own, settings", RIVALS)
def test_a_rival_equals_the_suites_own(
    kind: str, given: Any, function: str, others: Any, own: str, settings: Any
) -> None:
    ours = engine(config(own, "torch", hyper={"lr": 0.01, **settings}))
    advance(ours, range(STEPS))
    in_torch = run("torch", torch=kind, arguments=given, lr=0.01)
    in_jax = run("jax", jax=function, arguments=others, lr=0.01)
    assert gap(weights(in_torch), weights(ours)) < 1e-9
    assert gap(weights(in_jax), weights(ours)) < 1e-9


@pytest.mark.parametrize("backend", REMEMBERING)
def test_a_rivals_state_is_restored(backend: str) -> None:
    whole = run(backend, **REMEMBERING[backend], lr=0.01)
    made = engine(config("external", backend, hyper={**REMEMBERING[backend], "lr": 0.01}))
    advance(made, range(3))
    arrays, skeleton = made.snapshot()
    again = engine(config("external", backend, hyper={**REMEMBERING[backend], "lr": 0.01}))
    again.restore({name: array.copy() for name, array in arrays.items()}, skeleton)
    advance(again, range(3, STEPS))
    assert gap(weights(again), weights(whole)) == 0.0


@pytest.mark.parametrize("backend", REMEMBERING)
def test_the_schedule_sets_every_groups_rate(backend: str) -> None:
    """An edited rate equals a rival made with that rate: nothing of the first one is left behind."""
    made = engine(config("external", backend, hyper={**REMEMBERING[backend], "lr": 0.5}))
    advance(made, range(STEPS), lr=0.01)
    assert gap(weights(made), weights(run(backend, **REMEMBERING[backend], lr=0.01))) == 0.0


def test_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    (tmp_path / "newopt_elsewhere.py").write_text(NEWOPT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    settings = {"torch": "newopt_elsewhere.Signed", "path": str(tmp_path), "arguments": {"scale": 2.0}}
    made = engine(config("external", "torch", hyper={**settings, "lr": 0.01}))
    before = weights(made)
    advance(made, range(1))
    after = weights(made)
    moved = np.abs(after["fc.weight"] - before["fc.weight"])
    assert np.allclose(moved, 0.02, atol=1e-12)


@pytest.mark.parametrize(
    "backend, settings, said",
    [
        ("torch", {"torch": "torch.optim.Nothing"}, "torch.optim has no Nothing"),
        ("torch", {"torch": "notinstalled.Shampoo"}, "pip install notinstalled, or optimizer.path=DIR"),
        ("torch", {"jax": "optax.adam"}, "not read with backend=torch; set optimizer.torch=DOTTED.PATH"),
        ("jax", {"torch": "torch.optim.NAdam"}, "not read with backend=jax; set optimizer.jax=DOTTED.PATH"),
        ("torch", {"torch": "SGD"}, "write module and name"),
        ("torch", {"torch": "torch.nn.Linear"}, "is no class of torch.optim.Optimizer"),
        ("torch", {"torch": "torch.optim.LBFGS"}, "asks for a closure"),
        ("torch", {"torch": "torch.optim.Adam", "arguments": {"beta": 1}}, "unexpected keyword argument 'beta'"),
        ("torch", {"torch": "torch.optim.Muon"}, "see optimizer.arguments"),
        ("torch", {"path": "/no/such/folder"}, "no such folder"),
        ("jax", {"jax": "optax.nothing"}, "optax has no nothing"),
        ("jax", {"jax": "optax.scale_by_adam"}, "takes no learning_rate"),
        ("jax", {"jax": "optax.adam", "arguments": {"beta": 1}}, "unexpected keyword argument 'beta'"),
        ("jax", {"jax": "optax.lbfgs"}, "asks for more than the gradient"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(backend: str, settings: Any, said: str) -> None:
    with pytest.raises(UserError) as error:
        engine(config("external", backend, hyper=settings))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_function_that_returns_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import optax

    monkeypatch.setattr(optax, "rate", lambda learning_rate: learning_rate, raising=False)
    with pytest.raises(UserError, match=r"returns no optax\.GradientTransformation"):
        engine(config("external", "jax", hyper={"jax": "optax.rate"}))


def test_on_the_board_it_stands_under_its_path() -> None:
    chosen = ["task=resnet50", "optimizer=external", "optimizer.torch=torch.optim.Adam", "optimizer.jax=optax.adam"]
    assert configure.resolve(chosen).optimizer.name == "torch.optim.Adam"
    assert configure.resolve([*chosen, "backend=jax"]).optimizer.name == "optax.adam"
    given = configure.resolve([*chosen, "optimizer.arguments={amsgrad: true}"]).optimizer
    assert given.plain()["arguments"] == {"amsgrad": True}


def test_a_command(suite: Callable[..., tuple[int, str]]) -> None:
    words = ["+task=resnet50", "optimizer=external", "max_steps=2", "track=none", "threads=1", "checkpoint_every=1"]
    code, said = suite(*words, "optimizer.torch=torch.optim.NAdam", "optimizer.arguments={momentum_decay: 0.01}")
    assert code == 0 and "torch.optim.NAdam · torch" in said, said
    code, said = suite(*words, "optimizer.torch=notinstalled.NAdam")
    assert code == 2 and said.count("suite: ") == 1, said


def test_matrices_and_vectors_in_groups_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    marked = NEWOPT.replace("for group in self.param_groups:", "for group in self.param_groups[:1]:")
    (tmp_path / "marked_elsewhere.py").write_text(marked)
    monkeypatch.setattr(sys, "path", list(sys.path))
    settings = {"torch": "marked_elsewhere.Signed", "path": str(tmp_path), "matrices": "large"}
    made = engine(config("external", "torch", hyper=settings))
    assert [group["large"] for group in made.optimizer.param_groups] == [True, False]
    before = weights(made)
    advance(made, range(2))
    moved = {name for name, value in weights(made).items() if not np.array_equal(value, before[name])}
    assert {name for name in moved if "running" not in name} == {n for n, v in before.items() if v.ndim > 1}


@pytest.mark.parametrize("name", ["SOAP", "AdaBelief", "Lion", "Muon"])
def test_pytorch_optimizer(name: str) -> None:
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer", reason="pip install -e '.[rivals]'")
    settings = {"torch": f"pytorch_optimizer.{name}", "matrices": "use_muon" if name == "Muon" else None}
    made = engine(config("external", "torch", precision="float32", hyper=settings))
    assert type(made.optimizer.rival) is getattr(pytorch_optimizer, name)
    losses = advance(made, range(40), lr=0.01)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_distributed_shampoo() -> None:
    """facebookresearch/optimizers is on no index: put its folder on PYTHONPATH, or give optimizer.path."""
    pytest.importorskip("distributed_shampoo", reason="a checkout of facebookresearch/optimizers on PYTHONPATH")
    hyper = {"torch": "distributed_shampoo.DistributedShampoo", "arguments": {"max_preconditioner_dim": 128}}
    made = engine(config("external", "torch", precision="float32", hyper=hyper))
    losses = advance(made, range(40), lr=0.01)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_optax_contrib() -> None:
    losses = advance(engine(config("external", "jax", hyper={"jax": "optax.contrib.muon", "lr": 0.02})), range(40))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
