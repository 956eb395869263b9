"""Optimizers in other people's training scripts: equal to one process, or a `UserError` that names the cause."""

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import environments
import mlps
import numpy as np
import pool
import pytest
import torch
from torch import nn

from suite import load
from suite.contract import UserError
from suite.differences import find_difference

NAMES = [name for name in mlps.NAMES if name != "external"]  # torch's own are not ours to prove
OBSERVING = ("kfac", "kbfgs", "vogn")
Tree = dict[str, np.ndarray]


@functools.cache
def reference(name: str) -> Tree:
    return environments.in_one_process(name)


def check_equal(found: Tree, name: str) -> None:
    assert find_difference(reference(name), found, tolerance=1e-12) is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "train",
    [
        environments.with_a_tensor_as_rate,
        environments.with_a_cyclic_schedule,
        environments.with_checkpointed_layers,
        environments.wrapped,
        environments.stored_by_name,
    ],
)
def test_it_equals_one_process(train: Callable[[str], Tree], name: str) -> None:
    check_equal(train(name), name)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "kbfgs"])
def test_a_scaled_loss_equals_an_unscaled_one(name: str) -> None:
    check_equal(environments.with_a_scaled_loss(name), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_step_equals_a_plain_one(name: str) -> None:
    check_equal(environments.with_a_compiled_step(name), name)


@pytest.mark.parametrize("name", NAMES)
def test_replicas_equal_one_process(name: str) -> None:
    for found in pool.run("torch", 2, "environments.on_ranks", "replicated", name):
        check_equal(found, name)


@pytest.mark.parametrize("name", NAMES)
def test_sharded_parameters_equal_whole_ones(name: str) -> None:
    for found in pool.run("torch", 2, "environments.on_ranks", "sharded", name):
        check_equal(found, name)


@pytest.mark.parametrize("name", OBSERVING)
def test_ranks_that_observed_different_layers_are_an_error(name: str) -> None:
    answers = pool.run("torch", 2, "environments.on_ranks", "uneven", name)
    assert all("observed different layers" in answer for answer in answers)


# ------------------------------------------------------------------------------------------------ groups and states
def outcome(name: str, **made: Any) -> Tree | str:
    """Parameters after three steps, or the message of a `UserError`."""
    try:
        return environments.start(name, **made).train(range(3))
    except UserError as error:
        return str(error)


def find_other_values(name: str) -> dict[str, Any]:
    """A valid value of each setting that differs from its default."""
    settings, found = environments.start(name).optimizer.settings, dict[str, Any]()
    for key, value in settings:
        for other in (not value, 2, 0.5, 1, 0.0, *type(settings).choices(key)):
            if key not in found and type(other) is type(value) and other != value:
                with contextlib.suppress(UserError):
                    environments.start(name, **{key: other})
                    found[key] = other
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_of_a_group_is_read_or_refused(name: str) -> None:
    scheduled = type(environments.start(name).optimizer.settings).names(scheduled=True)
    for setting, other in find_other_values(name).items():
        grouped = outcome(
            name, groups=lambda model, own={setting: other}: [{"params": list(model.named_parameters()), **own}]
        )
        if isinstance(grouped, str) and "the same for all groups" in grouped:
            assert setting not in scheduled, setting
            continue
        expected = outcome(name, **{setting: other})
        if isinstance(expected, str):
            assert grouped == expected
            continue
        assert isinstance(grouped, dict), grouped
        for key, value in expected.items():
            np.testing.assert_array_equal(grouped[key], value, err_msg=f"{setting}={other} {key}")


@pytest.mark.parametrize("name", NAMES)
def test_unknown_and_invalid_settings_of_a_group_are_named(name: str) -> None:
    for own, words in {"betas": "sets betas: unknown", "lr": "lr=-1.0: must be at least 0"}.items():
        with pytest.raises(UserError, match=words):
            environments.start(
                name, groups=lambda model, own=own: [{"params": list(model.named_parameters()), own: -1.0}]
            )


def remake(name: str, model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    """Make the optimizer on another model; it is told of no layers."""
    return load.load_half(f"suite.optimizers.{name}", "torch").make(
        model.named_parameters(), **mlps.asked(name, "torch", {}, **settings)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_state_of_other_shapes_is_refused_when_it_is_loaded(name: str) -> None:
    one, other = (remake(name, nn.Linear(width, 3)) for width in (8, 5))
    state = copy.deepcopy(other.state_dict())
    with pytest.raises(
        UserError, match=r"belongs to other parameters or settings: (shape|only one of them has|.* instead of)"
    ):
        other.load_state_dict(one.state_dict())
    assert str(other.state_dict()) == str(state)


@pytest.mark.parametrize("name", ["adamw", "kfac", "muon", "soap"])
def test_a_state_without_a_part_is_refused(name: str) -> None:
    """torch's distributed checkpoints drop nested state with `flatten_optimizer_state_dict=True`."""
    run = environments.start(name)
    run.train(range(2))
    state = run.optimizer.state_dict()
    state["state"] = {key: {k: v for k, v in own.items() if k != "shared"} for key, own in state["state"].items()}
    with pytest.raises(UserError, match=r"the state lacks \w+; .*flatten_optimizer_state_dict=False"):
        environments.start(name).optimizer.load_state_dict(state)


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_has_an_empty_state(name: str) -> None:
    """torch's distributed checkpoints in files drop empty states, and then miss them."""
    run = environments.start(name)
    run.train(range(1))
    state = run.optimizer.state_dict()
    assert all(state["state"].get(key) for group in state["param_groups"] for key in group["params"])


@pytest.mark.parametrize("name", NAMES)
def test_parameters_that_change_their_type_later_are_an_error(name: str) -> None:
    run = environments.start(name)
    run.model.float()
    run.kind = "float32"
    with pytest.raises(UserError, match=r"was torch\.float64 on cpu when the optimizer was made, and is torch.float32"):
        run.train(range(1))


# ------------------------------------------------------------------------------------------------------- parameters
@pytest.mark.parametrize("name", NAMES)
def test_complex_and_flattened_parameters_are_refused(name: str) -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(3, 2, dtype=torch.complex64))
    with pytest.raises(UserError, match=r"shape \(3, 2\) is complex; .*view_as_complex"):
        remake(name, model)
    model.weight = nn.Parameter(torch.zeros(6))
    model.weight._fsdp_flattened = True  # as FullyShardedDataParallel marks them
    with pytest.raises(UserError, match=r"FullyShardedDataParallel flattens .*fully_shard"):
        remake(name, model)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OBSERVING])
def test_gradients_of_any_size_and_empty_parameters_leave_finite_weights(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    model.none = nn.Parameter(torch.zeros(0))
    model.no_rows = nn.Parameter(torch.zeros(0, 3))
    optimizer = remake(name, model, **({"momentum": 0.0} if name == "sgd" else {}))
    for scale in (1.0, 1.0, 1.0, 1e20, 1e20, 1e-30, 0.0, 1.0):
        for parameter in model.parameters():
            parameter.grad = scale * torch.randn(parameter.shape)
        optimizer.step()
        assert all(parameter.isfinite().all() for parameter in model.parameters()), scale


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OBSERVING])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.0, "weight_decay": 0.0}])
@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_sparse_gradients_equal_dense_ones(name: str, settings: dict[str, float], kind: torch.dtype) -> None:
    if name == "sm3" and settings:
        pytest.skip("by definition, the rows are its only slices")
    known = type(environments.start(name).optimizer.settings).model_fields
    chosen = {key: value for key, value in settings.items() if key in known}
    twice = kind is torch.float64  # in half precision, torch rounds a dense gradient's sums
    ends = []
    for sparse in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(7, 3, sparse=sparse, dtype=kind)
        optimizer = remake(name, table, **chosen)
        for step in range(4):
            optimizer.zero_grad()
            table(
                torch.tensor([[1, 2, 1], [step, 5, 5]] if twice else [[1, 2, 0], [step, 5, 4]])
            ).square().sum().backward()
            optimizer.step()
        ends.append(table.weight.detach())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "sm3"])
def test_gradients_that_are_sparse_in_two_axes_equal_dense_ones(name: str) -> None:
    ends = []
    for sparse in (False, True):
        model = nn.Linear(3, 2, bias=False, dtype=torch.float64)
        nn.init.ones_(model.weight)
        known = type(environments.start(name).optimizer.settings).model_fields
        chosen = {key: 0.0 for key in ("momentum", "weight_decay") if key in known}
        optimizer = remake(name, model, **({} if name == "sm3" else chosen))
        for _ in range(3):
            optimizer.zero_grad()
            model.weight.gather(1, torch.tensor([[0, 2], [1, 1]]), sparse_grad=sparse).square().sum().backward()
            optimizer.step()
        ends.append(model.weight.detach())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)
