"""Projections: closed forms by hand, timelines tick by tick, what is counted against what is sent, published times."""

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import conftest
import engines
import kfacs
import numpy as np
import pytest

from suite import cli, communication, configure, fits, load, projection
from suite.comm.projection import cost, network, timeline
from suite.comm.projection.fit import fit, least_squares
from suite.comm.projection.network import Level, Network, Place
from suite.comm.reduce.torch import Reduce
from suite.comm.transport import entry
from suite.comm.transport.torch_sim import simulate
from suite.contract import UserError
from suite.optimizers.kfac import traffic
from suite.verbs import plan

ALPHA, BANDWIDTH = 1e-3, 1e6
LEVEL = Level(ALPHA, BANDWIDTH)
PLAIN = Network("plain", inner=LEVEL, outer=LEVEL, ranks_per_host=1, all_reduce="ring", codec=1e9)
SHARED = replace(PLAIN, inner=Level(1e-5, 1e9), outer=Level(ALPHA, BANDWIDTH, shared=True))
OPERATIONS = ("all_reduce", "all_to_all", "all_gather", "shift", "broadcast", "to_first")
PRESETS = load.options("comm")


def took(operation: str, size: int, place: Place, where: Network, level: str = "flat", **more: Any) -> float:
    return cost.cost(entry(operation, "", "", size, 2, level), place, where, **more).seconds(where)


# ------------------------------------------------------------------------------------------------- closed forms
@pytest.mark.parametrize(
    ("operation", "expected"),
    [  # 4 ranks, 8,000 bytes each: by hand
        ("all_reduce", 6 * ALPHA + 12_000 / BANDWIDTH),
        ("all_to_all", 3 * ALPHA + 6_000 / BANDWIDTH),
        ("all_gather", 3 * ALPHA + 24_000 / BANDWIDTH),
        ("shift", ALPHA + 8_000 / BANDWIDTH),
        ("broadcast", 3 * (ALPHA + 8_000 / BANDWIDTH)),
        ("to_first", 3 * (ALPHA + 8_000 / BANDWIDTH)),
    ],
)
@pytest.mark.parametrize("locals", [1, 4])
def test_one_level_by_hand(operation: str, expected: float, locals: int) -> None:
    assert took(operation, 8_000, Place(4, locals), PLAIN) == pytest.approx(expected, rel=1e-12)


def test_trees_by_hand() -> None:
    tree = replace(PLAIN, all_reduce="tree")
    assert took("all_reduce", 8_000, Place(8, 1), tree) == pytest.approx(6 * ALPHA + 16_000 / BANDWIDTH)
    assert took("all_reduce", 8_000, Place(5, 1), tree) == pytest.approx(6 * ALPHA + 16_000 / BANDWIDTH)
    far = replace(tree, inner=Level(1e-5, 1e9))
    assert took("all_reduce", 8_000, Place(8, 4), far) == pytest.approx(6e-5 + 2 * ALPHA + 16_000 / BANDWIDTH)


def test_two_levels_by_hand() -> None:
    """2 hosts of 4: which links carry what, where a host's ranks share the outer one and where they do not."""
    place = Place(8, 4)
    slow, fast = SHARED.outer, SHARED.inner
    ring = 14 * (0.75 * fast.latency + 0.25 * slow.latency) + 14_000 / slow.bandwidth
    assert took("all_reduce", 8_000, place, SHARED) == pytest.approx(ring), "one rank of each host crosses"
    pairs = 3 * fast.latency + 4 * slow.latency + 4 * 4_000 / slow.bandwidth
    assert took("all_to_all", 8_000, place, SHARED) == pytest.approx(pairs)
    assert took("all_to_all", 8_000, place, SHARED, "outer") == pytest.approx(slow.latency + 16_000 / slow.bandwidth)
    alone = took("all_to_all", 8_000, place, SHARED, "outer", talking=1)
    assert alone == pytest.approx(slow.latency + 4_000 / slow.bandwidth), "only the first rank of each host talks"
    own = replace(SHARED, outer=replace(slow, shared=False))
    assert took("all_to_all", 8_000, place, own, "outer") == pytest.approx(alone)
    memory = replace(SHARED, inner=replace(fast, shared=True))
    assert took("all_reduce", 8_000, place, memory, "inner") == pytest.approx(
        6 * fast.latency + 4 * 12_000 / fast.bandwidth
    )


def test_leaders_talk_alone_until_they_tell() -> None:
    entries = [
        entry("to_first", "", "", 8_000, 4, "inner"),
        entry("all_reduce", "", "", 8_000, 2, "outer"),
        entry("broadcast", "", "", 8_000, 4, "inner"),
        entry("all_reduce", "", "", 8_000, 2, "outer"),
    ]
    inner = 3 * (SHARED.inner.latency + 8_000 / SHARED.inner.bandwidth)
    first, second = (2 * ALPHA + times * 8_000 / BANDWIDTH for times in (1, 4))
    assert cost.seconds(entries, Place(8, 4), SHARED) == pytest.approx(2 * inner + first + second)


def test_codecs_are_paid_where_values_are_coded() -> None:
    """One rank encodes its operand and decodes what it gets."""
    for operation, times in (("all_gather", 5), ("all_to_all", 2), ("all_reduce", 2), ("to_first", 5), ("shift", 2)):
        extra = took(operation, 8_000, Place(4, 1), PLAIN, coded=True) - took(operation, 8_000, Place(4, 1), PLAIN)
        assert extra == pytest.approx(times * 8_000 / PLAIN.codec), operation


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("all_reduce", network.ALL_REDUCES)
def test_one_rank_costs_nothing(operation: str, all_reduce: str) -> None:
    where = replace(PLAIN, all_reduce=all_reduce)
    assert took(operation, 8_000, Place(1, 1), where, coded=True) == 0
    assert took(operation, 8_000, Place(4, 1), where, "inner") == 0, "no other rank on this host"
    assert took(operation, 8_000, Place(4, 4), where, "outer") == 0, "no other host"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("all_reduce", network.ALL_REDUCES)
@pytest.mark.parametrize("level", ["flat", "inner", "outer"])
def test_a_worse_network_takes_longer(operation: str, all_reduce: str, level: str) -> None:
    used = ("inner",) if level == "inner" else ("outer",)
    for shared, place in itertools.product((False, True), (Place(8, 4), Place(6, 2), Place(12, 3))):
        good = replace(PLAIN, inner=Level(1e-4, 1e7, shared), outer=Level(1e-3, 1e6, shared), all_reduce=all_reduce)
        before = took(operation, 8_000, place, good, level)
        for key in ("inner", "outer"):
            link = getattr(good, key)
            for worse in (replace(link, latency=2 * link.latency), replace(link, bandwidth=link.bandwidth / 2)):
                after = took(operation, 8_000, place, replace(good, **{key: worse}), level)
                assert after > before if key in used else after >= before


def test_two_level_beats_flat_on_a_slow_shared_link() -> None:
    """2 hosts of 2 ranks at 200 Mbit/s, 10 MB: a ring's host sends 1.5 times the array, two levels send it once."""
    fast = Level(2.5e-4, 3e9, shared=True)
    where = replace(PLAIN, inner=fast, outer=Level(2.5e-4, 0.96 * 25e6, shared=True))
    seconds = {}
    for name in ("flat", "two_level"):
        node = engines.comm(
            topology=name, ranks_per_host=2, algorithm="all_to_all" if name == "two_level" else "native"
        )
        channel = communication.channel(node, None)
        entries = channel.topology.traffic("", 2_500_000, channel=channel, itemsize=4, world=4, locals=2)
        seconds[name] = cost.seconds(entries, Place(4, 2), where)
    assert seconds["flat"] == pytest.approx(15e6 / 24e6, rel=0.01)
    assert 1.35 < seconds["flat"] / seconds["two_level"] < 1.5


# ----------------------------------------------------------------------------------------------------- timeline
def ticked(forward: int, buckets: list[tuple[int, int]], refreshes: Sequence[Sequence[int]]) -> int:
    """The same step, one unit of time after another: what may start, starts; a line does one thing at a time."""
    device = [("forward", forward, set())] + [(f"b{i}", b, set()) for i, (b, _) in enumerate(buckets)]
    channel = [(f"t{i}", t, {f"b{i}"}) for i, (_, t) in enumerate(buckets)]
    before = {"forward", *(f"b{i}" for i in range(len(buckets))), *(f"t{i}" for i in range(len(buckets)))}
    for i, (there, work, back) in enumerate(refreshes):
        channel.append((f"o{i}", there, before))
        device.append((f"w{i}", work, {f"o{i}"}))
        channel.append((f"g{i}", back, {f"w{i}"}))
        before = {f"g{i}"}
    lines, done, now = [device, channel], set(), 0
    left: list[int | None] = [None, None]
    while any(lines):
        moved = True
        while moved:  # jobs of no length end at once
            moved = False
            for at, line in enumerate(lines):
                if line and left[at] is None and line[0][2] <= done:
                    left[at] = line[0][1]
                if left[at] == 0:
                    done.add(line.pop(0)[0])
                    left[at], moved = None, True
        if not any(lines):
            break
        now += 1
        left = [units - 1 if units is not None else None for units in left]
    return now


def test_overlap_is_what_ticking_finds() -> None:
    draw = random.Random(0)
    hidden = 0
    for _ in range(300):
        buckets = [(draw.randint(0, 4), draw.randint(0, 4)) for _ in range(draw.randint(1, 4))]
        refreshes = [tuple(draw.randint(0, 3) for _ in range(3)) for _ in range(draw.randint(0, 2))]
        forward = draw.randint(0, 3)
        step = timeline.Step(
            forward, [timeline.Bucket(*one) for one in buckets], [timeline.Refresh(*one) for one in refreshes]
        )
        found = timeline.overlap(step)
        assert found == ticked(forward, buckets, refreshes)
        assert max(step.compute, step.travel) <= found <= timeline.sync(step)
        assert timeline.stale(step) <= found
        hidden += found < timeline.sync(step)
    assert hidden > 100


def test_a_step_by_hand() -> None:
    """Compute 3 s: forward 1, backward 1.5 and 0.5. Sends of 1 s each: the first at 2.5, so the second ends at 4.5."""
    step = timeline.step(3.0, [0.75, 0.25], [1.0, 1.0], [timeline.Refresh(0.5, 0.25, 0.125)])
    assert timeline.sync(step) == pytest.approx(5 + 0.875)
    assert timeline.overlap(step) == pytest.approx(4.5 + 0.875)
    assert timeline.stale(step) == pytest.approx(3 + 0.875)


# ---------------------------------------------------------------------------------------------------------- fit
def test_fit_finds_a_level_again() -> None:
    points = [(m, b, m * 5e-6 + b / 1e9) for m, b in ((2, 1e3), (6, 1e6), (14, 1e8), (30, 1e4))]
    found = fit(points, shared=True)
    assert (found.latency, found.bandwidth, found.shared) == (pytest.approx(5e-6), pytest.approx(1e9), True)
    noisy = [(m, b, s * (1 + 0.01 * (-1) ** i)) for i, (m, b, s) in enumerate(points)]
    assert fit(noisy).bandwidth == pytest.approx(1e9, rel=0.03)


def test_fit_of_whole_collectives() -> None:
    """From entries to a level and back to their seconds."""
    true = replace(PLAIN, outer=Level(3e-4, 1.2e8))
    items = [entry(name, "", "", size, 4) for name in ("all_reduce", "all_to_all") for size in (4, 10_000, 10_000_000)]
    asked = [cost.cost(item, Place(4, 1), true) for item in items]
    found = fit([(one.messages[1], one.bytes[1], one.seconds(true)) for one in asked])
    assert (found.latency, found.bandwidth) == (pytest.approx(3e-4), pytest.approx(1.2e8))


def test_fit_refuses_what_tells_nothing() -> None:
    with pytest.raises(UserError, match="measure more sizes"):
        fit([(2, 100, 1e-3)])
    with pytest.raises(UserError, match="do not grow"):
        fit([(2, 1e6, 2e-3), (2, 1e3, 3e-3)])


def test_least_squares_keeps_nothing_below_zero() -> None:
    columns = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert least_squares(columns, np.array([3.0, 5.0, 7.0])) == pytest.approx([1.0, 2.0])
    falling = least_squares(columns, np.array([3.0, 2.0, 1.0]))
    assert falling[1] == 0 and 1 < falling[0] < 3


# ------------------------------------------------------------------------------------------- counted and sent
@pytest.mark.parametrize("preset", PRESETS)
def test_bytes_are_those_of_the_plan(preset: str) -> None:
    words = ["+task=resnet50", "optimizer=sgd", f"comm={preset}", "world=8", "task.bn_group=8", "network=abci"]
    found = plan.plan(configure.compose([*words, "compute_seconds=0.1"]))
    projected = found["projected"]
    assert projected["gradient_bytes"]["sent"] == found["gradient_bytes_per_step"]["each"] > 0
    assert sum(projected["gradient_bytes"]["by_level"].values()) == projected["gradient_bytes"]["sent"]
    assert (projected["hosts"], projected["ranks_per_host"]) == (2, 4), "abci's, where the run says auto"
    times = projected["step_seconds"]
    assert times["sync"] >= times["overlap"] >= times["stale"] >= 0.1
    assert times["sync"] == pytest.approx(0.1 + projected["communication_seconds"])


@pytest.mark.parametrize(("codec", "symmetric"), [("float32", False), ("float21", True)])
@pytest.mark.parametrize("topology", ["flat", "two_level", "leader"])
def test_kfac_is_counted_as_it_sends(topology: str, codec: str, symmetric: bool) -> None:
    """Bytes of simulated ranks' ledgers, by name, in a step that refreshes, and in one that inverts only."""
    node = engines.comm(
        topology=topology, ranks_per_host=2, factors={"codec": {"module": f"suite.comm.codecs.{codec}"}}
    )
    node["factors"] |= {"algorithm": {"module": "suite.comm.algorithms.all_to_all"}, "symmetric": symmetric}
    shapes = {"fc.weight": (2, 3), "fc.bias": (2,), "last.weight": (2, 2)}
    layers = kfacs.LINEAR | {"last": kfacs.Layer("linear", ("last.weight",))}
    options = {"factor_interval": 4, "inverse_interval": 2, "fisher": "empirical"}

    class Task:
        def layers(self) -> Any:
            return layers

        def shapes(self) -> Any:
            return {name: type("Spec", (), {"kind": "parameter", "shape": shape}) for name, shape in shapes.items()}

    config: Any = {"comm": node, "world": 4, "precision": "float32"}
    config["optimizer"] = {"module": "suite.optimizers.kfac", **options}
    channels = communication.channels(node, Task(), 4, "torch")  # type: ignore[arg-type]
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
    cycle = projection.refreshes(config, Task())  # type: ignore[arg-type]
    assert cycle is not None and len(cycle) == 4 and not cycle[1] and not cycle[3]
    for step in (0, 1, 2):
        there, back = (sum(item.sent for exchange in cycle[step] for item in exchange[way].entries) for way in (1, 2))
        assert ledgers[0][step] == {"factor": there, "inverse": back}, step
        assert bool(there) == (step == 0) and bool(back) == (step != 1)


def test_work_is_the_busiest_owners() -> None:
    """Three factors of one side: one rank inverts 3, two ranks at most 2, eight ranks at most 1."""
    layers = {f"l{i}": kfacs.Layer("linear", (f"l{i}",)) for i in range(2)}
    shapes = {"l0": (5, 5), "l1": (7, 5)}
    for world, owners in ((1, (0, 0, 0)), (2, (0, 0, 1)), (8, (0, 1, 2))):
        options = {"factor_interval": 1, "inverse_interval": 1, "fisher": "empirical"}
        [exchanges] = traffic.cycle(layers, shapes, world=world, options=options)
        five = next(one for one in exchanges if one.name == "5")
        assert (five.work, five.total, five.sent, five.side) == (owners.count(0) * 125, 3 * 125, owners, 5)


# ------------------------------------------------------------------------------------------------------ command
WORDS = ("+task=resnet50", "task.bn_group=8", "world=4", "network=1gbit")


def projected(*words: str) -> dict[str, Any]:
    return plan.plan(configure.compose([*WORDS, *words]))["projected"]


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
    assert "projected   1gbit, 4 hosts of 1" in text and "type compute_seconds=SECONDS, or first run: suite" in text
    assert "task.batch_size=16" in text, "one device's share of 64"


def test_compute_comes_from_one_devices_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(config: Any) -> dict[str, Any] | None:
        alone = config["world"] == 1 and config["task"]["batch_size"] == 16
        return {"result": "there", "step_seconds": 0.25, "differs": []} if alone else None

    monkeypatch.setattr(plan, "measured", measured)
    found = projected()
    assert (found["compute_seconds"], found["compute_from"]) == (0.25, "there")
    assert projected("compute_seconds=0.5")["compute_seconds"] == 0.5


def test_shared_inverses_may_beat_one_device() -> None:
    words = ("optimizer=kfac", "optimizer.factor_interval=1", "optimizer.inverse_interval=1", "network=abci")
    config = [word for word in WORDS if not word.startswith("network")]
    found = plan.plan(configure.compose([*config, *words, "compute_seconds=0.1", "inverse_seconds=0.1"]))["projected"]
    assert found["one_device_seconds"] == pytest.approx(0.2) and found["efficiency"]["sync"] > 1
    assert found["optimizer_bytes"] > 0 and found["cycle"] == 1
    rarely = ("optimizer=kfac", "optimizer.factor_interval=5", "optimizer.inverse_interval=10", "network=abci")
    seldom = plan.plan(configure.compose([*config, *rarely, "compute_seconds=0.1", "inverse_seconds=0.1"]))["projected"]
    assert seldom["cycle"] == 10 and seldom["one_device_seconds"] == pytest.approx(0.11)
    assert seldom["optimizer_bytes"] < found["optimizer_bytes"] / 5


def test_a_projection_is_no_part_of_the_run() -> None:
    found, bare = (plan.plan(configure.compose([*WORDS[:3], *more])) for more in (["network=1gbit"], []))
    assert found["hash"] == bare["hash"] and found["config"] == bare["config"]
    assert found["projected"] and bare["projected"] is None


def test_one_device_sends_nothing() -> None:
    found = projected("world=1", "compute_seconds=0.1")
    assert found["communication_seconds"] == 0 and set(found["efficiency"].values()) == {1.0}


def test_optimizers_that_cannot_say_are_named() -> None:
    assert projected("optimizer=shampoo")["optimizer_bytes"] is None
    assert projected("optimizer=sgd")["optimizer_bytes"] == 0


def test_a_run_refuses_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["+task=resnet50", "network=abci"]) == 2
    assert "only `suite plan` projects" in capsys.readouterr().err
    assert cli.main(["tune", "+task=resnet50", "network=abci", "trials=1"]) == 2
    assert "only `suite plan` projects" in capsys.readouterr().err
    assert cli.main(["plan", "+task=resnet50", "network=abc"]) == 2
    assert "did you mean abci?" in capsys.readouterr().err
    assert cli.main(["plan", "+task=resnet50", "compute_seconds=1"]) == 2
    capsys.readouterr()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("network.outer.bandwidth=0", "network.outer"),
        ("network.inner.latency=-1", "network.inner"),
        ("network.codec=0", "network.codec=0"),
        ("network.all_reduce=star", "type one of ring, tree"),
        ("inverse_seconds=1", "give compute_seconds="),
        ("network.ranks_per_host=3", "comm.ranks_per_host=3"),
    ],
)
def test_a_network_that_cannot_be(word: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        projected(word)


@pytest.mark.parametrize("name", load.options("network"))
def test_presets_are_whole_and_say_where_numbers_are_from(name: str) -> None:
    where = network.make(configure.compose(["+task=resnet50", f"network={name}"])["network"])
    assert where.name == name and where.outer.bandwidth <= where.inner.bandwidth
    path = next(path for path in load.files("network") if path.stem == name)
    for line in path.read_text().splitlines():
        if line.strip().startswith(("latency:", "bandwidth:", "codec:")) and "{" not in line:
            assert "#" in line, line


# ---------------------------------------------------------------------------------------------------- published
def test_the_published_table_is_what_the_page_shows() -> None:
    page = (conftest.TESTS.parent / "docs" / "projection.md").read_text()
    assert fits.report() in page, "python -m suite.fits prints the page's tables"


def test_what_is_predicted_takes_no_part_in_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every predicted point ten times as large the predictions stay what they were."""
    before = [point.predicted for point in (*fits.scaling(), *fits.stale(), *fits.ablation())]
    held = {point.row for point in (*fits.scaling(), *fits.stale(), *fits.ablation()) if not point.fitted}
    rows = {row.id: row for row in fits.published.load()}
    for name in held:
        row = rows[name]
        details = {k: 10 * v if k == "time_per_step_s" else v for k, v in row.details.items()}  # type: ignore[operator]
        value = row.value if row.table == "A1" else 10 * float(row.value)
        rows[name] = replace(row, value=value, details=details)
    monkeypatch.setattr(fits.published, "load", lambda: tuple(rows.values()))
    monkeypatch.setattr(fits.published, "row", rows.__getitem__)
    assert len(held) == 28 + 3 + 4
    assert [point.predicted for point in (*fits.scaling(), *fits.stale(), *fits.ablation())] == pytest.approx(before)


def test_the_fitted_model_holds_beyond_its_points() -> None:
    far = [point for point in fits.scaling() if not point.fitted]
    assert max(point.devices or 0 for point in far) == 1024
    assert max(abs(point.error) for point in far) < 0.07
