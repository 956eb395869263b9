"""Every optimizer in a torch training loop of one's own: what users of `torch.optim` expect, and the reference."""

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from alone import gap
from mlps import HYPER, NAMES, USED, Torch, differentiated, initial, specified

from suite import load
from suite.contract import Layer, UserError
from suite.nodes import load_settings

STEPS = 8
every = pytest.mark.parametrize("name", NAMES)
OWN = [name for name in NAMES if name != "external"]  # the others' classes are torch's own
own = pytest.mark.parametrize("name", OWN)
OBSERVING = [name for name in NAMES if "observe" in load.load_member(f"suite.optimizers.{name}").NEEDS]
# whose parameters may come in any number of groups, whenever they like
OPEN = [name for name in OWN if name not in OBSERVING]


def state_of(made: Torch, layer: str) -> Any:
    """A copy of what is held for a layer's parameters alone; how many updates they missed is not a part of it."""
    parameters = made.model.get_submodule(layer).parameters()
    held = [made.optimizer.state[parameter] for parameter in parameters]
    return copy.deepcopy([{key: value for key, value in state.items() if key != "missed"} for state in held])


def equal(one: Any, other: Any) -> bool:
    """Return whether nested state is the same bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def tensors(state: Any) -> list[torch.Tensor]:
    """All tensors in nested state."""
    if isinstance(state, torch.Tensor):
        return [state]
    items = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return [tensor for item in items for tensor in tensors(item)]


@pytest.mark.quick
# ----------------------------------------------------------------------------------------------------- what it does
@own
def test_it_follows_the_reference(name: str) -> None:
    """Refreshes and all: `step` is complete."""
    expected = specified(name, STEPS)
    assert gap(Torch(name).train(range(STEPS)), expected) <= 1e-11
    assert gap(initial(*USED), expected) > 1e-2


@every
def test_the_loss_falls(name: str) -> None:
    made = Torch(name, "float32", **({"lr": 0.02} if name == "lars" else {}))
    before = differentiated(made.params, 0)[0]
    for _ in range(30):
        made.optimizer.step(made.closure(0))
    assert differentiated(made.params, 0)[0] < 0.95 * before


LAGGED = {"lag": 2, "inverse_interval": 3, "start_preconditioning": 1}
STAGGERED = {"stagger": True, "inverse_interval": 3, "start_preconditioning": 1, "block_size": 2}
STALE = {"stale": True, "stale_alpha": 0.5, "factor_interval": 1, "inverse_interval": 1}
ABSENT: list[tuple[str, dict[str, Any]]] = [("shampoo", LAGGED), ("shampoo", STAGGERED), ("shampoo", {"graft": "adam"})]


@pytest.mark.quick
@pytest.mark.parametrize(
    "name, hyper", [*ABSENT, ("muon", {"excluded": ["2"]}), ("kfac", {"inverse_warmup": 2}), ("kfac", STALE)]
)
def test_other_settings_follow_the_reference_too(name: str, hyper: dict[str, Any]) -> None:
    assert gap(Torch(name, **hyper).train(range(12)), specified(name, 12, **hyper)) <= 1e-11


# ---------------------------------------------------------------------------------------------- gradients and closures
@every
def test_a_closure_is_called_with_gradients_enabled_and_its_loss_returned(name: str) -> None:
    made = Torch(name)
    inner, called = made.closure(0), []

    def closure() -> Any:
        called.append(torch.is_grad_enabled())
        return inner()

    made.optimizer.zero_grad()
    with torch.no_grad():
        loss = made.optimizer.step(closure)
    assert called and all(called)
    assert torch.equal(loss, Torch(name).closure(0)())
    assert gap(made.params, initial(*USED)) > 0.0


@every
@pytest.mark.parametrize("change", [{}, {"weight_decay": 0.1}])
def test_a_parameter_that_never_has_a_gradient_is_left_alone(name: str, change: dict[str, float]) -> None:
    """It and its state; and the others move as if it were not there. Two refreshes lie in these steps."""
    declared = load_settings(f"suite.optimizers.{name}")
    change = {key: value for key, value in change.items() if declared and key in declared.model_fields}
    made, alone = Torch(name, **change), Torch(name, "float64", *USED, **change)
    before = state_of(made, "unused")
    found, expected = made.train(range(STEPS)), alone.train(range(STEPS))
    assert np.array_equal(made.model.get_submodule("unused").weight.detach().numpy(), initial()["unused.weight"])
    assert equal(state_of(made, "unused"), before)
    assert gap(found, expected) <= 1e-11


@every
def test_a_parameter_without_gradient_in_one_step_skips_it(name: str) -> None:
    """Its state stays as it was, and corrections of averages count the gradients that it had."""
    made = Torch(name)
    made.train(range(4))
    frozen = made.model.get_submodule("2")
    frozen.requires_grad_(False)
    before, weight = state_of(made, "2"), frozen.weight.detach().clone()
    others = made.params
    made.train(range(4, 6))
    assert torch.equal(frozen.weight, weight) and equal(state_of(made, "2"), before)
    assert np.abs(made.params["0.weight"] - others["0.weight"]).max() > 0.0
    frozen.requires_grad_(True)
    made.train(range(6, STEPS))
    assert not torch.equal(frozen.weight, weight)


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon", "soap", "shampoo"])
def test_a_step_without_gradient_is_no_step(name: str) -> None:
    """Of one parameter: it ends where it would without those steps, bit for bit."""
    hyper = {"graft": "adam"} if name == "shampoo" else {}
    ends = []
    for skipped in (), (0, 2, 3, 6):
        layer = torch.nn.Parameter(torch.tensor(initial()["0.weight"]))
        other = torch.nn.Parameter(torch.tensor(initial()["4.weight"]))
        given = {"layers": {}} if name == "muon" else {}
        make = load.load_half(f"suite.optimizers.{name}", "torch").make
        optimizer = make([("layer", layer), ("other", other)], **HYPER.get(name, {}), **hyper, **given)
        if name in ("soap", "shampoo"):  # whose refreshes are counted for all of a group together
            optimizer.plans[0].start = 100
        drawn = np.random.default_rng(0)
        for step in range(9 if skipped else 5):
            other.grad = torch.ones_like(other)
            layer.grad = None if step in skipped else torch.tensor(drawn.normal(size=layer.shape))
            optimizer.step()
        ends.append(layer.detach())
    assert torch.allclose(*ends, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", OBSERVING)
def test_without_what_the_layers_see_it_says_what_to_type(name: str) -> None:
    made = Torch(name)
    for parameter in made.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for closure in None, lambda: torch.zeros(()):
        with pytest.raises(UserError, match=r"from suite\.engine\.torch_alone import observed"):
            made.optimizer.step(closure)
    assert gap(made.params, initial(*USED)) == 0.0


# ------------------------------------------------------------------------------------------------------------- groups
FIRST, SECOND = ("0",), ("2", "4", "last")
# what a setting becomes: half of what it was, but for these
EDITS: dict[str, Any] = {"epsilon": 0.3, "fallback_epsilon": 0.3, "weight_decay": 0.3, "initial_accumulator": 1.0}
EDITS |= {"kl_clip": 1e-6, "least_ratio": 2.0, "largest_ratio": 0.5, "iterations": 2, "draws": 2, "momentum": 0.4}
EDITS |= {"dampening": 0.4, "tempering_warmup": 20, "stale_alpha": 10.0}
NUMBERS = ("lr", "momentum", "weight_decay")


def grouped(name: str, **second: Any) -> Torch:
    """Make a run with the network's first layer in one group, the others in a second one with other settings."""

    def groups(model: Any) -> list[dict[str, Any]]:
        named = list(model.named_parameters())
        chosen = [[pair for pair in named if pair[0].split(".")[0] in layers] for layers in (FIRST, SECOND)]
        return [{"params": chosen[0]}, {"params": chosen[1], **second}]

    return Torch(name, "float64", *USED, groups=groups)


@own
def test_two_groups_of_equal_settings_are_one(name: str) -> None:
    assert gap(grouped(name).train(range(STEPS)), Torch(name, "float64", *USED).train(range(STEPS))) <= 1e-11


@own
def test_a_groups_own_settings_are_used_or_rejected(name: str) -> None:
    """Each setting that a group has: another value of the second group's moves its parameters elsewhere."""
    made = grouped(name)
    plain = made.train(range(STEPS))
    used, rejected = set(), set()
    for key, value in made.optimizer.param_groups[1].items():
        if key in ("params", "param_names", "differentiable"):
            continue
        other = (not value) if isinstance(value, bool) else EDITS.get(key, value / 2 if value else 0.4)
        try:
            found = grouped(name, **{key: other}).train(range(STEPS))
        except UserError as error:
            assert key in str(error) and "groups" in str(error)
            rejected.add(key)
            continue
        moved = max(np.abs(found[p] - plain[p]).max() for p in plain if p.split(".")[0] in SECOND)
        assert moved > 1e-9, f"{key} of the second group was ignored"
        used.add(key)
    assert "lr" in used and not rejected & set(NUMBERS)


@pytest.mark.parametrize("name", OPEN)
def test_a_group_is_treated_as_if_it_were_alone(name: str) -> None:
    """With other values of all its settings, it ends where an optimizer of its own with those would end."""
    make, given = load.load_half(f"suite.optimizers.{name}", "torch").make, HYPER.get(name, {})
    if name == "muon":
        given = given | {"layers": {"4": Layer("linear", ("4.weight",))}, "excluded": []}
    start = initial()
    names = "0.weight", "4.weight", "4.bias"
    first, *second = (torch.nn.Parameter(torch.tensor(start[key])) for key in names)
    others = [torch.nn.Parameter(torch.tensor(start[key])) for key in names[1:]]
    settings = make([("4.weight", torch.nn.Parameter(torch.ones(2, 2)))], **given).param_groups[0]
    numbers = {key: value for key, value in settings.items() if isinstance(value, float)}
    edits = {key: EDITS.get(key, value / 2 if value else 0.4) for key, value in numbers.items()}
    groups = [
        {"params": [(names[0], first)]},
        {"params": list(zip(names[1:], second, strict=True)), **edits},
    ]
    together, alone = make(groups, **given), make(list(zip(names[1:], others, strict=True)), **given | edits)
    drawn = np.random.default_rng(0)
    for _ in range(STEPS):
        first.grad = torch.tensor(drawn.normal(size=first.shape))
        for parameter, other in zip(second, others, strict=True):
            parameter.grad = torch.tensor(drawn.normal(size=parameter.shape))
            other.grad = parameter.grad.clone()
        together.step()
        alone.step()
    for parameter, other, key in zip(second, others, names[1:], strict=True):
        assert torch.allclose(parameter, other, rtol=0, atol=1e-14)
        assert not torch.equal(parameter, torch.tensor(start[key]))


@pytest.mark.parametrize("name", ["shampoo", "soap", "kfac", "kbfgs", "vogn"])
def test_a_setting_edited_later_is_held_to_the_same(name: str) -> None:
    """By a schedule, for example: what all groups share may not come to differ, and what they do not is read anew."""
    made = grouped(name)
    made.train(range(3))
    key = {"kfac": "damping", "kbfgs": "damping", "vogn": "draws"}.get(name, "beta2")
    made.optimizer.param_groups[1][key] = EDITS.get(key, 0.1)
    if name in ("shampoo", "soap"):
        assert gap(made.train(range(3, STEPS)), grouped(name).train(range(STEPS))) > 1e-6
    else:
        with pytest.raises(UserError, match=f"{key} differs between parameter groups"):
            made.train(range(3, 4))


@pytest.mark.parametrize("name", OPEN)
def test_a_group_that_comes_later_begins_anew(name: str) -> None:
    """After three steps: its parameters end as those of an optimizer that begins then, with the same gradients."""
    make, given = load.load_half(f"suite.optimizers.{name}", "torch").make, {"layers": {}} if name == "muon" else {}
    values = [initial()["0.weight"], initial()["4.weight"]]
    early, late, fresh = (torch.nn.Parameter(torch.tensor(values[place])) for place in (0, 1, 1))
    optimizer = make([("early", early)], **HYPER.get(name, {}), **given)
    drawn = np.random.default_rng(0)
    other = make([("late", fresh)], **HYPER.get(name, {}), **given)
    for step in range(9):
        if step == 3:
            optimizer.add_param_group({"params": [("late", late)]})
        early.grad = torch.ones_like(early)
        if step >= 3:
            late.grad = torch.tensor(drawn.normal(size=late.shape))
            fresh.grad = late.grad.clone()
            other.step()
        optimizer.step()
    assert torch.allclose(late, fresh, rtol=0, atol=1e-14)
    assert not torch.equal(late, torch.tensor(values[1]))


@pytest.mark.parametrize("name", OBSERVING)
def test_a_group_that_comes_too_late_is_rejected(name: str) -> None:
    made = Torch(name)
    with pytest.raises(UserError, match="groups cannot be added later"):
        made.optimizer.add_param_group({"params": [("new", torch.nn.Parameter(torch.ones(2, 2)))]})


@pytest.mark.parametrize("name", [name for name in OPEN if name != "muon"])
def test_tensors_without_names_are_like_any(name: str) -> None:
    named, unnamed = (Torch(name, groups=groups) for groups in (None, lambda model: model.parameters()))
    assert gap(unnamed.train(range(STEPS)), named.train(range(STEPS))) == 0.0


# ------------------------------------------------------------------------------------------------ schedules and state
@every
def test_a_learning_rate_schedule_is_followed(name: str) -> None:
    made = Torch(name, **({"momentum": 0.0} if name == "lars" else {}))  # whose velocity holds the rate
    schedule = torch.optim.lr_scheduler.LambdaLR(made.optimizer, lambda step: float(step < 2))
    for step in range(2):
        made.train(range(step, step + 1))
        schedule.step()
    before = made.params
    assert gap(made.train(range(2, 3)), before) == 0.0 < gap(before, initial(*USED))


STATES: list[tuple[str, dict[str, Any]]] = [*((name, {}) for name in NAMES), *ABSENT]


@pytest.mark.parametrize("name, hyper", STATES)
def test_a_loaded_state_goes_on_bit_for_bit(name: str, hyper: dict[str, Any]) -> None:
    """After each step, in the middle of an interval too; by way of a file, and by a copy of model and optimizer."""
    expected = Torch(name, **hyper).train(range(STEPS))
    for step in (1, 4, 5):
        made = Torch(name, **hyper)
        made.train(range(step))
        file = io.BytesIO()
        torch.save({"model": made.model.state_dict(), "optimizer": made.optimizer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        again = Torch(name, **hyper)
        again.model.load_state_dict(saved["model"])
        again.optimizer.load_state_dict(saved["optimizer"])
        other = copy.copy(made)
        other.model, other.optimizer = copy.deepcopy((made.model, made.optimizer))
        for candidate in (again, made, other):
            assert gap(candidate.train(range(step, STEPS)), expected) == 0.0


@own
def test_a_loaded_state_is_a_copy(name: str) -> None:
    one, other = Torch(name), Torch(name)
    one.train(range(3))
    other.model.load_state_dict(one.model.state_dict())
    other.optimizer.load_state_dict(one.optimizer.state_dict())
    shared = [key for key in one.optimizer.state if isinstance(key, str)]
    before = copy.deepcopy([one.optimizer.state[key] for key in shared])
    other.train(range(3, 6))
    assert equal([one.optimizer.state[key] for key in shared], before)


# ---------------------------------------------------------------------------------------------------- narrow parameters
@own
def test_parameters_in_bfloat16_are_updated_in_float32(name: str) -> None:
    """Each step is that of the same weights and gradients in float32, rounded once; all state is float32."""
    narrow, again = Torch(name, "bfloat16"), Torch(name, "bfloat16")
    wide = Torch(name, "float32")
    for parameter, value in zip(wide.model.parameters(), narrow.model.parameters(), strict=True):
        parameter.data.copy_(value)
    narrow.train(range(STEPS))
    held = [tensor for tensor in tensors(list(narrow.optimizer.state.values())) if tensor.is_floating_point()]
    assert held and {tensor.dtype for tensor in held} <= {torch.float32, torch.float64}
    start, end = wide.params, wide.train(range(STEPS))
    length = np.sqrt(sum(((end[key] - start[key]) ** 2).sum() for key in end))
    apart = np.sqrt(sum(((narrow.params[key] - end[key]) ** 2).sum() for key in end))
    assert apart < 0.5 * length  # K-BFGS subtracts nearly equal gradients, which amplifies rounding
    again.train(range(3))
    third = Torch(name, "bfloat16")
    third.model.load_state_dict(again.model.state_dict())
    third.optimizer.load_state_dict(again.optimizer.state_dict())
    assert gap(third.train(range(3, STEPS)), narrow.params) == 0.0
