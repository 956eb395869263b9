"""K-FAC in torch."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from suite.contract import Layer, Reduce, UserError
from suite.declared import describe_settings, take_settings
from suite.optimizers._base import ALONE
from suite.optimizers._base.torch import (
    add_weight_decay,
    by_updates,
    densify_gradients,
    edit_weights,
    make_zero_state,
    one_rank,
    place_numbers,
    select_with_gradient,
    turn_weights,
    widen_type,
)
from suite.optimizers._base.torch_observing import Observing
from suite.optimizers._linalg.torch import compute_norms, multiply_values
from suite.optimizers._rules.torch import step_by_adamw
from suite.optimizers.kfac import Settings, torch_stale
from suite.optimizers.kfac.plan import KFACPlan
from suite.optimizers.kfac.torch_averages import mix_statistics, select_owned_rows
from suite.optimizers.kfac.torch_factors import compute_ridges, damped_inverse, is_known_true, is_usable
from suite.optimizers.kfac.torch_precondition import clip_direction, precondition_gradients
from suite.optimizers.kfac.torch_quadratic import Products, adapt_damping, fit_step
from suite.optimizers.kfac.torch_statistics import sum_factors

Tree = dict[str, Tensor]
SHARED = ("damping", "factor_decay", "stale_alpha", "kl_clip", "rescale")  # settings of all groups together


@describe_settings(Settings)
class KFAC(Observing[Settings]):
    """Natural gradient with Kronecker factors; the package's docstring describes the rule.

    Needs statistics beside the gradient: run forward and backward inside `suite.engine.torch_alone.observed`, then
    call `step`. The suite's engine shares the factors among ranks instead: it calls `host`, passes what `observe` makes
    of a layer's taps, divided by the summed weight, to `absorb`, then calls `program` for each of
    `plan.programs(step)`, and gives `reduce` to `step`.

    Args:
        parameters: `model.named_parameters()`, or groups of them with an `lr`, `momentum` and `weight_decay` each; all
            else must be the same in all groups.
        layers: what is preconditioned, by module name.
        shapes: not read.
        world: ranks that share the factors; more than one requires the suite's engine.
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
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        world: int = 1,
        **settings: Any,
    ):
        super().__init__(parameters, take_settings(Settings, lr, settings), ["rescale"])
        self.named = self.name_layers(layers)
        self._shared(*SHARED)
        shapes = {name: tuple(parameter.shape) for name, parameter in self.named.items()}
        self.plan = KFACPlan(layers, shapes, self.settings, world=world)
        self.wanted = tuple(self.plan.factors)  # what this step refreshes
        self.rest = {self.named[name] for name in self.plan.rest}
        for parameter in self.named.values():
            for average in ("first", "second") if parameter in self.rest else ("velocity",):
                self.state[parameter][average] = make_zero_state(parameter, whole=average == "velocity")
        self.state["kfac"] = self._initial()

    def _initial(self) -> dict[str, Any]:
        """Factors of zero, inverses of one. What is below `owned` is split by rank, a slice each."""
        buckets, count = self.plan.buckets, len(self.plan.factors)
        first = next(iter(self.named.values())).detach()
        like = torch.empty(0, dtype=widen_type(first.dtype), device=first.device)
        members = buckets.members
        factor = {key: like.new_zeros(rows, int(key), int(key)) for key, rows in buckets.share.items()}
        state = {
            "owned": {"factor": factor},
            "inverse": {key: torch.eye(int(key)).to(like).repeat(len(rows), 1, 1) for key, rows in members.items()},
            "replicated": {name: like.new_zeros(shape) for name, shape in self.plan.replicated.items()},
            "trace": like.new_zeros(count),
            "mass": like.new_zeros(count),
            "kept": like.new_zeros((), dtype=torch.int64),
            "refreshed": like.new_zeros((), dtype=torch.int64),
            "steps": 0,
        }
        if self.settings.quadratic_model:
            state["damping"] = like.new_full((), self.settings.damping)
        if self.settings.stale:
            torch_stale.add_intervals(state)
        return state

    def _begin(self, group: dict[str, Any]) -> None:
        if "kfac" in self.state:
            self._closed()

    # ------------------------------------------------------------------------------------------- statistics
    def host(self, step: int) -> None:
        """Read which factors are due in this step; waits for the device only after a step that refreshed some."""
        if self.plan.asks(step):
            self.plan.read(step, self.state["kfac"]["wait"].tolist())
        if self.settings.stale:
            self.wanted = self.plan.now(step)

    def due(self) -> bool:
        """Return whether the next step wants statistics."""
        self.host(self.state["kfac"]["steps"])
        return bool(self.plan.phase(self.state["kfac"]["steps"]))

    def drain(self) -> None:
        """Do nothing: no work is pending on the host."""

    def facts(self) -> dict[str, float]:
        """Number of refreshed factors, and of unusable statistics and inverses, where the old ones stayed; and λ."""
        state = self.state["kfac"]
        counts = {name: int(state[name]) for name in ("refreshed", "kept")}
        return counts | ({"damping": float(f"{float(state['damping']):.6g}")} if "damping" in state else {})

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
            added = sum_factors(layer, pairs, weight, rows, due, full=full)
            sums |= {name + end: value for end, value in added.items()}
        return sums

    def prepare(self, statistics: Tree, *, reduce: Reduce[Tensor]) -> None:
        """Begin with these statistics, averaged over ranks, as the factors."""
        self._mix(statistics, 0.0, reduce)

    def absorb(self, statistics: Tree, *, reduce: Reduce[Tensor]) -> None:
        """Average the statistics over ranks and mix them into the factors; each rank keeps the slices it owns."""
        similar = self._mix(statistics, self.param_groups[0]["factor_decay"], reduce)
        names = tuple(name for name in self.wanted if name in statistics)  # not of layers that were not used
        if self.settings.stale and names:
            torch_stale.update_intervals(self.plan, self.state["kfac"], names, similar, reduce)

    def _mix(self, statistics: Tree, decay: float, reduce: Reduce[Tensor]) -> Tree:
        """Take statistics into the factors; see `torch_averages.mix_statistics`."""
        alpha = self.param_groups[0]["stale_alpha"]
        return mix_statistics(self.plan, self.state["kfac"], statistics, decay=decay, alpha=alpha, reduce=reduce)

    # --------------------------------------------------------------------------------------------- inverses
    def _damping(self) -> float | Tensor:
        return self.state["kfac"].get("damping", self.param_groups[0]["damping"])

    def _ridges(self) -> Tensor:
        return compute_ridges(self.plan, self.state["kfac"], self._damping())

    def program(self, name: str, *, reduce: Reduce[Tensor]) -> None:
        """Invert the due factors of one bucket that this rank owns, and gather every owner's inverses."""
        state = self.state["kfac"]
        rows, owners = self.plan.chosen(name, self.wanted)
        inverses = self._inverses(name, select_owned_rows(rows, owners, reduce))
        if self.plan.world > 1:
            padding = [torch.zeros_like(state["inverse"][name][0])]
            stack = torch.stack(inverses + padding * (max(Counter(owners).values()) - len(inverses)))
            inverses = list(reduce.gather(f"inverse/{name}", stack, owners, symmetric=True))
        for row, value in zip(rows, inverses, strict=True):
            good, old = is_usable(value), state["inverse"][name][row]
            old.copy_(value if is_known_true(good) else torch.where(good, value, old))
            state["kept"] += ~good

    def _inverses(self, name: str, rows: list[int]) -> list[Tensor]:
        """Return the damped inverses (n, n) of a bucket's factors in these rows of its stack, which this rank owns."""
        state, share, added = self.state["kfac"], self.plan.buckets.share[name], self._ridges()
        factor, members = state["owned"]["factor"][name], self.plan.buckets.members[name]
        # on a CPU one by one, so that each stays in the cache
        batches = [[row] for row in rows] if factor.device.type == "cpu" else [rows] if rows else []
        inverses: list[Tensor] = []
        for batch in batches:
            numbers = place_numbers([self.plan.index[members[row]] for row in batch], added, torch.int64)
            places = place_numbers([row % share for row in batch], added, torch.int64)
            mass = state["mass"][numbers].clamp_min(torch.finfo(factor.dtype).tiny)
            scaled = factor[places] / mass[:, None, None]
            inverses += damped_inverse(scaled, added[numbers]).unbind()
        return inverses

    # ----------------------------------------------------------------------------------------------- update
    def _alone(self) -> None:
        """Do what an engine would have done before the update.

        Raises:
            UserError: for several ranks, a setting that needs an engine, or missing statistics.
        """
        plan, step = self.plan, self.state["kfac"]["steps"]
        one_rank(self, plan.world)
        needs_engine = {
            "fisher='sampled'": plan.word == "sampled",
            f"warm_start={plan.warm_start}": plan.warm_start > 0,
            "quadratic_model=True": plan.settings.quadratic_model,
        }
        if typed := [option for option, is_set in needs_engine.items() if is_set]:
            raise UserError(
                f"KFAC({typed[0]}): needs extra passes over the data, which only the suite's engine makes; leave it out"
            )
        self.host(step)
        if plan.phase(step):
            self.absorb(self.seen(), reduce=ALONE)
        for name in plan.programs(step):
            self.program(name, reduce=ALONE)

    def _update(
        self,
        *,
        reduce: Reduce[Tensor] | None = None,
        evaluate: Callable[..., Any] | None = None,
        phase: tuple[str, ...] = (),
    ) -> None:
        if not any(select_with_gradient(group["params"]) for group in self.param_groups):
            return
        shared = self._shared(*SHARED)
        if reduce is None:
            self._alone()
        names = {parameter: name for name, parameter in self.named.items()}
        groups = [(group, params) for group in self.param_groups if (params := self._followers(group))]
        grads: Tree = {}
        rates: dict[str, float] = {}
        for group, params in groups:
            given = [names[parameter] for parameter in params]
            grads |= zip(given, self._gradients(group, params), strict=True)
            rates |= dict.fromkeys(given, float(group["lr"]))
        grads = turn_weights(self.layers, grads)
        direction = precondition_gradients(self.plan, self.state["kfac"], grads, self._ridges(), self._damping())
        if shared["kl_clip"]:
            direction |= clip_direction(self.plan, grads, direction, rates=rates, bound=shared["kl_clip"])
        fitted = self.plan.covered if self.settings.quadratic_model else set[str]()
        if fitted and evaluate and reduce:
            self._fit(grads, direction, evaluate, reduce, adapts="damping" in phase)
        direction = turn_weights(self.layers, direction)
        for group, params in groups:
            if rest := [parameter for parameter in params if names[parameter] not in fitted]:
                self._move(group, rest, [direction[names[parameter]] for parameter in rest])
        if shared["rescale"]:
            self._rescale()
        if self.plan.rest:
            self._adamw()
        if self.settings.stale:
            self.state["kfac"]["wait"] -= 1
        self.state["kfac"]["steps"] += 1

    def _followers(self, group: dict[str, Any]) -> list[Tensor]:
        """Return the parameters with a gradient that follow K-FAC's learning rate and momentum."""
        return [parameter for parameter in select_with_gradient(group["params"]) if parameter not in self.rest]

    def _adamw(self) -> None:
        """Update the parameters that `plan.rest` names."""
        state = self.state["kfac"]
        steps = place_numbers(state["steps"] + 1.0, state["mass"], torch.float64)
        for group in self.param_groups:
            rest = [parameter for parameter in group["params"] if parameter in self.rest]
            for params, updates in by_updates(self, rest, steps):
                with edit_weights(params) as values:
                    step_by_adamw(self, params, values, self.read_group(group), updates)

    def _gradients(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
        """Return what is preconditioned: gradients with L2 decay, or their average."""
        grads = add_weight_decay(densify_gradients(params, whole=True), params, group["weight_decay"])
        if self.settings.momentum_on == "direction":
            return grads
        velocity = [self.state[parameter]["velocity"] for parameter in params]
        torch._foreach_mul_(velocity, group["momentum"])
        torch._foreach_add_(velocity, grads, alpha=1.0 - group["momentum"])
        return velocity

    def _move(self, group: dict[str, Any], params: list[Tensor], direction: list[Tensor]) -> None:
        """Take a step in this direction, or along its velocity."""
        if self.settings.momentum_on == "direction":
            velocity = [self.state[parameter]["velocity"] for parameter in params]
            torch._foreach_mul_(velocity, group["momentum"])
            torch._foreach_add_(velocity, direction)
            direction = velocity
        with edit_weights(params, whole=True) as values:
            torch._foreach_add_(values, direction, alpha=-group["lr"])

    def _fit(
        self, grads: Tree, direction: Tree, evaluate: Callable[..., Any], reduce: Reduce[Tensor], *, adapts: bool
    ) -> None:
        """Move the covered parameters as the exact quadratic model says; where λ `adapts`, compare the losses."""
        given = [name for name in grads if name in self.plan.covered]
        state, parameters = self.state["kfac"], [self.named[name] for name in given]
        decays = {p: group["weight_decay"] * (p.ndim > 1) for group in self.param_groups for p in group["params"]}
        velocity = [self.state[parameter]["velocity"] for parameter in parameters]
        pair = direction, turn_weights(self.layers, dict(zip(given, velocity, strict=True)))

        def multiply_trees(one: Tree, other: Tree) -> Tensor:
            """⟨v, u⟩ of each parameter."""
            return torch.stack([multiply_values(one[name], other[name]) for name in given])

        def measure_loss() -> tuple[Tensor, Tensor]:
            """The loss and ⟨∇h, v⟩ (2,) at the present weights, of the gradient before clipping."""
            loss, slopes, _ = evaluate(observe=_observe_nothing)
            turned = turn_weights(self.layers, slopes)
            own = reduce.exact({"loss": loss, "slopes": torch.stack([multiply_trees(turned, v).sum() for v in pair])})
            now = turn_weights(self.layers, {name: self.named[name].detach() for name in given})
            decayed = torch.stack([(multiply_trees(now, v) * scale).sum() for v in pair])
            return own["loss"] + 0.5 * (multiply_trees(now, now) * scale).sum(), own["slopes"] + decayed

        products = Products(self.plan, pair)
        share = evaluate(labels="sampled", observe=products.observe, per_term=True)[2]["share"]
        means = reduce.exact(products.collect_sums() | {"share": share})
        scale = place_numbers([decays[parameter] for parameter in parameters], means["share"])
        curvature = scale + state["damping"] * means["share"]
        lengths = torch.stack([torch.stack([(multiply_trees(v, u) * curvature).sum() for v in pair]) for u in pair])
        model = means["gram"] * (means["share"] / means["samples"]) + lengths
        fitted = fit_step(model, torch.stack([multiply_trees(grads, v).sum() for v in pair]))
        before, slopes = measure_loss() if adapts else (None, None)
        length, momentum = fitted.unbind()
        turned = turn_weights(self.layers, {name: direction[name] for name in given})
        steps = [turned[name] * length + v * momentum for name, v in zip(given, velocity, strict=True)]
        with edit_weights(parameters) as values:
            torch._foreach_sub_(values, steps)
        if before is not None and slopes is not None:
            promised = fitted @ slopes - 0.5 * fitted @ model @ fitted
            state["damping"].copy_(adapt_damping(state["damping"], before - measure_loss()[0], promised))
        for v, step in zip(velocity, steps, strict=True):
            v.copy_(step)

    def _rescale(self) -> None:
        """Give each weight of a linear layer or convolution the norm √(2 outputs)."""
        for name in self.plan.kronecker:
            weight = self.plan.layers[name].parameters[0]
            if (value := self.named[weight]).grad is not None:
                value.mul_((2.0 * self.plan.shapes[weight][0]) ** 0.5 / (compute_norms([value])[0] + 1e-9))


def _observe_nothing(taps: Any, weight: Tensor) -> Tree:
    return {}


make = KFAC
