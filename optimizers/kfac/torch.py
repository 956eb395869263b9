"""K-FAC in torch."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from suite.contract import Layer
from suite.optimizers._base.torch import by_name, decayed
from suite.optimizers.kfac import torch_stale
from suite.optimizers.kfac.plan import KFACPlan
from suite.optimizers.kfac.torch_factors import certain, damped_inverse, ridges, usable
from suite.optimizers.kfac.torch_precondition import clipped, precondition
from suite.optimizers.kfac.torch_statistics import factors

Tree = dict[str, Tensor]


class KFAC(torch.optim.Optimizer):
    """Natural gradient with Kronecker factors; the rule stands in the package's docstring.

    Needs statistics beside the gradient: call `host`, pass what `observe` makes of a layer's taps, divided by the
    summed weight, to `absorb`, then call `program` for each of `plan.programs(step)`, then `step`.

    Args:
        parameters: `model.named_parameters()`, or groups of them with an `lr`, `momentum` and `weight_decay` each; all
            else is that of the first group.
        layers: what is preconditioned, by module name.
        world: ranks that share the factors.
        lr: learning rate.
        momentum: μ.
        momentum_on: direction: v ← μ v + d | gradient: m ← μ m + (1 - μ) g, which is then preconditioned.
        damping: λ.
        damping_split: between the two factors: pi (by their mean eigenvalues) | equal.
        factor_decay: of the factors' exponential average.
        factor_interval: steps between statistics.
        inverse_interval: steps between inversions.
        inverse_warmup: up to this step inverses are refreshed at every one.
        stale: each factor finds its own interval (SP-NGD, algorithms 1 and 2).
        stale_alpha: relative change below which a factor counts as unchanged.
        warm_start: batches whose mean statistics are the first factors.
        weight_decay: L2 term, added before preconditioning, to matrices and filters.
        fisher: empirical | sampled: labels drawn from the model, one more pass.
        batchnorm: unit | full.
        rescale: keep each weight's norm at √(2 · d_out) (SP-NGD).
        kl_clip: κ, largest squared length of a step by the Fisher matrix, lr² dᵀ F d; 0 for any.
    """

    state: dict[Any, Any]  # under the key "kfac": what belongs to no single parameter

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        *,
        layers: Mapping[str, Layer],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        world: int = 1,
        lr: float = 0.1,
        momentum: float = 0.9,
        momentum_on: str = "direction",
        damping: float = 0.1,
        damping_split: str = "pi",
        factor_decay: float = 0.95,
        factor_interval: int = 1,
        inverse_interval: int = 1,
        inverse_warmup: int = 0,
        stale: bool = False,
        stale_alpha: float = 0.1,
        warm_start: int = 0,
        weight_decay: float = 0.0,
        fisher: str = "empirical",
        batchnorm: str = "unit",
        rescale: bool = False,
        kl_clip: float = 0.0,
    ):
        values = {"lr": lr, "momentum": momentum, "damping": damping, "factor_decay": factor_decay}
        values |= {"stale_alpha": stale_alpha, "kl_clip": kl_clip}
        super().__init__(parameters, values | {"weight_decay": weight_decay, "rescale": rescale})
        self.named = by_name(self)
        self.momentum_on, self.split = momentum_on, damping_split
        self.plan = plan = KFACPlan(
            layers,
            {name: tuple(parameter.shape) for name, parameter in self.named.items()},
            world=world,
            factor_interval=factor_interval,
            inverse_interval=inverse_interval,
            inverse_warmup=inverse_warmup,
            stale=stale,
            warm_start=warm_start,
            fisher=fisher,
            batchnorm=batchnorm,
            damping_split=damping_split,
            momentum_on=momentum_on,
        )
        self.wanted = tuple(plan.factors)  # what this step refreshes
        like, members = next(iter(self.named.values())).detach(), plan.buckets.members
        factor = {key: like.new_zeros(rows, int(key), int(key)) for key, rows in plan.buckets.share.items()}
        self.state["kfac"] = {
            "owned": {"factor": factor},
            "inverse": {key: torch.eye(int(key)).to(like).repeat(len(rows), 1, 1) for key, rows in members.items()},
            "replicated": {name: like.new_zeros(shape) for name, shape in plan.replicated.items()},
            "trace": like.new_zeros(len(plan.factors)),
            "mass": like.new_zeros(len(plan.factors)),
            "kept": like.new_zeros((), dtype=torch.int64),
            "refreshed": like.new_zeros((), dtype=torch.int64),
        }
        if stale:
            torch_stale.begin(self.state["kfac"])
        for parameter in self.named.values():
            self.state[parameter]["velocity"] = torch.zeros_like(parameter)

    # ------------------------------------------------------------------------------------------- statistics
    def host(self, step: int) -> None:
        """Find out which factors are due in this step; waits for the device only after a step that refreshed some."""
        if self.plan.asks(step):
            self.plan.read(step, self.state["kfac"]["wait"].tolist())
        if self.plan.stale:
            self.wanted = self.plan.now(step)

    def drain(self) -> None:
        """Nothing is ever under way on the host."""

    def facts(self) -> dict[str, int]:
        """How many factors were refreshed; and how many statistics and inverses were unusable, so the old ones kept."""
        return {name: int(self.state["kfac"][name]) for name in ("refreshed", "kept")}

    def observe(self, taps: Mapping[tuple[str, int], tuple[Tensor, Tensor]], weight: Tensor) -> Tree:
        """Sums over samples of every factor that is due, from the taps of one backward pass; weight is (N,)."""
        calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for (name, _), pair in taps.items():
            calls.setdefault(name, []).append(pair)
        sums: Tree = {}
        for name, pairs in calls.items():
            due = [end for end in ("/in", "/out", "") if name + end in self.wanted]
            if not due:
                continue
            layer = self.plan.layers[name]
            rows, full = self.plan.shapes[layer.parameters[0]][0], name in self.plan.whole
            found = factors(layer, pairs, weight, rows, due, full=full)
            sums |= {name + end: value for end, value in found.items()}
        return sums

    def prepare(self, statistics: Tree, *, reduce: Any) -> None:
        """Begin with these statistics, averaged over ranks, as if they had always been the factors."""
        self._mix(statistics, 0.0, reduce)

    def absorb(self, statistics: Tree, *, reduce: Any) -> None:
        """Average the statistics over ranks and mix them into the factors; each rank keeps the slices it owns."""
        alike = self._mix(statistics, self.param_groups[0]["factor_decay"], reduce)
        if self.plan.stale:
            torch_stale.settle(self.plan, self.state["kfac"], self.wanted, alike, reduce)

    def _mix(self, statistics: Tree, decay: float, reduce: Any) -> Tree:
        """Take statistics into the factors; by name, whether those a rank holds are still what they were."""
        state, plan = self.state["kfac"], self.plan
        names = [name for name in plan.factors if name in statistics]
        rest = {name: statistics[name] for name in names if name in plan.replicated}
        traces = [statistics[n].trace() if n in plan.buckets.place else statistics[n].sum() for n in names]
        rest = reduce.exact(rest | {"trace": torch.stack(traces)})
        trace = rest.pop("trace")
        sound = trace.isfinite()  # |a_ij|² ≤ a_ii a_jj: where the trace is finite, all is
        clean, weight = certain(sound.all()), sound.to(trace.dtype) * (1.0 - decay)
        at = torch.tensor([plan.index[name] for name in names], device=trace.device)
        mass = state["mass"][at], state["mass"][at].lerp(torch.ones_like(trace), weight)
        state["mass"][at] = mass[1]
        state["trace"][at] = state["trace"][at].lerp(torch.where(sound, trace, 0.0), weight)
        state["refreshed"] += sound.sum()
        state["kept"] += (~sound).sum()
        alike: Tree = {}
        tiny = torch.finfo(trace.dtype).tiny

        def mix(name: str, factor: Tensor, new: Tensor, before: Tensor | None) -> None:
            number = names.index(name)
            last = factor / mass[0][number].clamp_min(tiny) if before is not None else None
            factor.lerp_(new if clean else torch.where(sound[number], new, factor), 1.0 - decay)
            if before is not None and last is not None:
                alpha = self.param_groups[0]["stale_alpha"]
                alike[name] = sound[number] & torch_stale.similar(factor / mass[1][number], last, before, alpha)

        past = state.get("before", {})
        for name, value in rest.items():
            mix(name, state["replicated"][name], value, past.get(name))
        past = state["owned"].get("before", {})
        for key, (sides, owners, _) in plan.exchanges(names).items():
            new = [statistics[side] for side in sides]
            if plan.world > 1:  # nothing is stacked where nothing is sent
                new = reduce.to_owners(f"factor/{key}", new, owners, symmetric=True)
            for side, value in zip(_mine(sides, owners, reduce), new, strict=False):  # what follows is nobody's
                row = plan.buckets.place[side][1] % plan.buckets.share[key]
                before = past[key][row] if past else None
                mix(side, state["owned"]["factor"][key][row], value, before)
        return alike

    # --------------------------------------------------------------------------------------------- inverses
    def _ridges(self) -> Tensor:
        return ridges(self.plan, self.state["kfac"], self.param_groups[0]["damping"], self.split)

    def program(self, name: str, *, reduce: Any) -> None:
        """Invert the due factors of one bucket that this rank owns, and gather every owner's inverses."""
        state, buckets = self.state["kfac"], self.plan.buckets
        (rows, owners), members = self.plan.chosen(name, self.wanted), buckets.members[name]
        share, added = buckets.share[name], self._ridges()
        factor, own = state["owned"]["factor"][name], _mine(rows, owners, reduce)
        # on a CPU one by one, so that each stays in the cache
        batches = [[row] for row in own] if factor.device.type == "cpu" else [own] if own else []
        found: list[Tensor] = []
        for batch in batches:
            at = [self.plan.index[members[row]] for row in batch]
            mass = state["mass"][at].clamp_min(torch.finfo(factor.dtype).tiny)
            scaled = factor[[row % share for row in batch]] / mass[:, None, None]
            found += damped_inverse(scaled, added[at]).unbind()
        if self.plan.world > 1:
            empty = factor.new_zeros(factor.shape[1:])
            stack = torch.stack(found + [empty] * (max(Counter(owners).values()) - len(found)))
            found = list(reduce.gather(f"inverse/{name}", stack, owners, symmetric=True))
        for row, value in zip(rows, found, strict=True):
            good, old = usable(value), state["inverse"][name][row]
            old.copy_(value if certain(good) else torch.where(good, value, old))
            state["kept"] += ~good

    # ----------------------------------------------------------------------------------------------- update
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update the parameters from their gradients."""
        named: Tree = {}
        rates: dict[str, float] = {}
        for group in self.param_groups:
            params, momentum = group["params"], group["momentum"]
            grads = decayed([parameter.grad for parameter in params], params, group["weight_decay"])
            if self.momentum_on == "gradient":
                velocity = [self.state[parameter]["velocity"] for parameter in params]
                torch._foreach_mul_(velocity, momentum)
                torch._foreach_add_(velocity, grads, alpha=1.0 - momentum)
                grads = velocity
            named |= zip(group["param_names"], grads, strict=True)
            rates |= dict.fromkeys(group["param_names"], group["lr"])
        first = self.param_groups[0]  # of what a layer's parameters share, whichever group they are in
        direction = precondition(self.plan, self.state["kfac"], named, self._ridges(), first["damping"])
        if first["kl_clip"]:
            direction |= clipped(self.plan, named, direction, rates=rates, bound=first["kl_clip"])
        for group in self.param_groups:
            params, step = group["params"], [direction[name] for name in group["param_names"]]
            if self.momentum_on == "direction":
                velocity = [self.state[parameter]["velocity"] for parameter in params]
                torch._foreach_mul_(velocity, group["momentum"])
                torch._foreach_add_(velocity, step)
                step = velocity
            torch._foreach_add_(params, step, alpha=-group["lr"])
        if first["rescale"]:
            for name in self.plan.kronecker:
                weight = self.named[self.plan.layers[name].parameters[0]]
                weight.mul_((2.0 * len(weight)) ** 0.5 / (weight.norm() + 1e-9))
        if self.plan.stale:
            self.state["kfac"]["wait"] -= 1


def _mine(rows: Sequence[Any], owners: tuple[int, ...], reduce: Any) -> list[Any]:
    """Those of some rows that this rank owns."""
    return [row for row, owner in zip(rows, owners, strict=True) if owner == reduce.rank]


make = KFAC
