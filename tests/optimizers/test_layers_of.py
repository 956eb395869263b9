"""`layers_of` and `observed` on models that nobody here wrote: right statistics, or an error that names the cause."""

import copy
import pickle
from typing import Any

import mlps
import pytest
import torch
from torch import Tensor, distributed, nn

from suite import load
from suite.contract import Layer, UserError
from suite.engine.layers import Layers
from suite.engine.torch_alone import layers_of, observed

OBSERVING = ("kfac", "kbfgs", "vogn")
LAYERED = (*OBSERVING, "muon")


class Conv1D(nn.Module):
    """A linear layer whose weight is (in, out), as in Hugging Face's GPT-2."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs, dtype=torch.float64) * 0.5)
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


Conv1D.__module__ = "transformers.pytorch_utils"


class Tied(nn.Module):
    """A language model whose head is its embedding, with attention and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.inner = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + self.attention(x, x, x)[0]
        return self.head(self.norm(x + self.normed(torch.tanh(self.frozen(self.inner(x))))))


def make(name: str, model: nn.Module, layers: Layers) -> torch.optim.Optimizer:
    trained = [(key, value) for key, value in model.named_parameters() if value.requires_grad]
    return load.load_half(f"suite.optimizers.{name}", "torch").make(trained, **mlps.asked(name, "torch", layers))


def test_the_report_names_every_module_with_parameters() -> None:
    found = layers_of(Tied())
    assert list(found) == ["inner"]
    reasons = {
        "words": "its weight is tied to another module",
        "head": "its weight is tied to another module",
        "attention": "MultiheadAttention, with in_proj_weight, in_proj_bias",
        "attention.out_proj": "nn.MultiheadAttention reads its weight without calling it",
        "frozen": "its weight and bias is frozen",
        "normed": "its weight is computed from other parameters",
        "norm": "LayerNorm, with weight, bias",
    }
    assert reasons.items() <= found.rest.items()
    lines = str(found).splitlines()
    assert lines[0].split() == ["inner", "linear"]
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert all(shown[name].strip() == f"no layer: {why}" for name, why in reasons.items())
    for same in copy.deepcopy(found), pickle.loads(pickle.dumps(found)):
        assert (same, same.rest) == (found, found.rest)


@pytest.mark.parametrize("name", LAYERED)
def test_tied_frozen_and_uncalled_layers_train(name: str) -> None:
    torch.manual_seed(0)
    model = Tied()
    optimizer, ids = make(name, model, layers_of(model)), torch.randint(11, (6, 5))
    frozen, losses = model.frozen.weight.clone(), []

    def closure() -> Tensor:
        optimizer.zero_grad()
        with observed(model, optimizer) if name in OBSERVING else torch.enable_grad():
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(12):
        optimizer.step(closure)
    assert losses[-1] < losses[0]
    assert torch.equal(model.frozen.weight, frozen)


@pytest.mark.parametrize("name", LAYERED)
def test_a_transposed_layer_equals_an_ordinary_one(name: str) -> None:
    torch.manual_seed(0)
    ends = []
    first = Conv1D(5, 7)
    for transposed in (True, False):
        layer = copy.deepcopy(first)
        if not transposed:
            linear = nn.Linear(5, 7, dtype=torch.float64)
            linear.weight = nn.Parameter(first.weight.detach().T.clone())
            linear.bias = nn.Parameter(first.bias.detach().clone())
            layer = linear
        torch.manual_seed(1)
        model = nn.Sequential(layer, nn.Tanh(), nn.Linear(7, 3, dtype=torch.float64))
        layers = layers_of(model)
        assert layers["0"].transposed is transposed
        optimizer = make(name, model, layers)
        x, y = torch.randn(16, 5, dtype=torch.float64), torch.randn(16, 3, dtype=torch.float64)

        def closure(model: Any = model, optimizer: Any = optimizer, x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            with observed(model, optimizer) if name in OBSERVING else torch.enable_grad():
                loss = (model(x) - y).square().sum(1).mean()
                loss.backward()
            return loss

        if name == "vogn":  # draws differ: noise is drawn in the order of a parameter's elements
            for group in optimizer.param_groups:
                group["augmentation"] = 1e12
        for _ in range(4):
            optimizer.step(closure)
        ends.append(model[0].weight.detach().T if transposed else model[0].weight.detach())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-4 if name == "vogn" else 1e-12)


@pytest.mark.parametrize("name", OBSERVING)
def test_layers_that_do_not_fit_are_named(name: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    layers = layers_of(model)
    model[1].requires_grad_(False)
    with pytest.raises(
        UserError,
        match=r"1\.weight, 1\.bias of layer 1 is not among the parameters, which are 0\.weight, 0\.bias; take",
    ):
        make(name, model, layers)


@pytest.mark.parametrize("name", LAYERED)
def test_layers_of_another_model_are_refused(name: str) -> None:
    """As after DistributedDataParallel, whose parameters are called module.…"""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    wrapped = nn.ModuleDict({"module": model})
    for layers, parameters in (layers_of(model), wrapped), (layers_of(wrapped), model):
        with pytest.raises(UserError, match=r"^layers: .*weight, .*bias of layer .* is not among the parameters"):
            make(name, parameters, layers)
    with pytest.raises(UserError, match=r"^layers: must be a dictionary of Layer by name; set layers to what"):
        make(name, model, model)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^Layer: 'lineer' is no kind; choose one of linear, "):
        Layer("lineer", ("0.weight",))


def test_muon_takes_layers_of_groups_that_are_added_later() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2))
    first, rest = list(model[0].named_parameters("0")), list(model[1].named_parameters("1"))
    optimizer = load.load_half("suite.optimizers.muon", "torch").make(first, layers=layers_of(model), excluded=["2"])
    optimizer.add_param_group({"params": rest})
    assert list(optimizer.arrangement.sides) == ["0.weight", "1.weight"]


@pytest.mark.parametrize("name", OBSERVING)
def test_inputs_without_samples_are_named(name: str) -> None:
    image = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(0))
    cases: list[tuple[nn.Module, Tensor, str]] = [
        (nn.Sequential(nn.Linear(3, 2)), torch.randn(3), r"\(3,\) has no axis for samples; add one in front"),
        (nn.Sequential(nn.Linear(3, 2)), torch.randn(0, 3), r"\(0, 3\) has no samples; leave out empty batches"),
        (image, torch.randn(2, 5, 5), r"\(2, 5, 5\) has no axis for samples"),
    ]
    for model, x, says in cases:
        with pytest.raises(UserError, match=f"layer 0: its input {says}"):
            observe(model, make(name, model, layers_of(model)), x)


@pytest.mark.parametrize("name", OBSERVING)
def test_misused_arguments_are_named(name: str) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.randn(4, 3)
    optimizer = make(name, model, layers_of(model))
    with pytest.raises(UserError, match=r"observed: Sequential is no optimizer; write observed\(model, optimizer\)"):
        observe(optimizer, model, x)  # type: ignore[arg-type]
    with (
        pytest.raises(UserError, match="counted=0; set it to the number of terms"),
        observed(model, optimizer, counted=0),
    ):
        pass
    mixed = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, dtype=torch.float64))
    with pytest.raises(UserError, match="have different types; convert the model to one type"):
        make(name, mixed, layers_of(mixed))


def test_a_wrapped_model_or_the_one_inside_names_the_layers() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        ends = []
        for inside in (True, False):
            torch.manual_seed(0)
            model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)))
            named = model.module if inside else model
            optimizer = make("kfac", named, layers_of(named))
            for _ in range(2):
                optimizer.zero_grad()
                observe(model, optimizer, torch.ones(4, 3))
                optimizer.step()
            ends.append(model.module[0].weight.detach())
        assert torch.equal(*ends)
    finally:
        distributed.destroy_process_group()


def observe(model: nn.Module, optimizer: torch.optim.Optimizer, *calls: Tensor) -> None:
    with observed(model, optimizer):
        for x in calls:
            model(x).square().mean().backward()


def test_a_pass_that_statistics_would_misread_is_an_error() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), torch.randn(4, 3)
    optimizer = make("kfac", model, layers_of(model))
    with pytest.raises(UserError, match=r"layer . took part in several backward passes; use one observed"):
        observe(model, optimizer, x, x)
    optimizer.zero_grad()
    read = nn.Sequential(model[0], model[1])
    read.forward = lambda x: nn.functional.linear(torch.tanh(model[0](x)), model[2].weight)  # without a call
    read.add_module("2", model[2])
    with pytest.raises(UserError, match="layer 2 has a gradient, but was not called"):
        observe(read, optimizer, x)


def test_wrapped_models_are_understood_or_refused() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.randn(4, 3)
    optimizer = make("kfac", model, layers_of(model))
    compiled = nn.Sequential(nn.Linear(3, 3))
    compiled.compile(backend="eager")
    for wrong in compiled, torch.compile(model, backend="eager"):
        with pytest.raises(UserError, match="the model is compiled, and compiled code skips hooks"):
            observe(wrong, optimizer, x)


@pytest.mark.parametrize("name", ["kfac", "vogn"])
def test_a_scaler_that_observed_does_not_know_is_an_error(name: str) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.randn(4, 3)
    optimizer, scaler = make(name, model, layers_of(model)), torch.amp.GradScaler("cpu", init_scale=4.0)
    with observed(model, optimizer):
        scaler.scale(model(x).square().mean()).backward()
    with pytest.raises(UserError, match=r"the loss is scaled.*with observed\(model, optimizer, scaler=scaler"):
        scaler.step(optimizer)


@pytest.mark.parametrize("name", ["kfac", "vogn"])
def test_a_step_with_infinite_gradients_is_skipped(name: str) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.randn(4, 3)
    optimizer, scaler = make(name, model, layers_of(model)), torch.amp.GradScaler("cpu", init_scale=4.0)
    before = model[0].weight.clone()
    for value, moves in ((float("inf"), False), (1.0, True)):
        optimizer.zero_grad()
        with observed(model, optimizer, scaler=scaler):
            scaler.scale((model(x) * value).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(model[0].weight, before) is not moves
        assert model[0].weight.isfinite().all()


class Positions(nn.Module):
    """Adds a layer's output for one row of positions to every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.out = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(input=torch.tanh(self.words(x) + self.places(x[:1])))


def test_layers_that_see_other_samples_or_values_are_named() -> None:
    model, x = Positions(), torch.randn(4, 3)
    layers = layers_of(model)
    with pytest.raises(UserError, match=r"the first axis of layer \w+ has length"):
        observe(model, make("kfac", model, layers), x)
    changed = nn.Sequential(nn.Linear(3, 3))
    optimizer = make("kfac", changed, layers_of(changed))
    with pytest.raises(UserError, match="the input of layer 0 was changed in place"), observed(changed, optimizer):
        h = x.clone()
        loss = changed(h).square().mean()
        with torch.no_grad():
            h.add_(1.0)
        loss.backward()


@pytest.mark.parametrize(
    "clear",
    [
        lambda model, optimizer: optimizer.zero_grad(),
        lambda model, optimizer: model.zero_grad(),
        lambda model, optimizer: model.zero_grad(set_to_none=False),
    ],
)
def test_zeroed_gradients_take_their_statistics_with_them(clear: Any) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.randn(4, 3)
    other = copy.deepcopy(model)
    ends = []
    for each, skipped in ((model, True), (other, False)):
        optimizer = make("kfac", each, layers_of(each))
        if skipped:
            observe(each, optimizer, 100.0 * x)
        clear(each, optimizer)
        observe(each, optimizer, x)
        optimizer.step()
        ends.append(each[0].weight.detach())
    assert torch.equal(*ends)


def test_empty_layers_and_grouped_convolutions_are_none() -> None:
    assert layers_of(nn.Sequential(nn.Linear(4, 0), nn.Conv2d(2, 2, 3, groups=2))).rest == {
        "0": "it is empty",
        "1": "Conv2d that is not ordinary, with weight, bias",
    }


def test_an_embedding_with_padding_is_none() -> None:
    assert layers_of(nn.Sequential(nn.Embedding(4, 3, padding_idx=0))).rest == {
        "0": "its row padding_idx has no gradient"
    }


def test_a_layer_with_further_parameters_is_none() -> None:
    layer = nn.Linear(3, 3)
    layer.gain = nn.Parameter(torch.ones(3))
    assert layers_of(nn.Sequential(layer)).rest == {"0": "it has a further parameter gain"}
