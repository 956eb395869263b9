"""Optimizers of other packages: trained as their packages say, continued bit for bit, or refused before step 1."""

import json
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import outside_optimizers as sweep
import pytest
import torch
from engines import advance, config, engine, same, weights

from suite.contract import UserError
from suite.engine.torch_outside import seed_generators

CONSTANT = {"shape": "constant", "warmup": 0}
SOME = [  # of the table that `make outside` writes
    ("torch.optim", "Adadelta", "right"),
    ("torch.optim", "Adafactor", "right"),
    ("torch.optim", "ASGD", "right"),
    ("torch.optim", "NAdam", "right"),
    ("torch.optim", "RAdam", "right"),
    ("torch.optim", "Rprop", "constant"),
    ("torch.optim", "SparseAdam", "refused"),
    ("torch.optim", "LBFGS", "refused"),
    ("optax", "adafactor", "right"),
    ("optax", "noisy_sgd", "right"),
    ("optax", "rprop", "constant"),
    ("optax.contrib", "schedule_free_adamw", "right"),
    ("optax.contrib", "sophia", "refused"),
]


class Base(torch.optim.Optimizer):
    """Gradient descent; the subclasses have the habits of other packages."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(float(group["lr"]) * self.change(p, self.state[p]))

    def change(self, p: Any, state: dict[str, Any]) -> Any:
        return p.grad


class Draws(Base):
    def change(self, p: Any, state: dict[str, Any]) -> Any:
        return p.grad * (torch.rand(()) + np.random.rand() + random.random())


class Keeps(Base):
    """State of every kind that a checkpoint can hold."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, lr)
        self.count = 0
        self.param_groups[0] |= {"kind": torch.bfloat16, "seen": {3, 4}}

    def step(self, closure: Any = None) -> None:
        self.count += 1
        super().step()

    def change(self, p: Any, state: dict[str, Any]) -> Any:
        kind = self.param_groups[0]["kind"]
        if not state:
            state |= {"past": deque(maxlen=2), "by": {p: torch.zeros_like(p)}, (0, "a"): np.float32(1)}
            state["large"] = 1 << 70
            state["columns"] = torch.zeros(p.shape[::-1], dtype=p.dtype).permute(*range(p.ndim)[::-1])
            state["tiny"] = torch.zeros(p.shape).to(torch.float8_e4m3fn)
        state["past"].append(p.grad.to(kind))
        state["by"][p] += p.grad
        state["columns"].add_(p.grad)
        state["tiny"] = (state["tiny"].float() + p.grad.float()).to(torch.float8_e4m3fn)
        state[(0, "a")] += np.float32(0.1)
        parts = [*state["past"], state["by"][p], state["columns"], state["tiny"].to(p.dtype)]
        assert state["columns"].stride() == torch.zeros(p.shape[::-1]).permute(*range(p.ndim)[::-1]).stride()
        assert len(state["past"]) <= 2 and self.param_groups[0]["seen"] == {3, 4} and state["large"] == 1 << 70
        return sum(part.to(p.dtype) for part in parts) * float(state[(0, "a")]) / (1 + self.count)


class TwoPoints(Base):
    """Trains y and is evaluated at x = y + (z - y) / 3, in place, as schedulefree does."""

    training = False

    def step(self, closure: Any = None) -> None:
        assert self.training
        super().step()

    def change(self, p: Any, state: dict[str, Any]) -> Any:
        state.setdefault("z", p.clone()).sub_(p.grad, alpha=0.5)
        return p.grad

    @torch.no_grad()
    def eval(self) -> None:
        self.training = False
        for p, state in self.state.items():
            p.lerp_(state["z"], 1 / 3)

    @torch.no_grad()
    def train(self) -> None:
        if not self.training:
            for p, state in self.state.items():
                p.lerp_(state["z"], 1 - 1 / (1 - 1 / 3))
        self.training = True


class ByTensor(Base):
    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, lr)
        self.param_groups[0]["lr"] = torch.tensor(lr)

    def change(self, p: Any, state: dict[str, Any]) -> Any:
        assert isinstance(self.param_groups[0]["lr"], torch.Tensor)
        return p.grad


class ByName(Base):
    def __init__(self, named_parameters: Any, lr: float = 0.1):
        self.names = [name for name, _ in named_parameters]
        super().__init__([parameter for _, parameter in named_parameters], lr)


class ByModel(Base):
    def __init__(self, model: torch.nn.Module, lr: float = 0.1):
        self.shapes = [tuple(p.shape) for p in model.parameters()]
        super().__init__(model.parameters(), lr)


class NeedsClosure(Base):
    def step(self, closure: Any = None) -> None:
        if closure is not None:
            closure()
            super().step()


class NeedsGraph(Base):
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            torch.autograd.grad(p.grad.sum(), p)
        super().step()


class OnlyMatrices(Base):
    def change(self, p: Any, state: dict[str, Any]) -> Any:
        if p.ndim != 2:
            raise RuntimeError("only 2-D\nnot others")
        return p.grad


class NoVectors(Base):
    def change(self, p: Any, state: dict[str, Any]) -> Any:
        return p.grad / p.grad.shape[1]


class InBackward(Base):
    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, lr)
        for p in self.param_groups[0]["params"]:
            p.register_hook(lambda grad: grad)


class NoRate(Base):
    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, lr)
        del self.param_groups[0]["lr"]


class TakesNoRate(Base):
    def __init__(self, params: Any):
        super().__init__(params)


class Unsaved(Base):
    def change(self, p: Any, state: dict[str, Any]) -> Any:
        state["projector"] = Path
        return p.grad


class Forgets(Base):
    def change(self, p: Any, state: dict[str, Any]) -> Any:
        self.clock = getattr(self, "clock", None) or iter(range(10_000))  # no checkpoint holds an iterator
        return p.grad + next(self.clock)


class Fades(Base):
    """Its own factor of the rate is 0 from step 8 on."""

    def change(self, p: Any, state: dict[str, Any]) -> Any:
        state["step"] = state.get("step", 0) + 1
        return max(0.0, 1.0 - state["step"] / 8) * p.grad


class ReadsOnce(Base):
    def change(self, p: Any, state: dict[str, Any]) -> Any:
        return p.grad * state.setdefault("size", float(self.param_groups[0]["lr"])) / float(self.param_groups[0]["lr"])


class UnsavedOnceLarge(Base):
    """State that only a parameter of the run has, as methods that project large matrices."""

    def change(self, p: Any, state: dict[str, Any]) -> Any:
        if p.numel() == 36:  # the tiny task's filter
            state["projector"] = Path
        return p.grad


class KeepsById(Base):
    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, lr)
        self.kept: dict[int, Any] = {}

    def change(self, p: Any, state: dict[str, Any]) -> Any:
        if p.numel() == 36:
            self.kept[id(p)] = 0.9 * self.kept.get(id(p), 0 * p.grad) + p.grad
        return self.kept.get(id(p), p.grad)


class GroupRates(Base):
    """Vectors have a fifth of the rate."""

    def __init__(self, params: Any, lr: float = 0.1):
        given = [p for group in params for p in group["params"]]
        super().__init__([{"params": [p for p in given if p.ndim > 1]}], lr)
        self.add_param_group({"params": [p for p in given if p.ndim < 2], "lr": lr / 5})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return an engine with a class of this file."""

    def make(kind: type, **changes: Any) -> Any:
        monkeypatch.setattr(torch.optim, kind.__name__, kind, raising=False)
        hyper = {"torch": f"torch.optim.{kind.__name__}", "lr": 0.01}
        return engine(config("external", "torch", **{"precision": "float32", "hyper": hyper, **changes}))

    return make


@pytest.mark.parametrize("package, name, kind", SOME)
def test_some_of_the_table(package: str, name: str, kind: str) -> None:
    found = sweep.try_optimizer(package, name)
    assert found.kind == kind, found


def resume(made: Any, new: Any) -> Any:
    """Give a new engine the state of another, as text and bytes."""
    arrays, skeleton = made.snapshot()
    read = {name: np.frombuffer(value.tobytes(), value.dtype).reshape(value.shape) for name, value in arrays.items()}
    new.restore(read, json.loads(json.dumps(skeleton)))
    return new


def test_what_is_drawn_is_the_same_in_each_run_and_after_a_restart(made: Callable[..., Any]) -> None:
    whole, half, other = made(Draws), made(Draws), made(Draws, seed=1)
    advance(whole, range(6))
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    advance(half, range(3))
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # type: ignore[index]
    assert torch.equal(before[0], after[0]) and np.array_equal(before[1], after[1]) and before[2] == after[2]
    new = resume(half, made(Draws))
    advance(new, range(3, 6))
    assert same(weights(new), weights(whole))
    for key in ((0, 1), (1, 0)):  # of another step, and of another seed
        with seed_generators((0, 0), torch.device("cpu")):
            drawn = torch.rand(()), np.random.rand(), random.random()
        with seed_generators(key, torch.device("cpu")):
            assert not {*drawn} & {torch.rand(()), np.random.rand(), random.random()}
    assert not same(weights(other), weights(whole))


def test_two_ranks_draw_the_same(suite: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    source = """
import torch
class Draws(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad * torch.rand(()))
"""
    (tmp_path / "drawing_elsewhere.py").write_text(source)
    words = ["+task=resnet50", "optimizer=external", "max_steps=2", "track=none", "threads=1", "world=2", "save=none"]
    code, said = suite(*words, "optimizer.torch=drawing_elsewhere.Draws", f"optimizer.path={tmp_path}")
    assert code == 0, said


def test_state_of_every_kind_is_saved(made: Callable[..., Any]) -> None:
    whole, half = made(Keeps), made(Keeps)
    advance(whole, range(6))
    advance(half, range(3))
    new = resume(half, made(Keeps))
    advance(new, range(3, 6))
    assert same(weights(new), weights(whole)) and new.optimizer.rival.count == 6


def test_it_is_evaluated_where_it_says_and_trains_on_where_it_was(made: Callable[..., Any]) -> None:
    one, other = made(TwoPoints), made(TwoPoints)
    batches = [one.task.batch("valid", 0, 0)]
    for step in range(4):
        advance(one, range(step, step + 1))
        advance(other, range(step, step + 1))
        before = weights(one)
        [outputs] = one.evaluate(batches)
        kept = one.weights()
        assert same(weights(one), before)
    assert same(weights(one), weights(other))
    z = {name: state["z"] for name, state in zip(one.named, one.optimizer.rival.state.values(), strict=True)}
    for name, value in z.items():
        assert np.allclose(kept[name], before[name] + (value.numpy() - before[name]) / 3, atol=1e-6)
    there = made(Base)
    there.model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in kept.items()})
    [expected] = there.evaluate(batches)
    assert np.array_equal(outputs["logits"], expected["logits"])


def test_a_rate_in_a_tensor_is_filled(made: Callable[..., Any]) -> None:
    one, other = made(ByTensor), made(Base)
    advance(one, range(3), lr=0.5)
    advance(other, range(3), lr=0.5)
    assert same(weights(one), weights(other))


def test_names_and_the_model_are_passed_to_whom_they_are_asked_for(made: Callable[..., Any]) -> None:
    one = made(ByName)
    assert one.optimizer.rival.names == list(one.named)
    assert made(ByModel).optimizer.rival.shapes[0] == (4, 1, 3, 3)
    with pytest.raises(UserError, match="takes no groups, but model; leave it out"):
        made(ByModel, hyper={"torch": "torch.optim.ByModel", "matrices": "use_muon"})
    from suite.optimizers.external.torch import make

    with pytest.raises(UserError, match=r"asks for the model; pass external\(parameters, model=model\)"):
        make(torch.nn.Linear(2, 2).named_parameters(), torch="torch.optim.ByModel")


@pytest.mark.parametrize(
    "kind, said",
    [
        (NeedsClosure, "needs a closure that computes the loss again: 12 steps from gradients alone move nothing"),
        (NeedsGraph, "needs gradients that can be differentiated (create_graph=True), RuntimeError: "),
        (OnlyMatrices, "can only update matrices, RuntimeError: "),
        (NoVectors, "cannot update vectors, IndexError: "),
        (InBackward, "updates inside of the backward pass"),
        (NoRate, "its groups have no lr, so it cannot follow the run's schedule"),
        (TakesNoRate, "takes no lr, so it cannot follow the run's schedule"),
        (Unsaved, "its state cannot be saved and loaded, TypeError: run.optimizer.state.0.projector: a "),
        (Forgets, "continues otherwise after its state is loaded: state_dict() lacks part of its state"),
        (ReadsOnce, "does not read the learning rate after its first step"),
    ],
)
def test_what_would_not_train_is_refused_before_the_first_step(made: Callable[..., Any], kind: type, said: str) -> None:
    with pytest.raises(UserError) as error:
        one = made(kind)
        one.warm(one.task.batch("train", 0, 0), range(1), {})
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "kind, said",
    [(UnsavedOnceLarge, "its state cannot be saved"), (KeepsById, "its attribute kept has ids of parameters as keys")],
)
def test_state_that_only_the_runs_parameters_have_is_tried_too(made: Callable[..., Any], kind: type, said: str) -> None:
    one = made(kind)
    with pytest.raises(UserError, match=said):
        one.warm(one.task.batch("train", 0, 0), range(1), {})


def test_groups_keep_the_ratio_of_their_rates(made: Callable[..., Any]) -> None:
    def move(kind: type, factor: float) -> dict[str, Any]:
        one = made(kind)
        before = weights(one)
        one.step(0, one.task.batch("train", 0, 0), {"lr": 0.01 * factor})
        return {name: value - before[name] for name, value in weights(one).items() if "running" not in name}

    whole, fifth, found = move(Base, 0.5), move(Base, 0.1), move(GroupRates, 0.5)
    for name, value in found.items():
        assert np.allclose(value, (whole if value.ndim > 1 else fifth)[name], atol=1e-7), name


def test_state_that_grows_is_refused_in_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax.numpy as jnp
    import optax

    def lengthen(learning_rate: float) -> Any:
        def update(grads: Any, state: Any, params: Any = None) -> Any:
            return optax.tree.scale(-learning_rate, grads), jnp.append(state, 0.0)

        return optax.GradientTransformation(lambda params: jnp.zeros(1), update)

    monkeypatch.setattr(optax, "lengthening", lengthen, raising=False)
    one = engine(config("external", "jax", hyper={"jax": "optax.lengthening", "lr": 0.01}))
    with pytest.raises(UserError, match="a step changes the shapes or types of its state"):
        one.warm(one.task.batch("train", 0, 0), range(1), {"lr": 0.01})


def test_what_optax_draws_while_it_is_traced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a number is a constant of the compiled step, and another one in each run."""
    import optax

    def draw(learning_rate: float) -> Any:
        return optax.chain(optax.add_decayed_weights(float(np.random.rand())), optax.sgd(learning_rate))

    monkeypatch.setattr(optax, "drawing", draw, raising=False)
    one = engine(config("external", "jax", hyper={"jax": "optax.drawing", "lr": 0.01}))
    with pytest.raises(UserError, match="draws random numbers while it is traced"):
        one.warm(one.task.batch("train", 0, 0), range(1), {"lr": 0.01})


def test_a_schedule_of_its_own_may_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its end at step 8, no rate moves anything."""
    import optax

    def fade(learning_rate: float) -> Any:
        return optax.chain(optax.sgd(learning_rate), optax.scale_by_schedule(optax.linear_schedule(1.0, 0.0, 8)))

    monkeypatch.setattr(optax, "fading", fade, raising=False)
    one = engine(config("external", "jax", hyper={"jax": "optax.fading", "lr": 0.01}))
    one.warm(one.task.batch("train", 0, 0), range(1), {"lr": 0.01})
    advance(one, range(2))


def test_a_class_whose_rate_fades_by_itself_is_no_class_that_reads_it_once(made: Callable[..., Any]) -> None:
    one = made(Fades)
    one.warm(one.task.batch("train", 0, 0), range(1), {})


def test_parts_of_the_parameters_are_each_evaluated_where_their_method_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """y = (1 - β) z + β x, and x is evaluated (Defazio et al. 2024, arXiv:2405.15682, eq. 3)."""
    import optax

    def divide(learning_rate: float) -> Any:
        free = {"large": optax.contrib.schedule_free_adamw(learning_rate, b1=0.9)}
        free["small"] = optax.contrib.schedule_free_sgd(learning_rate, b1=0.6)
        return optax.multi_transform(
            free, lambda params: {name: "large" if value.ndim > 1 else "small" for name, value in params.items()}
        )

    monkeypatch.setattr(optax, "divided", divide, raising=False)
    one = engine(config("external", "jax", hyper={"jax": "optax.divided", "lr": 0.1}))
    one.warm(one.task.batch("train", 0, 0), range(1), {"lr": 0.1})
    advance(one, range(3))
    arrays, evaluated = one.snapshot()[0], one.weights()
    for name, y in weights(one).items():
        if "running" not in name:
            (z,) = [value for key, value in arrays.items() if key.endswith(f".z['{name}']")]
            beta = 0.9 if y.ndim > 1 else 0.6
            assert np.abs(z - y).max() > 1e-6
            assert np.allclose(evaluated[name], (y - (1 - beta) * z) / beta, atol=1e-6), name


def test_a_rate_that_is_read_once_fits_a_constant_schedule(made: Callable[..., Any]) -> None:
    advance(made(ReadsOnce, schedule=CONSTANT), range(2))


def test_a_probe_changes_no_weight(made: Callable[..., Any]) -> None:
    one = made(Keeps)
    before = weights(one)
    one.warm(one.task.batch("train", 0, 0), range(1), {})
    assert same(weights(one), before) and not one.optimizer.rival.state


@pytest.mark.parametrize("function, given", [("noisy_sgd", None), ("adam", {"mu_dtype": "bfloat16"})])
def test_keys_and_narrow_state_are_saved_in_jax(function: str, given: Any) -> None:
    chosen = config("external", "jax", precision="float32", hyper={"jax": f"optax.{function}", "arguments": given})
    whole, half = engine(chosen), engine(chosen)
    advance(whole, range(4))
    advance(half, range(2))
    new = resume(half, engine(chosen))
    advance(new, range(2, 4))
    assert same(weights(new), weights(whole))


def test_what_an_update_compiles_is_compiled_before_the_first_step(made: Callable[..., Any]) -> None:
    compiled: list[Any] = []

    def count(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    @torch.compile(backend=count, dynamic=False)
    def move(p: Any, grad: Any, rate: Any) -> None:
        p.sub_(rate * grad)

    class Compiled(Base):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                move(p, p.grad, torch.tensor(self.param_groups[0]["lr"]))

    one = made(Compiled)
    one.warm(one.task.batch("train", 0, 0), range(1), {})
    before = len(compiled)
    one.step(0, one.task.batch("train", 0, 0), {})
    assert len(compiled) == before >= 6 and one.facts()["compile_seconds"] > 0
