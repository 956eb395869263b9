"""Tries an optimizer of another package on small parameters, before a run makes its first step with it."""

import copy
import json
import time
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from suite.contract import UserError
from suite.engine import torch_snapshot
from suite.engine.probing import AFTER, BEFORE, FACTORS, choose_shapes, describe_error, draw_normal
from suite.engine.torch_outside import Outside, set_hyper

KINDS = {"scalars": (0,), "vectors": (1,), "filters": (3, 4, 5, 6)}

Make = Callable[[nn.Module], Outside]


class Small(nn.Module):
    """Parameters with the numbers of axes of the run's, and one of more than 4,096 values."""

    def __init__(self, axes: Collection[int], device: torch.device, kind: torch.dtype):
        super().__init__()
        for name, shape in choose_shapes(axes).items():
            layer = nn.Module()
            layer.weight = nn.Parameter(torch.from_numpy(draw_normal(name, 0, shape)).to(device, kind))
            self.add_module(name, layer)


class Trial:
    """An optimizer on a model of its own, whose loss is Σ (w - noise)² / 2.

    Args:
        make: makes the optimizer of a model's parameters.
        model: is trained.
        drawn: whether the noise is drawn in each step; it is 1 if not, which takes less time for large models.
    """

    def __init__(self, make: Make, model: nn.Module, *, drawn: bool = True):
        self.drawn, self.model, self.named = drawn, model, dict(model.named_parameters())
        self.optimizer = make(model)
        self.lr = max(float(group["lr"]) for group in self.optimizer.param_groups) or 1e-3

    def step(self, number: int, factor: float, gradients: str = "dense", *, closure: bool = False) -> None:
        """Make one step, as the engine does, with a factor of the learning rate."""

        def evaluate() -> Tensor:
            noise = {name: self._draw(name, number + 1, value) for name, value in self.named.items()}
            with torch.enable_grad():
                loss = torch.stack([(0.5 * (w - noise[name]) ** 2).sum() for name, w in self.named.items()]).sum()
            grads = torch.autograd.grad(loss, list(self.named.values()), create_graph=gradients == "differentiable")
            for value, grad in zip(self.named.values(), grads, strict=True):
                value.grad = grad.to_sparse(1) if gradients == "sparse" and grad.ndim else grad
            return loss

        for group in self.optimizer.param_groups:
            set_hyper(group, {"lr": factor * self.lr})
        evaluate()
        self.optimizer.step(key=(0, number), closure=evaluate if closure else None)

    def _draw(self, name: str, step: int, like: Tensor) -> Tensor:
        if not self.drawn:
            return like.new_ones(())
        return torch.from_numpy(draw_normal(name, step, tuple(like.shape))).to(like)

    def state(self) -> dict[str, Any]:
        """Return what a snapshot holds."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "carry": []}

    def bits(self) -> dict[str, bytes]:
        """Return the weights' bytes by name."""
        return {name: value.detach().cpu().numpy().tobytes() for name, value in self.named.items()}


class Probe:
    """Makes and tries an optimizer.

    Args:
        name: of the optimizer, for messages.
        make: makes it from named parameters, with the model.
        model: of the run.
        varies: whether the run's schedule changes the learning rate.
    """

    def __init__(self, name: str, make: Callable[..., Any], model: nn.Module, *, varies: bool):
        self.name, self._make, self.varies = name, make, varies
        values = list(model.parameters())
        self.axes, self.device, self.kind = {value.ndim for value in values}, values[0].device, values[0].dtype

    def make(self, model: nn.Module) -> Outside:
        """Return the optimizer of a model's parameters."""
        return Outside(lambda: self._make(dict(model.named_parameters()).items(), model=model), self.device)

    def run(self, model: nn.Module) -> float:
        """Try the optimizer, also on copies of a model's parameters, so that no step has to compile code.

        Returns:
            The seconds that this took, which count as compilation.

        Raises:
            UserError: a run would stop, or train otherwise than the package says; the message says why.
        """
        began = time.perf_counter()
        self.check()
        trial = Trial(self.make, copy.deepcopy(model), drawn=False)
        try:
            self._advance(trial, range(AFTER))
        except Exception as error:
            raise self._refuse(f"fails on this model's parameters, {describe_error(error)}") from error
        try:
            _, skeleton = torch_snapshot.list_arrays(trial.state(), {}, (), trial.named, replicated=True)
            json.dumps(skeleton["tree"], allow_nan=False)
        except Exception as error:
            raise self._refuse(f"its state cannot be saved, {describe_error(error)}") from error
        if name := trial.optimizer.find_ids():
            raise self._refuse(f"its attribute {name} has ids of parameters as keys, which a resumed run does not have")
        return time.perf_counter() - began

    def check(self) -> None:
        """Make some steps, save, load into a new optimizer, and compare the next steps.

        Raises:
            UserError: a run would stop, or train otherwise than the package says; the message says why.
        """
        one = self._trial(self.axes)
        start = one.bits()
        try:
            self._advance(one, range(BEFORE))
        except Exception as error:
            raise self._refuse(f"{self._find_need()}, {describe_error(error)}") from error
        if one.bits() == start:
            raise self._refuse(f"{self._find_need(start)}: {BEFORE} steps from gradients alone move nothing")
        try:
            with one.optimizer.evaluated_params():
                pass
        except Exception as error:
            raise self._refuse(f"its eval() or train() fails, {describe_error(error)}") from error
        try:
            two, middle = self._copy(one), one.bits()
        except Exception as error:
            raise self._refuse(f"its state cannot be saved and loaded, {describe_error(error)}") from error
        rest = range(BEFORE, BEFORE + AFTER)
        self._advance(one, rest)
        try:
            self._advance(two, rest)
        except Exception as error:
            raise self._refuse(f"after its state is loaded, a step fails, {describe_error(error)}") from error
        if two.bits() != one.bits():
            raise self._refuse("continues otherwise after its state is loaded: state_dict() lacks part of its state")
        if self.varies:
            other = self._trial(self.axes)
            self._advance(other, range(1))
            # in the first steps, because a schedule of the optimizer's own may have ended at 0 after them
            self._advance(other, range(1, BEFORE), 0.5)
            if other.bits() == middle:
                raise self._refuse(
                    "does not read the learning rate after its first step, so it cannot follow this schedule; "
                    "set schedule.shape=constant schedule.warmup=0"
                )

    def _trial(self, axes: Collection[int]) -> Trial:
        return Trial(self.make, Small(axes, self.device, self.kind))

    def _advance(self, trial: Trial, steps: range, factor: float = 1.0) -> None:
        for step in steps:
            trial.step(step, factor * FACTORS[step % len(FACTORS)])

    def _copy(self, trial: Trial) -> Trial:
        """Return a new trial that has loaded the other's state from the bytes of a file."""
        from safetensors.numpy import load, save

        arrays, skeleton = torch_snapshot.list_arrays(trial.state(), {}, (), trial.named, replicated=True)
        text, content = json.dumps(skeleton["tree"], allow_nan=False), save(arrays)
        new = self._trial(self.axes)
        read = {"tree": json.loads(text)}
        state, _ = torch_snapshot.read_arrays(load(content), read, new.named, self.device)  # type: ignore[arg-type]
        new.model.load_state_dict(state["model"])
        new.optimizer.load_state_dict(state["optimizer"])
        return new

    def _find_need(self, start: dict[str, bytes] | None = None) -> str:
        """Return what an optimizer needs that moves nothing from `start`, or fails, on gradients alone."""
        axes = self.axes
        trials = [
            ("needs a closure that computes the loss again", axes, "dense", True),
            ("needs gradients that can be differentiated (create_graph=True)", axes, "differentiable", False),
            ("needs sparse gradients", axes, "sparse", False),
        ]
        for kind, counts in KINDS.items():
            if axes & {*counts}:
                trials.append((f"cannot update {kind}", axes - {*counts}, "dense", False))
        for words, kept, gradients, closure in [*trials, ("can only update matrices", {2}, "dense", False)]:
            try:
                trial = self._trial(kept)
                for step in range(2):
                    trial.step(step, 1.0, gradients, closure=closure)
            except Exception:
                continue
            if start is None or trial.bits() != start:
                return words
        return "fails on small parameters"

    def _refuse(self, words: str) -> UserError:
        return UserError(f"optimizer={self.name}: {words}")
