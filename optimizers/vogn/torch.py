"""VOGN in torch."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.contract import Layer
from suite.optimizers._base.torch import by_name, dense, normal
from suite.optimizers.vogn.plan import VOGNPlan
from suite.optimizers.vogn.torch_squares import rows, squares

Tree = dict[str, Tensor]
Taps = Mapping[tuple[str, int], tuple[Tensor, Tensor]]


class VOGN(torch.optim.Optimizer):
    """A Gaussian over the weights; the rule stands in the package's docstring.

    Run forward and backward inside `forward_params`, pass what `observe` makes of the layers' taps, divided by the
    summed weight, to `absorb`, then call `step`.

    Args:
        parameters: `model.named_parameters()`.
        layers: the layers whose per-sample gradients are taken, by module name.
        samples: of the training split.
        lr: α.
        momentum: β₁.
        beta2: β₂, the weight of a batch's squares in s.
        prior_precision: δ, of each weight's zero-mean prior.
        damping: γ, added to s in steps and variances.
        tempering: τ, the weight of the prior's divergence in the bound.
        tempering_start: τ at the first step.
        tempering_warmup: steps until τ is `tempering`; 0: from the first on.
        augmentation: ρ, by how much data augmentation multiplies the training split.
        draws: K, passes over a batch, each at weights of its own.
        fallback_ratio: Adam's learning rate over α.
        fallback_beta1: Adam's average of the gradient.
        fallback_beta2: Adam's average of the squared gradient.
        fallback_epsilon: added to the root of Adam's second moment.
    """

    state: dict[Any, Any]  # under the key "vogn": what belongs to no single parameter

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        layers: Mapping[str, Layer],
        samples: int,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        lr: float = 1e-3,
        momentum: float = 0.9,
        beta2: float = 0.999,
        prior_precision: float = 1.0,
        damping: float = 0.0,
        tempering: float = 1.0,
        tempering_start: float = 1.0,
        tempering_warmup: int = 0,
        augmentation: float = 1.0,
        draws: int = 1,
        fallback_ratio: float = 1.0,
        fallback_beta1: float = 0.9,
        fallback_beta2: float = 0.999,
        fallback_epsilon: float = 1e-8,
    ):
        values = {"lr": lr, "momentum": momentum, "beta2": beta2, "prior_precision": prior_precision}
        values |= {"damping": damping, "tempering": tempering, "tempering_start": tempering_start}
        values |= {"tempering_warmup": tempering_warmup, "augmentation": augmentation, "draws": draws}
        values |= {"fallback_ratio": fallback_ratio, "fallback_beta1": fallback_beta1}
        super().__init__(parameters, values | {"fallback_beta2": fallback_beta2, "fallback_epsilon": fallback_epsilon})
        self.samples, self.squared = samples, {}  # the squares that `absorb` was given for the next step
        self.named = by_name(self)
        self.plan = VOGNPlan(
            layers,
            {name: tuple(parameter.shape) for name, parameter in self.named.items()},
            beta2=beta2,
            prior_precision=prior_precision,
            damping=damping,
            tempering=tempering,
            tempering_start=tempering_start,
        )
        like = next(iter(self.named.values()))
        self.state["vogn"] = {"kept": torch.zeros((), dtype=torch.int64, device=like.device)}
        for name, parameter in self.named.items():
            for state in ("first", "second") if name in self.plan.rest else ("momentum", "curvature"):
                self.state[parameter][state] = torch.zeros_like(parameter)

    def facts(self) -> dict[str, float]:
        """How many elements of s stayed as they were, their new square not being finite, for the result."""
        return {"kept": int(self.state["vogn"]["kept"])}

    def _constants(self, group: dict[str, Any], step: int) -> tuple[float, float, float]:
        """N, τ and δ̃."""
        n, tau, start = group["augmentation"] * self.samples, group["tempering"], group["tempering_start"]
        if group["tempering_warmup"]:
            tau = start + (tau - start) * min(1.0, step / group["tempering_warmup"])
        return n, tau, tau * group["prior_precision"] / n

    def _of(self, group: dict[str, Any], names: Iterable[str]) -> Tree:
        chosen = set(names)
        return {n: p for n, p in zip(group["param_names"], group["params"], strict=True) if n in chosen}

    @contextlib.contextmanager
    def forward_params(self, key: tuple[int, int], draw: int = 0) -> Iterator[None]:
        """Weights drawn for (seed, step); the first step keeps the mean, as nothing is known of its variance."""
        if key[1] == 0:
            yield
            return
        kept = [(parameter, parameter.detach().clone()) for parameter in map(self.named.__getitem__, self.plan.drawn)]
        with torch.no_grad():
            for group in self.param_groups:
                n, _, delta = self._constants(group, key[1])
                for name, parameter in self._of(group, self.plan.drawn).items():
                    precision = (self.state[parameter]["curvature"] + (delta + group["damping"])) * n
                    parameter.addcmul_(normal(key, f"{name}/{draw}", parameter), precision.rsqrt())
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_([parameter for parameter, _ in kept], [value for _, value in kept])

    def observe(self, taps: Taps, weight: Tensor) -> Tree:
        """Sums over samples of squared gradients, by parameter, from the taps of one backward pass; weight is (N,)."""
        inverse_root = torch.where(weight > 0, weight.rsqrt(), 0.0)  # dy holds the weight once; its square needs √w
        calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for name, call in sorted(taps):
            x, dy = taps[name, call]
            dy = dy.to(weight.dtype) * inverse_root.view(-1, *[1] * (dy.ndim - 1))
            calls.setdefault(name, []).append(rows(self.plan.layers[name], x, dy))
        sums: Tree = {}
        for name, found in calls.items():
            layer = self.plan.layers[name]
            x, dy = found[0] if len(found) == 1 else (torch.cat([pair[i] for pair in found], 1) for i in (0, 1))
            shape = self.named[layer.parameters[0]].shape
            sums.update(zip(layer.parameters, squares(layer, x, dy, shape), strict=False))
        return sums

    def absorb(self, statistics: Tree, *, reduce: Any) -> None:
        """Keep the mean over ranks of the first draw's squares for `step`."""
        self.squared = reduce.exact(statistics)

    @torch.no_grad()
    def step(
        self,
        closure: Any = None,
        *,
        key: tuple[int, int],
        evaluate: Callable[..., Any] | None = None,
        reduce: Any = None,
    ) -> None:
        """Update the parameters from their gradients and what `absorb` was given; `key` is (seed, step)."""
        squared, step = self.squared, key[1]
        if (draws := self.param_groups[0]["draws"]) > 1:
            squared = self._further(draws, key, evaluate, reduce)
        for group in self.param_groups:
            covered = self._of(group, self.plan.covered)
            if covered:
                self._vogn(covered, squared, group, step)
            rest = list(self._of(group, self.plan.rest).values())
            if rest:
                self._adam(rest, group, step)

    def _further(self, draws: int, key: tuple[int, int], evaluate: Any, reduce: Any) -> Tree:
        """The mean squares over all draws; gradients become means too."""
        squared = dict(self.squared)
        for draw in range(1, draws):
            with self.forward_params(key, draw):
                _, grads, statistics = evaluate()
            for name, grad in reduce.mean(f"gradients/{draw}", grads).items():
                self.named[name].grad = self.named[name].grad + grad
            statistics = reduce.exact(statistics)
            squared = {name: value + statistics[name] for name, value in squared.items()}
        for parameter in self.named.values():
            parameter.grad = parameter.grad / draws if parameter.grad is not None else None
        return {name: value / draws for name, value in squared.items()}

    def _vogn(self, named: Tree, squared: Tree, group: dict[str, Any], step: int) -> None:
        _, tau, delta = self._constants(group, step)
        params = list(named.values())
        grads = dict(zip(named, dense(params), strict=True))
        grads |= {name: torch.add(grads[name], p, alpha=delta) for name, p in self._of(group, self.plan.drawn).items()}
        momentum = [self.state[parameter]["momentum"] for parameter in params]
        torch._foreach_mul_(momentum, group["momentum"])
        torch._foreach_add_(momentum, list(grads.values()))
        curvature = [self.state[parameter]["curvature"] for parameter in params]
        keep, gain = (1.0 - tau * group["beta2"], group["beta2"]) if step else (0.0, 1.0)
        for name, s in zip(named, curvature, strict=True):
            sound = squared[name].isfinite()
            s.copy_(torch.where(sound, keep * s + gain * squared[name], s))
            self.state["vogn"]["kept"] += (~sound).sum()
        scale = torch._foreach_add(curvature, delta + group["damping"])
        torch._foreach_addcdiv_(params, momentum, scale, -group["lr"])

    def _adam(self, params: list[Tensor], group: dict[str, Any], step: int) -> None:
        """Adam's step for what no layer describes."""
        grads = dense(params)
        first = [self.state[parameter]["first"] for parameter in params]
        second = [self.state[parameter]["second"] for parameter in params]
        beta1, beta2 = group["fallback_beta1"], group["fallback_beta2"]
        torch._foreach_lerp_(first, grads, 1.0 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1.0 - beta2)
        scale = torch._foreach_sqrt(second)
        torch._foreach_div_(scale, (1.0 - beta2 ** (step + 1)) ** 0.5)
        torch._foreach_add_(scale, group["fallback_epsilon"])
        rate = group["fallback_ratio"] * group["lr"] / (1.0 - beta1 ** (step + 1))
        torch._foreach_addcdiv_(params, first, scale, -rate)


make = VOGN
