"""Tests of the cost model of communication: closed forms by hand, timelines tick by tick, fits of known networks."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import engines
import numpy as np
import pytest

from suite.comm import setup
from suite.comm.projection import cost, timeline
from suite.comm.projection.fit import fit_level, least_squares
from suite.comm.projection.network import Level, Network, Place
from suite.comm.settings import NetworkSettings
from suite.comm.transport import make_entry
from suite.contract import UserError

pytestmark = pytest.mark.quick

ALPHA, BANDWIDTH = 1e-3, 1e6
LEVEL = Level(ALPHA, BANDWIDTH)
PLAIN = Network("plain", inner=LEVEL, outer=LEVEL, ranks_per_host=1, all_reduce="ring", codec=1e9)
SHARED = replace(PLAIN, inner=Level(1e-5, 1e9), outer=Level(ALPHA, BANDWIDTH, shared=True))
ALL_REDUCES = NetworkSettings.choices("all_reduce")
OPERATIONS = ("all_reduce", "all_to_all", "all_gather", "shift", "broadcast", "to_first")


def took(operation: str, size: int, place: Place, where: Network, level: str = "flat", **more: Any) -> float:
    return cost.compute_cost(make_entry(operation, "", "", size, 2, level), place, where, **more).seconds(where)


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


def test_the_ledger_counts_what_a_rank_sends_to_all_others() -> None:
    by_hand = {
        "all_reduce": 12_000,
        "all_to_all": 6_000,
        "all_gather": 24_000,
        "shift": 8_000,
        "broadcast": 24_000,
        "to_first": 0,
    }
    assert {operation: make_entry(operation, "", "", 8_000, 4).sent for operation in OPERATIONS} == by_hand
    assert not any(make_entry(operation, "", "", 8_000, 1).sent for operation in OPERATIONS)


@pytest.mark.parametrize(
    ("algorithm", "topology", "sent"),
    [  # 1,000 float32 values on 2 hosts of 2: by hand
        ("native", "flat", {"flat": 6_000}),
        ("gather", "flat", {"flat": 12_000}),
        ("all_to_all", "flat", {"flat": 3_000 + 3_000}),
        ("ring", "flat", {"flat": 3_000 + 3_000}),
        ("all_to_all", "two_level", {"inner": 2_000 + 2_000, "outer": 1_000 + 1_000}),
        ("ring", "leader", {"inner": 0 + 4_000, "outer": 2_000 + 2_000}),
    ],
)
def test_the_plan_counts_what_algorithms_send(algorithm: str, topology: str, sent: dict[str, int]) -> None:
    channel = setup.make_channel(engines.comm(topology=topology, ranks_per_host=2, algorithm=algorithm), None)
    found: dict[str, int] = {}
    for item in channel.topology.traffic("", 1_000, channel=channel, itemsize=4, world=4, locals=2):
        found[item.level] = found.get(item.level, 0) + item.sent
    assert found == sent


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


def test_an_all_gather_by_pairs_crosses_once_for_each_rank() -> None:
    """2 hosts of 4: a ring crosses once for each array, pairs once for each array and each rank that gets it."""
    place, pairs = Place(8, 4), replace(SHARED, all_gather="pairs")
    slow, fast = SHARED.outer, SHARED.inner
    ring = 7 * (0.75 * fast.latency + 0.25 * slow.latency) + 7 * 8_000 / slow.bandwidth
    assert took("all_gather", 8_000, place, SHARED) == pytest.approx(ring)
    expected = 3 * fast.latency + 4 * slow.latency + 4 * 4 * 8_000 / slow.bandwidth
    assert took("all_gather", 8_000, place, pairs) == pytest.approx(expected)
    for level in ("inner", "outer"):
        alone = [took("all_gather", 8_000, place, where, level, talking=1) for where in (SHARED, pairs)]
        assert alone[0] == pytest.approx(alone[1]), "on one level both send the same"


@pytest.mark.parametrize("shared", [False, True])
def test_what_crosses_is_all_of_a_hosts_ranks(shared: bool) -> None:
    """A shared link changes nothing. By hand, 2 hosts of 4, 8,000 bytes each."""
    where = replace(SHARED, outer=replace(SHARED.outer, shared=shared))

    def crossing(operation: str, level: str = "flat") -> float:
        return cost.count_crossing([make_entry(operation, "", "", 8_000, 2, level)], Place(8, 4), where)

    assert crossing("all_reduce") == pytest.approx(14_000)
    assert crossing("all_to_all") == pytest.approx(4 * 4_000)
    assert crossing("all_gather") == pytest.approx(7 * 8_000)
    assert crossing("all_reduce", "outer") == pytest.approx(4 * 8_000), "four groups of two"
    assert crossing("all_to_all", "inner") == 0


def test_leaders_talk_alone_until_they_tell() -> None:
    entries = [
        make_entry("to_first", "", "", 8_000, 4, "inner"),
        make_entry("all_reduce", "", "", 8_000, 2, "outer"),
        make_entry("broadcast", "", "", 8_000, 4, "inner"),
        make_entry("all_reduce", "", "", 8_000, 2, "outer"),
    ]
    inner = 3 * (SHARED.inner.latency + 8_000 / SHARED.inner.bandwidth)
    first, second = (2 * ALPHA + times * 8_000 / BANDWIDTH for times in (1, 4))
    assert cost.sum_seconds(entries, Place(8, 4), SHARED) == pytest.approx(2 * inner + first + second)


def test_codecs_are_paid_where_values_are_coded() -> None:
    """One rank encodes its operand and decodes what it gets."""
    for operation, times in (("all_gather", 5), ("all_to_all", 2), ("all_reduce", 2), ("to_first", 5), ("shift", 2)):
        extra = took(operation, 8_000, Place(4, 1), PLAIN, coded=True) - took(operation, 8_000, Place(4, 1), PLAIN)
        assert extra == pytest.approx(times * 8_000 / PLAIN.codec), operation


@pytest.mark.parametrize("codec", [1e7, 1e5])
def test_pieces_are_coded_while_others_move(codec: float) -> None:
    """A pipeline of two stages, whichever is the slower; what has another name comes after it."""
    where, place = replace(PLAIN, codec=codec), Place(4, 1)
    for operation, times, sent, messages in (("all_gather", 5, 3, 3), ("all_to_all", 2, 0.75, 3), ("shift", 2, 1, 1)):
        whole = make_entry(operation, "a", "", 8_000, 4)
        moving, coding, waiting = sent * 8_000 / BANDWIDTH, times * 8_000 / codec, messages * ALPHA
        one, four = (cost.sum_seconds(count * [whole], place, where, coded=lambda item: True) for count in (1, 4))
        assert one == pytest.approx(waiting + moving + coding)
        assert four == pytest.approx(waiting + 4 * max(moving, coding) + min(moving, coding)), operation
        two = [whole, replace(whole, name="b")]
        assert cost.sum_seconds(two, place, where, coded=lambda item: True) == pytest.approx(2 * one)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("all_reduce", ALL_REDUCES)
def test_one_rank_costs_nothing(operation: str, all_reduce: str) -> None:
    where = replace(PLAIN, all_reduce=all_reduce)
    assert took(operation, 8_000, Place(1, 1), where, coded=True) == 0
    assert took(operation, 8_000, Place(4, 1), where, "inner") == 0, "no other rank on this host"
    assert took(operation, 8_000, Place(4, 4), where, "outer") == 0, "no other host"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("all_reduce", ALL_REDUCES)
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
        channel = setup.make_channel(node, None)
        entries = channel.topology.traffic("", 2_500_000, channel=channel, itemsize=4, world=4, locals=2)
        seconds[name] = cost.sum_seconds(entries, Place(4, 2), where)
    assert seconds["flat"] == pytest.approx(15e6 / 24e6, rel=0.01)
    assert 1.35 < seconds["flat"] / seconds["two_level"] < 1.5


# ----------------------------------------------------------------------------------------------------- timeline
def ticked(forward: int, buckets: list[tuple[int, int]], refreshes: Sequence[Sequence[int]]) -> int:
    """Count the same step's units of time: what may start, starts; a line does one thing at a time."""
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
        found = timeline.project_overlap(step)
        assert found == ticked(forward, buckets, refreshes)
        assert max(step.compute, step.travel) <= found <= timeline.project_sync(step)
        assert timeline.project_double_buffering(step) <= found
        hidden += found < timeline.project_sync(step)
    assert hidden > 100


def test_a_step_by_hand() -> None:
    """Compute 3 s: forward 1, backward 1.5 and 0.5. Sends of 1 s each: the first at 2.5, so the second ends at 4.5."""
    step = timeline.step(3.0, [0.75, 0.25], [1.0, 1.0], [timeline.Refresh(0.5, 0.25, 0.125)])
    assert timeline.project_sync(step) == pytest.approx(5 + 0.875)
    assert timeline.project_overlap(step) == pytest.approx(4.5 + 0.875)
    assert timeline.project_double_buffering(step) == pytest.approx(3 + 0.875)


def test_statistics_travel_once_backward_has_filled_them() -> None:
    """Compute 3 s, as above. Statistics of 1 s are complete after half of backward, at 2.0, and travel until 3.0; the
    gradients follow, until 4.0 and 5.0; then work and the way back."""
    early = timeline.Refresh(1.0, 0.25, 0.125, ready=0.5)
    step = timeline.step(3.0, [0.75, 0.25], [1.0, 1.0], [early])
    assert timeline.project_overlap(step) == pytest.approx(5 + 0.375)
    assert timeline.project_sync(step) == pytest.approx(6 + 0.375)
    at_once = timeline.step(3.0, [0.75, 0.25], [1.0, 1.0], [replace(early, ready=0.75)])
    assert timeline.project_overlap(at_once) == pytest.approx(5.5 + 0.375), "complete with the first bucket, at 2.5"


def test_what_is_hidden_may_cost_more_than_it_saves() -> None:
    """Each second in which the device and the channel are both busy costs `contention`; `sync` has none."""
    for contention in (0.0, 0.5, 1.0, 2.5):
        step = timeline.step(3.0, [0.75, 0.25], [1.0, 0.25], contention=contention)
        free = timeline.step(3.0, [0.75, 0.25], [1.0, 0.25])
        for schedule in (timeline.project_overlap, timeline.project_double_buffering):
            hidden = timeline.project_sync(free) - schedule(free)
            assert hidden > 0
            assert schedule(step) == pytest.approx(schedule(free) + contention * hidden)
        assert timeline.project_sync(step) == timeline.project_sync(free)


# ---------------------------------------------------------------------------------------------------------- fit
def test_fit_finds_a_level_again() -> None:
    points = [(m, b, m * 5e-6 + b / 1e9) for m, b in ((2, 1e3), (6, 1e6), (14, 1e8), (30, 1e4))]
    found = fit_level(points, shared=True)
    assert (found.latency, found.bandwidth, found.shared) == (pytest.approx(5e-6), pytest.approx(1e9), True)
    noisy = [(m, b, s * (1 + 0.01 * (-1) ** i)) for i, (m, b, s) in enumerate(points)]
    assert fit_level(noisy).bandwidth == pytest.approx(1e9, rel=0.03)


def test_fit_of_whole_collectives() -> None:
    """From entries to a level and back to their seconds."""
    true = replace(PLAIN, outer=Level(3e-4, 1.2e8))
    items = [
        make_entry(name, "", "", size, 4) for name in ("all_reduce", "all_to_all") for size in (4, 10_000, 10_000_000)
    ]
    asked = [cost.compute_cost(item, Place(4, 1), true) for item in items]
    found = fit_level([(one.messages[1], one.bytes[1], one.seconds(true)) for one in asked])
    assert (found.latency, found.bandwidth) == (pytest.approx(3e-4), pytest.approx(1.2e8))


def test_fit_refuses_what_tells_nothing() -> None:
    with pytest.raises(UserError, match="measure more sizes"):
        fit_level([(2, 100, 1e-3)])
    with pytest.raises(UserError, match="do not grow"):
        fit_level([(2, 1e6, 2e-3), (2, 1e3, 3e-3)])


def test_least_squares_keeps_nothing_below_zero() -> None:
    columns = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert least_squares(columns, np.array([3.0, 5.0, 7.0])) == pytest.approx([1.0, 2.0])
    falling = least_squares(columns, np.array([3.0, 2.0, 1.0]))
    assert falling[1] == 0 and 1 < falling[0] < 3
