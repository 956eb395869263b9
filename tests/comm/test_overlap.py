"""Tests of the overlap schedule: it sends gradients and statistics during the backward pass, in one fixed order."""

import re
import threading
from typing import Any

import numpy as np
import pytest
import torch
from engines import advance, comm, config, engine
from torch import Tensor, nn

from suite.comm.schedules.overlap.torch import Overlap
from suite.contract import Layer, Parcel
from suite.engine.torch_taps import Statistics, tap_layers

DEADLINE = 10  # seconds that the other thread has to send what is complete
LAYERS = {"first": Layer("linear", ("first.weight",)), "last": Layer("linear", ("last.weight",))}
PARCELS = {
    "factor/late": Parcel(("last/in",), (0,), "last.weight"),
    "factor/both": Parcel(("first/in", "last/out"), (0, 1), "first.weight"),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)

    def forward(self, x: Tensor, twice: bool = False) -> Tensor:
        x = self.last(self.first(x))
        return self.last(x) if twice else x


class Recorder:
    """In the place of a `Reduce` over two ranks: notes what is sent, and sends nothing."""

    world = 2

    def __init__(self) -> None:
        self.early: dict[str, Tensor] = {}
        self.sent: list[str] = []
        self.news = threading.Condition()

    def buckets(self, gradients: dict[str, Tensor]) -> list[Any]:
        return [("1", None, ["last.weight"]), ("0", None, ["first.weight"])]

    def bucket(self, name: str, channel: Any, values: dict[str, Tensor]) -> dict[str, Tensor]:
        self._note(name)
        return values

    def to_owners(self, name: str, stack: list[Tensor], owners: Any, *, symmetric: bool) -> Tensor:
        self._note(name)
        return torch.stack(stack)

    def _note(self, name: str) -> None:
        with self.news:
            self.sent.append(name)
            self.news.notify_all()

    def await_number(self, count: int) -> list[str]:
        with self.news:
            assert self.news.wait_for(lambda: len(self.sent) >= count, DEADLINE), self.sent
            return list(self.sent)


def outers(taps: Any, weight: Tensor) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    for (name, _), (x, dy) in taps.items():
        for end, rows in (("/in", x), ("/out", dy)):
            sums[name + end] = sums.get(name + end, torch.zeros(3, 3)) + rows.T @ rows
    return sums


def watched(
    ahead: int, *, twice: bool = False, gradients: bool = True, layers: Any = LAYERS
) -> tuple[list[str], Recorder, Overlap, Net]:
    """One pass; what had been sent when backward came to the first layer, and everybody who took part.

    There backward waits until `ahead` have been sent.
    """
    torch.manual_seed(0)
    model, reduce = Net(), Recorder()
    schedule = Overlap(reduce, dict(model.named_parameters()))  # type: ignore[arg-type]
    statistics = Statistics(outers, schedule.observed)
    statistics.weight, statistics.divisor = torch.ones(4), torch.tensor(4.0)
    seen: list[str] = []

    forward = model.first.forward

    def watch_first(x: Tensor) -> Tensor:  # before the taps, which come before all hooks of a module
        output = forward(x)
        output.register_hook(lambda _: seen.extend(reduce.await_number(ahead)))
        return output

    model.first.forward = watch_first
    with tap_layers(model, layers, statistics.add) as rest:
        loss = model(torch.randn(4, 3), twice).square().sum()
        with schedule.watch(torch.tensor(2.0), parcels=PARCELS, gradients=gradients):
            loss.backward()
            rest()
    return seen, reduce, schedule, model


@pytest.mark.quick
@pytest.mark.parametrize("twice", [False, True], ids=["once", "called twice"])
def test_what_is_complete_travels_while_backward_goes_on(twice: bool) -> None:
    seen, reduce, schedule, _ = watched(2, twice=twice)
    assert seen == ["factor/late", "gradients/1"]  # backward had yet to come to the first layer
    assert reduce.sent == [*seen, "factor/both", "gradients/0"]
    assert set(reduce.early) == set(PARCELS)
    torch.manual_seed(0)  # the same pass by itself: what has been sent was divided in its place
    plain = Net()
    plain(torch.randn(4, 3), twice).square().sum().backward()
    sums = {name: value.grad for name, value in plain.named_parameters() if value.grad is not None}
    means = schedule.mean(sums, torch.tensor(2.0))
    assert all(torch.equal(means[name], value / 2.0) for name, value in sums.items())


def test_a_bucket_waits_for_its_last_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "buckets", lambda self, gradients: [("0", None, ["last.weight", "first.weight"])])
    model, reduce = Net(), Recorder()
    schedule = Overlap(reduce, dict(model.named_parameters()))  # type: ignore[arg-type]
    early: list[int] = []

    def before_the_first(module: Any, inputs: Any, output: Tensor) -> None:
        output.register_hook(lambda _: early.append(len(schedule.sent)))

    model.first.register_forward_hook(before_the_first)
    loss = model(torch.randn(4, 3)).square().sum()
    with schedule.watch(torch.tensor(1.0), parcels={}):
        loss.backward()
    assert early == [0] and reduce.sent == ["gradients/0"]


def test_a_layer_called_twice_is_observed_once_and_whole() -> None:
    parts: list[Any] = []
    model = Net()
    with tap_layers(model, LAYERS, parts.append) as rest:
        model(torch.randn(4, 3), twice=True).square().sum().backward()
        rest()
    assert [sorted(taps) for taps in parts] == [[("last", 0), ("last", 1)], [("first", 0)]]


def test_a_call_that_the_loss_ignores_does_not_hold_up_its_layer() -> None:
    parts: list[Any] = []
    model = Net()
    with tap_layers(model, LAYERS, parts.append) as rest:
        found = model(torch.randn(4, 3))
        model.last(found)
        found.square().sum().backward()
        assert [sorted(taps) for taps in parts] == [[("first", 0)]]
        rest()
    assert [sorted(taps) for taps in parts] == [[("first", 0)], [("last", 0)]]


def test_statistics_alone() -> None:
    seen, reduce, _, _ = watched(1, gradients=False)
    assert seen == ["factor/late"] and reduce.sent == ["factor/late", "factor/both"]


def test_a_parcel_without_its_layer_is_left_to_absorb() -> None:
    """And holds up nothing that stands behind it."""
    _, reduce, schedule, _ = watched(0, layers={"first": LAYERS["first"]})
    assert reduce.sent == ["gradients/1", "gradients/0"] and not reduce.early and not schedule.queue


@pytest.mark.quick
def test_statistics_are_divided_once_the_last_part_has_come() -> None:
    finished: dict[str, Tensor] = {}
    statistics = Statistics(lambda taps, weight: {"a": taps * weight}, finished.__setitem__)
    statistics.weight = torch.tensor(2.0)
    statistics.add(torch.tensor(3.0))  # type: ignore[arg-type]
    assert not finished
    statistics.divisor = torch.tensor(4.0)
    statistics.add(torch.tensor(5.0))  # type: ignore[arg-type]
    assert np.isclose(float(finished["a"]), (3.0 + 5.0) * 2.0 / 4.0) and finished == statistics.values()


def test_a_layer_that_the_last_part_skips_is_divided_all_the_same() -> None:
    statistics = Statistics(lambda taps, weight: {"a": taps * weight}, lambda name, value: None)
    statistics.weight = torch.tensor(2.0)
    statistics.add(torch.tensor(3.0))  # type: ignore[arg-type]
    statistics.divisor = torch.tensor(4.0)
    assert {name: float(value) for name, value in statistics.values().items()} == {"a": 1.5}


def test_xla_leaves_jaxs_buckets_apart() -> None:
    """Its own pass would make one all-reduce of them, which waits for the last gradient."""
    made = engine(config("sgd", "jax", world=2, comm=comm(schedule="overlap", bucket_mib=0)))
    advance(made, range(1))
    [(program, sends)] = made.programs.compiled.values()
    gradients = [entry for entry in sends if entry.name.startswith("gradients")]
    small = [entry for entry in sends if entry.name == "exact"]
    assert len(gradients) == len(made.run["params"]) and len(small) < len(gradients)
    assert len(re.findall(r"\ball-reduce\(", program.as_text())) == len(gradients) + len(small)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_taps_have_the_types_of_inputs_and_output_gradients(kind):
    layer, seen, x = torch.nn.Linear(3, 2), {}, torch.full((4, 3), 1 / 3)
    with tap_layers(torch.nn.Sequential(layer), {"0": Layer("linear", ("0.weight", "0.bias"))}, seen.update) as rest:
        with torch.autocast("cpu", dtype=kind):
            output = layer(x)
        output.sum().backward()
        rest()
    [(inputs, slopes)] = seen.values()
    assert slopes.dtype == kind and torch.equal(inputs, x)
