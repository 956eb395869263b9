"""VOGN in torch."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.contract import Layer, Reduce, UserError
from suite.declared import describe_settings, take_settings
from suite.optimizers._base import ALONE
from suite.optimizers._base.torch import (
    by_updates,
    densify_gradients,
    edit_weights,
    make_zero_state,
    turn_weights,
    widen_floats,
)
from suite.optimizers._base.torch_observing import Observing
from suite.optimizers._base.torch_shards import gather_whole, view_local
from suite.optimizers.vogn import Settings
from suite.optimizers.vogn.plan import VOGNPlan, check, check_samples
from suite.optimizers.vogn.torch_flat import draw_normal, group_tensors, join_tensors, split_vector
from suite.optimizers.vogn.torch_squares import sum_squared_gradients, unfold_tap

Tree = dict[str, Tensor]
Taps = Mapping[tuple[str, int], tuple[Tensor, Tensor]]


@describe_settings(Settings)
class VOGN(Observing[Settings]):
    """A Gaussian over the weights; the package's docstring describes the rule.

    Run forward and backward inside `suite.engine.torch_alone.observed`, which draws the weights, then call `step`. The
    suite's engine runs them inside `forward_params` instead, passes what `observe` makes of the layers' taps, divided
    by the summed weight, to `absorb`, and gives `key`, `evaluate` and `reduce` to `step`.

    Args:
        parameters: `model.named_parameters()`, or groups of them; `draws` must be the same in all groups.
        layers: the layers whose per-sample gradients are taken, by module name.
        samples: of the training split.
        shapes: not read.
        lr: learning rate.
        settings: by name, as listed below.

    Raises:
        UserError: for a setting that is unknown, out of range, or does not go with another; for parameters without
            names.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float | None = None,
        *,
        layers: Mapping[str, Layer],
        samples: int,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        **settings: Any,
    ):
        chosen = take_settings(Settings, lr, settings)
        check(chosen)
        check_samples(samples)
        super().__init__(parameters, chosen, ["draws"])
        self.samples = samples
        self.squared: Tree = {}  # the squares that `absorb` was given for the next step
        self.named = self.name_layers(layers)
        self._shared("draws")
        self.plan = VOGNPlan(layers, {name: tuple(parameter.shape) for name, parameter in self.named.items()})
        like = next(iter(self.named.values()))
        self.state["vogn"] = {"kept": torch.zeros((), dtype=torch.int64, device=like.device), "steps": 0}
        for name, parameter in self.named.items():
            for state in ("first", "second") if name in self.plan.rest else ("momentum", "curvature"):
                self.state[parameter][state] = make_zero_state(parameter, whole=True)

    def _begin(self, group: dict[str, Any]) -> None:
        if "vogn" in self.state:
            self._closed()

    def forward_weights(self) -> contextlib.AbstractContextManager[None]:
        """Return the weights that the next step draws, for the model's forward pass."""
        return self.forward_params((0, self.state["vogn"]["steps"]))

    def facts(self) -> dict[str, float]:
        """Number of elements of s that stayed as they were because their new square was not finite."""
        return {"kept": int(self.state["vogn"]["kept"])}

    def _constants(self, group: dict[str, Any], step: int) -> tuple[float, float, float]:
        """N, τ and δ̃."""
        n, tau, start = group["augmentation"] * self.samples, group["tempering"], group["tempering_start"]
        if group["tempering_warmup"]:
            tau = start + (tau - start) * min(1.0, step / group["tempering_warmup"])
        return n, tau, tau * group["prior_precision"] / n

    def _parameters(self, group: dict[str, Any], names: Iterable[str]) -> Tree:
        """A group's parameters that have one of these names."""
        chosen = set(names)
        return {n: p for n, p in zip(group["param_names"], group["params"], strict=True) if n in chosen}

    @contextlib.contextmanager
    def forward_params(self, key: tuple[int, int], draw: int = 0) -> Iterator[None]:
        """Weights drawn for `key`, (seed, step), inside the context; `draw` is the number of the pass over the batch.

        The first step keeps the mean, because the variance is not known before it.
        """
        if key[1] == 0:
            yield
            return
        params = [self.named[name] for name in self.plan.drawn]
        means = [view_local(parameter).clone() for parameter in params]
        with torch.no_grad():
            for group in self.param_groups:
                n, _, delta = self._constants(group, key[1])
                for named in group_tensors(self._parameters(group, self.plan.drawn)):
                    weights = list(named.values())
                    curvature = [self.state[parameter]["curvature"] for parameter in weights]
                    precision = torch._foreach_add(curvature, delta + group["damping"])
                    torch._foreach_mul_(precision, n)
                    noise = draw_normal(key, [f"{name}/{draw}" for name in named], precision)
                    torch._foreach_rsqrt_(precision)
                    with edit_weights(weights, whole=True) as values:
                        torch._foreach_addcmul_(values, noise, precision)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_([view_local(parameter) for parameter in params], means)

    def observe(self, taps: Taps, weight: Tensor) -> Tree:
        """Sums over samples of squared gradients, by parameter, from the taps of one backward pass; weight is (N,)."""
        inverse_root = torch.where(weight > 0, weight.rsqrt(), 0.0)  # dy holds the weight once; its square needs √w
        calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for name, call in sorted(taps):
            x, dy = taps[name, call]
            dy = dy.to(weight.dtype) * inverse_root.view(-1, *[1] * (dy.ndim - 1))
            calls.setdefault(name, []).append(unfold_tap(self.plan.layers[name], widen_floats(x), dy))
        sums: Tree = {}
        for name, pairs in calls.items():
            layer = self.plan.layers[name]
            x, dy = pairs[0] if len(pairs) == 1 else (torch.cat([pair[i] for pair in pairs], 1) for i in (0, 1))
            shape = self.named[layer.parameters[0]].shape
            squared = sum_squared_gradients(layer, x, dy, shape[::-1] if layer.transposed else shape)
            sums.update(zip(layer.parameters, squared, strict=False))  # a layer may have no bias
        return turn_weights(self.plan.layers, sums)

    def absorb(self, statistics: Tree, *, reduce: Reduce[Tensor]) -> None:
        """Keep the mean over ranks of the first draw's squares for `step`."""
        self.squared = reduce.exact(statistics)

    def _update(
        self,
        *,
        key: tuple[int, int] | None = None,
        evaluate: Callable[..., Any] | None = None,
        reduce: Reduce[Tensor] | None = None,
    ) -> None:
        """Update the parameters from their gradients and what `absorb` was given; `key` is (seed, step)."""
        self._shared("draws")
        if key is None:
            key = self._alone()
        squared, step = self.squared, key[1]
        if (draws := self.param_groups[0]["draws"]) > 1:
            assert reduce is not None  # without an engine, several draws are rejected
            squared = self._all_draws(draws, key, evaluate, reduce)
        for group in self.param_groups:
            covered = {n: p for n, p in self._parameters(group, self.plan.covered).items() if p.grad is not None}
            if covered:
                self._vogn(covered, squared, group, step)
            rest = list(self._parameters(group, self.plan.rest).values())
            for params, updates in by_updates(self, rest, step + 1):
                self._adam(params, group, updates)
        self.state["vogn"]["steps"] += 1

    def _alone(self) -> tuple[int, int]:
        """Do what an engine would have done before the update; returns (0, step).

        Raises:
            UserError: for several draws or missing statistics.
        """
        if (draws := self.param_groups[0]["draws"]) > 1:
            raise UserError(
                f"VOGN(draws={draws}): needs further passes over the data, which only the suite's engine makes; leave "
                "it out"
            )
        self.absorb(self.seen(), reduce=ALONE)
        return 0, self.state["vogn"]["steps"]

    def _all_draws(self, draws: int, key: tuple[int, int], evaluate: Any, reduce: Reduce[Tensor]) -> Tree:
        """Return the mean squares over all draws; the parameters' gradients become means over them, too."""
        squared = dict(self.squared)
        for draw in range(1, draws):
            with self.forward_params(key, draw):
                _, grads, statistics = evaluate()
            for name, grad in reduce.mean(f"gradients/{draw}", grads, gradients=True).items():
                first = self.named[name].grad
                self.named[name].grad = grad if first is None else first + grad
            statistics = reduce.exact(statistics)
            squared = {name: value + statistics[name] for name, value in squared.items()}
        for parameter in self.named.values():
            parameter.grad = parameter.grad / draws if parameter.grad is not None else None
        return {name: value / draws for name, value in squared.items()}

    def _vogn(self, named: Tree, squared: Tree, group: dict[str, Any], step: int) -> None:
        """Update parameters that a layer describes, from their gradients and these squares."""
        _, tau, delta = self._constants(group, step)
        params = list(named.values())
        grads = dict(zip(named, densify_gradients(params, whole=True), strict=True))
        drawn = set(self.plan.drawn).intersection(named)
        decayed = [name for name in named if name in drawn]
        if decayed:
            weights = [gather_whole(named[name]) for name in decayed]
            sums = torch._foreach_add([grads[name] for name in decayed], weights, alpha=delta)
            grads |= dict(zip(decayed, sums, strict=True))
        momentum = [self.state[parameter]["momentum"] for parameter in params]
        torch._foreach_mul_(momentum, group["momentum"])
        torch._foreach_add_(momentum, list(grads.values()))
        curvature = [self.state[parameter]["curvature"] for parameter in params]
        keep, gain = (1.0 - tau * group["beta2"], group["beta2"]) if step else (0.0, 1.0)
        known = {name: s for name, s in zip(named, curvature, strict=True) if name in squared}
        for group_of_s in group_tensors(known):
            held = list(group_of_s.values())
            old, new = join_tensors(held), join_tensors([squared[name] for name in group_of_s])
            finite = new.isfinite()
            torch._foreach_copy_(held, split_vector(torch.where(finite, keep * old + gain * new, old), held))
            self.state["vogn"]["kept"] += (~finite).sum()
        scale = torch._foreach_add(curvature, delta + group["damping"])
        with edit_weights(params, whole=True) as values:
            torch._foreach_addcdiv_(values, momentum, scale, -group["lr"])

    def _adam(self, params: list[Tensor], group: dict[str, Any], steps: int) -> None:
        """Update parameters that no layer describes by Adam; `steps` counts their updates, this one included."""
        grads = densify_gradients(params, whole=True)
        first = [self.state[parameter]["first"] for parameter in params]
        second = [self.state[parameter]["second"] for parameter in params]
        beta1, beta2 = group["fallback_beta1"], group["fallback_beta2"]
        torch._foreach_lerp_(first, grads, 1.0 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1.0 - beta2)
        scale = torch._foreach_sqrt(second)
        torch._foreach_div_(scale, (1.0 - beta2**steps) ** 0.5)
        torch._foreach_add_(scale, group["fallback_epsilon"])
        rate = group["fallback_ratio"] * group["lr"] / (1.0 - beta1**steps)
        with edit_weights(params, whole=True) as values:
            torch._foreach_addcdiv_(values, first, scale, -rate)


make = VOGN
