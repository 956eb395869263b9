"""Projections of runs: what is counted against what is sent, and the command."""

import json
from pathlib import Path
from typing import Any

import engines
import kfacs
import pytest
from simulated_torch import simulate

from suite import cli, load, published
from suite.comm import setup
from suite.comm.projection import network
from suite.comm.reduce.torch import Reduce
from suite.contract import UserError
from suite.optimizers.kfac import traffic
from suite.projection import measured, project
from suite.settings import configure
from suite.verbs import plan

PRESETS = load.list_options("comm")


# ------------------------------------------------------------------------------------------- counted and sent
@pytest.mark.sample(8)
@pytest.mark.parametrize("preset", PRESETS)
def test_bytes_are_those_of_the_plan(preset: str) -> None:
    optimizer = "kfac" if preset.startswith("kfac") else "sgd"  # kfac's presets set options of K-FAC
    words = ["+task=resnet50", f"optimizer={optimizer}", f"comm={preset}", "world=8", "task.bn_group=8", "network=abci"]
    found = plan.describe_plan(configure.resolve([*words, "compute_seconds=0.1"]))
    projected = found["projected"]
    assert projected["gradient_bytes"]["sent"] == found["gradient_bytes_per_step"]["each"] > 0
    assert sum(projected["gradient_bytes"]["by_level"].values()) == projected["gradient_bytes"]["sent"]
    assert (projected["hosts"], projected["ranks_per_host"]) == (2, 4), "abci's, where the run says auto"
    times = projected["step_seconds"]
    assert times["sync"] >= max(times["overlap"], times["stale"]) >= 0.1
    if optimizer == "sgd":  # K-FAC's refreshes take time of their own
        assert times["overlap"] >= times["stale"]
        assert times["sync"] == pytest.approx(0.1 + projected["communication_seconds"])


@pytest.mark.parametrize(("codec", "symmetric"), [("float32", False), ("float21", True)])
@pytest.mark.parametrize("topology", ["flat", "two_level", "leader"])
def test_kfac_is_counted_as_it_sends(topology: str, codec: str, symmetric: bool) -> None:
    """Bytes of simulated ranks' ledgers, by name, in a step that refreshes, and in one that inverts only."""
    factors = {
        "codec": {"module": f"suite.comm.codecs.{codec}"},
        "algorithm": {"module": "suite.comm.algorithms.all_to_all"},
        "symmetric": symmetric,
    }
    comm = engines.comm(topology=topology, ranks_per_host=2, factors=factors)
    shapes = {"fc.weight": (2, 3), "fc.bias": (2,), "last.weight": (2, 2)}
    layers = kfacs.LINEAR | {"last": kfacs.Layer("linear", ("last.weight",))}
    options = {"factor_interval": 4, "inverse_interval": 2, "fisher": "empirical"}

    class Task:
        def layers(self) -> Any:
            return layers

        def shapes(self) -> Any:
            return {name: type("Spec", (), {"kind": "parameter", "shape": shape}) for name, shape in shapes.items()}

    run = engines.config("kfac", "torch", comm=comm, world=4, precision="float32", hyper=options)
    channels = setup.make_channels(comm, Task(), 4, "torch")  # type: ignore[arg-type]
    given = {side: kfacs.factor(size) for side, size in (("fc/in", 4), ("fc/out", 2), ("last/in", 2), ("last/out", 2))}

    def body(transport: Any) -> dict[int, dict[str, int]]:
        one = kfacs.Torch("float32", layers, shapes, world=4, **options)
        sent = {}
        for step in (0, 1, 2):
            transport.ledger.sent.clear()
            one.refresh(step, given, reduce=Reduce(transport, channels))
            sent[step] = {name: transport.ledger.sent.get(name, 0) for name in ("factor", "inverse")}
        return sent

    ledgers = simulate(body, 4, channels.locals)
    cycle = project.list_refreshes(run, Task())  # type: ignore[arg-type]
    assert cycle is not None and len(cycle) == 4 and not cycle[1] and not cycle[3]
    for step in (0, 1, 2):
        there, back = (sum(item.sent for exchange in cycle[step] for item in exchange[way].entries) for way in (1, 2))
        assert ledgers[0][step] == {"factor": there, "inverse": back}, step
        assert bool(there) == (step == 0) and bool(back) == (step != 1)


@pytest.mark.quick
def test_work_is_the_busiest_owners() -> None:
    """Three factors of one side: one rank inverts 3, two ranks at most 2, eight ranks at most 1."""
    layers = {f"l{i}": kfacs.Layer("linear", (f"l{i}",)) for i in range(2)}
    shapes = {"l0": (5, 5), "l1": (7, 5)}
    for world, owners in ((1, (0, 0, 0)), (2, (0, 0, 1)), (8, (0, 1, 2))):
        options = {"factor_interval": 1, "inverse_interval": 1, "fisher": "empirical"}
        [exchanges] = traffic.cycle(layers, shapes, world=world, options=options)
        five = next(one for one in exchanges if one.name == "5")
        assert (five.work, five.total, five.sent, five.side) == (owners.count(0) * 125, 3 * 125, owners, 5)


@pytest.mark.quick
def test_stale_statistics_save_what_the_published_ones_saved() -> None:
    """Bytes and inverses, averaged over a cycle, are those of all factors, times the share that row A2-01 prints."""
    words = ("optimizer=kfac", "optimizer.factor_interval=1", "optimizer.inverse_interval=1", "inverse_seconds=0.1")
    every, stale = (
        projected("network=abci", "compute_seconds=0.1", *words, f"optimizer.stale={said}")
        for said in ("false", "true")
    )
    kept = float(published.find_row("A2-01").details["comm_reduction_pct"]) / 100
    assert stale["optimizer_bytes"]["mean"] / every["optimizer_bytes"]["mean"] == pytest.approx(kept, abs=0.005)
    inverses = [found["one_device_seconds"] - 0.1 for found in (stale, every)]
    assert inverses[0] / inverses[1] == pytest.approx(kept, abs=0.005)
    assert stale["step_seconds"]["sync"] < every["step_seconds"]["sync"]


@pytest.mark.quick
def test_statistics_wait_for_the_layer_that_backward_reaches_last() -> None:
    """Of the same size: the input's factors of both layers. With sampled labels there is another backward pass."""
    layers = {name: kfacs.Layer("linear", (name,)) for name in ("first", "second")}
    shapes = {"first": (3, 5), "second": (7, 5)}
    options = {"factor_interval": 1, "inverse_interval": 1, "fisher": "empirical"}
    [exchanges] = traffic.cycle(layers, shapes, world=2, options=options)
    assert {one.name: one.before for one in exchanges} == {"5": "first", "3": "first", "7": "second"}
    [sampled] = traffic.cycle(layers, shapes, world=2, options=options | {"fisher": "sampled"})
    assert {one.before for one in sampled} == {None}


# ------------------------------------------------------------------------------------------------------ command
WORDS = ("+task=resnet50", "task.bn_group=8", "world=4", "network=1gbit")


def projected(*words: str) -> dict[str, Any]:
    return plan.describe_plan(configure.resolve([*WORDS, *words]))["projected"]


def test_plan_projects(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plan", *WORDS, "compute_seconds=0.1", "device=cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["projected"]
    seconds = 6 * 2.5e-4 + 1.5 * 511_514 * 4 / 1.18e8
    assert found["communication_seconds"] == pytest.approx(seconds, rel=1e-6)
    assert found["step_seconds"]["sync"] == pytest.approx(0.1 + seconds, rel=1e-6)
    assert found["efficiency"]["sync"] == pytest.approx(0.1 / (0.1 + seconds), rel=1e-6)
    assert cli.main(["plan", *WORDS, "device=cpu"]) == 0
    text = capsys.readouterr().out
    assert "projected   1gbit, 4 hosts of 1" in text and "set compute_seconds=SECONDS, or run this first: suite" in text
    assert "task.batch_size=16" in text, "one device's share of 64"


def test_compute_comes_from_one_devices_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(config: Any, *others: Any) -> dict[str, Any] | None:
        alone = config.world == 1 and config.task.batch_size == 16
        found = {"result": "there", "step_seconds": 0.25, "input_share": 0.2, "differs": []}
        return found if alone else None

    monkeypatch.setattr(measured, "find_measured", find)
    planned = plan.describe_plan(configure.resolve(WORDS))
    found, parts = planned["projected"], planned["parts"]["seconds"]
    assert (found["compute_seconds"], found["compute_from"]) == (0.25, "there")
    assert parts["input"] == pytest.approx(0.05) and parts["network"] == pytest.approx(found["communication_seconds"])
    assert projected("compute_seconds=0.5")["compute_seconds"] == 0.5


@pytest.mark.quick
def test_shared_inverses_may_beat_one_device() -> None:
    words = ("optimizer=kfac", "optimizer.factor_interval=1", "optimizer.inverse_interval=1", "network=abci")
    config = [word for word in WORDS if not word.startswith("network")]
    found = plan.describe_plan(configure.resolve([*config, *words, "compute_seconds=0.1", "inverse_seconds=0.1"]))[
        "projected"
    ]
    assert found["one_device_seconds"] == pytest.approx(0.2) and found["efficiency"]["sync"] > 1
    assert found["optimizer_bytes"]["mean"] > 0 and found["optimizer_bytes"]["steps"] == 1
    rarely = ("optimizer=kfac", "optimizer.factor_interval=5", "optimizer.inverse_interval=10", "network=abci")
    seldom = plan.describe_plan(configure.resolve([*config, *rarely, "compute_seconds=0.1", "inverse_seconds=0.1"]))[
        "projected"
    ]
    assert seldom["optimizer_bytes"]["steps"] == 10 and seldom["one_device_seconds"] == pytest.approx(0.11)
    assert seldom["optimizer_bytes"]["mean"] < found["optimizer_bytes"]["mean"] / 5


def test_a_projection_is_no_part_of_the_run() -> None:
    found, bare = (plan.describe_plan(configure.resolve([*WORDS[:3], *more])) for more in (["network=1gbit"], []))
    assert found["hash"] == bare["hash"] and found["config"] == bare["config"]
    assert found["projected"] and bare["projected"] is None


def test_one_device_sends_nothing() -> None:
    found = projected("world=1", "compute_seconds=0.1")
    assert found["communication_seconds"] == 0 and set(found["efficiency"].values()) == {1.0}


def test_statistics_travel_during_backward_where_gradients_do() -> None:
    """Bytes are the same; `overlap` hides some that it would not if statistics waited for all gradients."""
    words = ["+task=resnet50", "task.bn_group=8", "world=4", "network=1gbit", "optimizer=kfac", "compute_seconds=1.0"]
    words += ["optimizer.factor_interval=1", "optimizer.inverse_interval=1", "comm=kfac_overlap"]
    early = plan.describe_plan(configure.resolve(words))["projected"]
    late = plan.describe_plan(configure.resolve([*words, "optimizer.fisher=sampled"]))["projected"]
    assert early["optimizer_bytes"] == late["optimizer_bytes"]
    assert early["step_seconds"]["sync"] == pytest.approx(late["step_seconds"]["sync"])
    assert early["step_seconds"]["overlap"] < 0.95 * late["step_seconds"]["overlap"]


def test_what_a_host_sends_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """An all-to-all of the ranks of 2 hosts of 4 sends each rank's half for the other host; two levels add up first."""
    words = ["+task=resnet50", "optimizer=sgd", "world=8", "task.bn_group=8", "network=abci", "comm.piece_kib=0"]
    size = 4 * 511_514
    way = "comm.algorithm.module=suite.comm.algorithms"
    flat, ring, levels, native = (
        plan.describe_plan(configure.resolve([*words, *more]))["projected"]["host_bytes"]
        for more in ([f"{way}.all_to_all"], [f"{way}.ring"], ["comm=hierarchical", "comm.codec=float32"], [])
    )
    assert flat == pytest.approx((4 * 4 + 7) / 8 * size, rel=1e-3)
    assert ring == pytest.approx(2 * 7 / 8 * size, rel=1e-3) and native == pytest.approx(ring, rel=1e-3)
    assert levels == pytest.approx(size, rel=1e-3)
    assert cli.main(["plan", *words, f"{way}.ring", "device=cpu"]) in (0, 1)
    said = "bytes a step from all 4 ranks of a host to other hosts"
    text = capsys.readouterr().out
    assert f"{said}: {ring:,.0f}\n" in text and "an all-to-all" not in text
    assert cli.main(["plan", *words, f"{way}.all_to_all", "device=cpu"]) in (0, 1)
    assert f"{said}: {flat:,.0f}; every rank sends its own values, by an all-to-all" in capsys.readouterr().out
    assert projected("optimizer=shampoo")["host_bytes"] is None


def test_optimizers_that_cannot_say_are_named() -> None:
    assert projected("optimizer=shampoo")["optimizer_bytes"] is None
    assert projected("optimizer=sgd")["optimizer_bytes"]["mean"] == 0


def test_a_run_refuses_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["+task=resnet50", "network=abci"]) == 2
    assert "only `suite plan` projects" in capsys.readouterr().err
    assert cli.main(["tune", "+task=resnet50", "network=abci", "trials=1"]) == 2
    assert "only `suite plan` projects" in capsys.readouterr().err
    assert cli.main(["plan", "+task=resnet50", "network=abc"]) == 2
    assert "did you mean abci?" in capsys.readouterr().err
    assert cli.main(["plan", "+task=resnet50", "compute_seconds=1"]) == 2
    assert "set network= as well" in capsys.readouterr().err
    assert cli.main(["+task=resnet50", "inverse_seconds=1"]) == 2
    assert "set network= as well" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("network.outer.bandwidth=0", "network.outer"),
        ("network.inner.latency=-1", "network.inner"),
        ("network.codec=0", "network.codec=0"),
        ("network.all_reduce=star", "must be one of ring, tree"),
        ("network.all_gather=star", "must be one of ring, pairs"),
        ("network.contention=-1", "network.contention=-1"),
        ("inverse_seconds=1", "set compute_seconds="),
        ("network.ranks_per_host=3", "comm.ranks_per_host=3"),
    ],
)
def test_a_network_that_cannot_be(word: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        projected(word)


@pytest.mark.parametrize("name", load.list_options("network"))
def test_presets_are_whole_and_say_where_numbers_are_from(name: str) -> None:
    where = network.make_network(configure.resolve(["+task=resnet50", f"network={name}"]).network)
    assert where.name == name and where.outer.bandwidth <= where.inner.bandwidth
    path = next(path for path in load.find_files("network") if path.stem == name)
    for line in path.read_text().splitlines():
        if line.strip().startswith(("latency:", "bandwidth:", "codec:")) and "{" not in line:
            assert "#" in line, line
