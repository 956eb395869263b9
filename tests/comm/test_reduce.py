"""Algorithms and topologies: torch = jax, all ranks equal, what is promised of integers, of bytes and of residuals."""

import math
from dataclasses import replace
from typing import Any

import coded
import engines
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from reducing import (
    COUNTED,
    KEY,
    SHAPES,
    TOPOLOGIES,
    WAYS,
    WORLD,
    both,
    by_jax,
    by_torch,
    channels,
    gradients,
    levels,
    nothing_is_lost,
)
from sampling import sampled
from simulated_jax import simulate as in_jax
from simulated_torch import simulate as in_torch

from suite.comm import setup
from suite.comm.channel import Channels
from suite.comm.reduce import as_mean, traffic
from suite.comm.reduce.jax import Reduce as InJax
from suite.comm.reduce.torch import Reduce as InTorch
from suite.comm.transport.jax import AXIS
from suite.comm.transport.jax import Transport as OnMesh
from suite.contract import UserError
from suite.optimizers._plan import assign_owners

ALL_TO_ALL = {"module": "suite.comm.algorithms.all_to_all"}
IN_JAX = [("all_to_all", "flat"), ("ring", "flat"), ("all_to_all", "two_level"), ("gather", "leader")]


@pytest.mark.parametrize("algorithm, topology", WAYS)
def test_exact_codecs_give_the_mean_and_hosts_do_not_matter(algorithm: str, topology: str) -> None:
    """Whole numbers have no order of summation: every way gives the same bits."""
    values = gradients(whole=True)
    expected = {name: value.sum(0) / WORLD for name, value in values.items()}
    for backend, run in (("torch", by_torch), ("jax", by_jax)):
        made = channels(backend, topology, algorithm=algorithm)
        if (backend, algorithm, topology) == ("jax", "native", "leader"):
            with pytest.raises(UserError, match="set comm"):
                run(made, [values])
            continue
        [means], _, _ = run(made, [values])
        assert all(np.array_equal(means[name], expected[name]) for name in SHAPES), backend


@pytest.mark.sample(4, keep=("int8-all_to_all",))
@pytest.mark.parametrize("key, algorithm", sampled(coded.NODES, ["gather", "all_to_all", "ring"]))
def test_backends_reduce_to_the_same_bits(key: str, algorithm: str) -> None:
    """Two rounds with error feedback, in one bucket each tensor: means and residuals."""
    changes = {"codec": coded.NODES[key], "algorithm": algorithm, "feedback": True, "bucket_mib": 0}
    (ours, states, _), (theirs, state, _) = both([gradients(0), gradients(1)], **changes)
    for one, other in zip(ours, theirs, strict=True):
        assert all(np.array_equal(one[name].view(np.uint32), other[name].view(np.uint32)) for name in SHAPES)
    assert states[0].keys() == state.keys() != set()
    for name, value in state.items():
        assert np.array_equal(np.stack([rank[name] for rank in states]), value), name


@pytest.mark.sample(8)
@pytest.mark.quick
@pytest.mark.parametrize(
    "key, algorithm, topology", sampled(coded.NODES, [tuple(way) for way in WAYS if way[0] != "native"])
)
def test_what_was_sent_and_what_is_remembered_is_the_sum_of_gradients(key: str, algorithm: str, topology: str) -> None:
    """Of every value, over several steps, over all ranks, hops and levels: nothing is lost, it only comes later."""
    node = coded.NODES[key]
    changes = {"codec": node, "inner": node, "algorithm": algorithm, "feedback": True, "bucket_mib": 0}
    made, each = channels("torch", topology, **changes), [gradients(step) for step in range(5)]
    nothing_is_lost(made, each, by_torch(made, each), topology)


@pytest.mark.sample(2)
@pytest.mark.parametrize("key", ["float21", "onebit"])
@pytest.mark.parametrize("algorithm, topology", [pytest.param(*IN_JAX[0], marks=pytest.mark.quick), *IN_JAX[1:]])
def test_nothing_is_lost_in_jax_either(key: str, algorithm: str, topology: str) -> None:
    node = coded.NODES[key]
    made = channels("jax", topology, codec=node, inner=node, algorithm=algorithm, feedback=True)
    each = [gradients(step) for step in range(4)]
    nothing_is_lost(made, each, by_jax(made, each), topology)


@pytest.mark.sample(6)
@pytest.mark.parametrize("key, algorithm, topology", COUNTED)
def test_the_ledger_counts_what_is_planned(key: str, algorithm: str, topology: str) -> None:
    """One rule for bytes: rank 0's ledger in torch, a trace in jax, and the formula that plans."""
    if algorithm == "native" and (key == "float21" or topology == "leader"):
        pytest.skip("native all-reduces send plain floats and know no leaders")
    changes = {"codec": coded.NODES[key], "algorithm": algorithm, "topology": topology}
    (_, _, ledgers), (_, _, entries) = both([gradients()], **changes)
    made = channels(None, **changes)
    planned = [
        entry
        for _, channel, members in made.buckets({name: 4 for name in SHAPES})
        for entry in channel.topology.traffic(
            "gradients",
            sum(math.prod(SHAPES[name]) for name in members),
            channel=channel,
            itemsize=4,
            world=WORLD,
            locals=made.locals,
        )
    ]
    assert ledgers[0].total == sum(e.sent for e in entries) == sum(e.sent for e in planned) > 0
    assert ledgers[0].levels == levels(entries) == levels(planned)
    lossy = key == "float21"
    assert {e.dtype for e in entries if e.level != "inner"} == (
        {"uint32"} if lossy or algorithm != "native" else {"float32"}
    )


OWNERS = {  # how rows go, and how many of them are a rank's
    "two each": (0, 0, 1, 1, 2, 2, 3, 3),
    "the last has fewer": (0, 0, 1, 1, 2, 2, 3),
    "in any order": (3, 0, 2, 2, 1, 3),
    "fewer rows than ranks": (1,),
    "one has all": (2, 2, 2),
}
SENT_AS_MEAN = ("fewer rows than ranks", "one has all")  # in slices most would be padding


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind, topology", sampled(OWNERS, TOPOLOGIES))
def test_owners_get_their_rows_and_give_them_back(kind: str, topology: str) -> None:
    """`to_owners` and `gather` to the same bits in both backends, exact and coded; nobody's rows do not travel."""
    owners = OWNERS[kind]
    drawn = np.random.default_rng(0).normal(size=(WORLD, len(owners), 3, 3))
    stack = (8 * drawn).round().astype(np.float32) * WORLD
    mean = stack.sum(0) / WORLD
    for codec in ("float32", "float21", "int8"):  # whole numbers are exact in the first two
        off = 2 * np.abs(stack).max() / 127 if codec == "int8" else 0.0
        factors = {"codec": {"module": f"suite.comm.codecs.{codec}"}, "algorithm": ALL_TO_ALL, "symmetric": False}
        in_both = [owned(name, channels(name, topology, factors=factors), stack, owners) for name in ("torch", "jax")]
        for shares, wholes, entries in in_both:
            own = {rank: [row for row, owner in enumerate(owners) if owner == rank] for rank in range(WORLD)}
            for rank, rows in own.items():
                assert np.allclose(shares[rank][: len(rows)], mean[rows], rtol=0, atol=off)
                assert not shares[rank][len(rows) :].any()
                assert np.allclose(wholes[rank], mean, rtol=0, atol=off)
                assert np.array_equal(wholes[rank], in_both[0][1][0])
            planned = [ways(topology, codec, owners, back=back) for back in (False, True)]
            assert entries == [sum(item.sent for item in way) for way in planned]
            assert as_mean(owners, WORLD) == (kind in SENT_AS_MEAN)


@pytest.mark.parametrize("kind", SENT_AS_MEAN)
def test_a_stack_stays_as_it_was(kind: str) -> None:
    """An optimizer's own arrays are copied first, because the network sums in place."""
    native = {"module": "suite.comm.algorithms.native"}
    made = channels("torch", factors={"algorithm": native, "symmetric": False})

    def body(transport: Any) -> bool:
        stack = torch.full((len(OWNERS[kind]), 3, 3), float(transport.rank))
        InTorch(transport, made).to_owners("factor", stack, OWNERS[kind])
        return bool((stack == transport.rank).all())

    assert all(in_torch(body, WORLD, made.locals))


def ways(topology: str, codec: str, owners: tuple[int, ...], *, back: bool, world: int = WORLD, count: int = 9) -> Any:
    factors = {"codec": {"module": f"suite.comm.codecs.{codec}"}, "algorithm": ALL_TO_ALL, "symmetric": False}
    made = channels(None, topology, factors=factors)
    how = {"channel": made.factors, "itemsize": 4, "world": world, "locals": made.locals}
    return traffic("factor", owners, count, back=back, **how)


def owned(backend: str, made: Channels, stack: np.ndarray, owners: tuple[int, ...]) -> Any:
    """Every rank's share and what it gets back, and the bytes that rank 0 sent there and back."""
    spoilt = float("inf")  # what stands in a slice beside its rows must not travel

    def in_threads(transport: Any) -> Any:
        reduce, each = InTorch(transport, made), []
        mine = reduce.to_owners("factor", torch.from_numpy(stack[transport.rank]), owners)
        each.append(transport.ledger.total)
        own = sum(owner == transport.rank for owner in owners)
        whole = reduce.gather("inverse", torch.cat([mine[:own], mine[own:] + spoilt]), owners)
        return mine.numpy(), whole.numpy(), [*each, transport.ledger.total - each[0]]

    if backend == "torch":
        shares, wholes, sent = zip(*in_torch(in_threads, WORLD, made.locals), strict=True)
        return shares, wholes, sent[0]
    if len(jax.devices()) < WORLD:
        pytest.skip("fewer than four jax devices: jax was imported before the tests could ask for them")
    entries: list[Any] = []

    def on_mesh(value: Any) -> Any:
        transport = OnMesh(WORLD, made.locals)
        reduce = InJax(transport, made, state={}, key=np.asarray(KEY, np.uint32))
        mine = reduce.to_owners("factor", value[0], owners)
        entries.append(sum(item.sent for item in transport.entries))
        own = reduce.mine(jnp.ones(len(owners)), owners)
        whole = reduce.gather("inverse", jnp.where(own[:, None, None] > 0, mine, spoilt), owners)
        entries.append(sum(item.sent for item in transport.entries) - entries[0])
        return mine[None], whole[None]

    mesh = Mesh(np.array(jax.devices()[:WORLD]).reshape(-1, made.locals or WORLD), AXIS)
    run = jax.jit(jax.shard_map(on_mesh, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False))
    shares, wholes = run(stack)
    return np.asarray(shares), np.asarray(wholes), entries


@pytest.mark.quick
def test_many_ranks_send_no_more_than_twice_what_owners_need() -> None:
    """A hundred matrices of ten sizes: over a thousand ranks no more than over eight, each way."""
    sizes = range(10, 110, 10)
    needed = sum(10 * 4 * size**2 for size in sizes)
    for world in (2, 8, 64, 1024):
        owners = assign_owners(10, world)
        for back in (False, True):
            each = [ways("flat", "float32", owners, back=back, world=world, count=size**2) for size in sizes]
            filler = 2 * 4 * world * len(sizes)  # an all-reduce rounds up to a value for each rank
            assert sum(item.sent for entries in each for item in entries) <= 2 * needed + filler


def simulated(values: np.ndarray, locals: int | None = None, **changes: Any) -> np.ndarray:
    """Return the mean that all of many ranks in one jax program hold."""
    made = channels("jax", **changes)

    def one(transport: Any, value: Any) -> Any:
        ways = InJax(transport, made, state={}, key=(0, 0))._parts(made.default)
        return made.default.topology.mean("gradients", value, **ways)

    found = np.asarray(in_jax(one, values, locals))
    assert (found == found[0]).all()
    return found[0]


def off(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def test_a_thousand_ranks_in_one_program() -> None:
    """A mean's error depends on the algorithm, not on the codec alone; the same code runs over `vmap`."""
    values = np.stack([coded.samples(2048, seed) for seed in range(1024)])
    exact = values.astype(np.float64).mean(0)
    error = {name: off(simulated(values, codec="bfloat16", algorithm=name), exact) for name in ("gather", "all_to_all")}
    assert 0 < error["gather"] < error["all_to_all"] < 5e-3


def test_hundreds_of_ranks_on_hosts() -> None:
    """512 on 64 hosts: of whole numbers the mean without hosts, bit for bit; with 21 bits between hosts nearly so."""
    values = 512 * np.random.default_rng(0).normal(scale=8, size=(512, 250)).round().astype(np.float32)
    exact, ways = values.astype(np.float64).mean(0), {"topology": "two_level", "algorithm": "all_to_all"}
    assert np.array_equal(simulated(values, 8, **ways), exact)
    assert np.array_equal(simulated(values, algorithm="all_to_all"), exact)
    near = values / np.float32(1000)
    assert 0 < off(simulated(near, 8, codec="float21", **ways), near.astype(np.float64).mean(0)) < 2.0**-11


def test_a_ring_of_64_ranks() -> None:
    """Of whole numbers the mean, bit for bit, by 63 hops one after another in a program."""
    values = 64 * np.random.default_rng(0).normal(scale=8, size=(64, 127)).round().astype(np.float32)
    assert np.array_equal(simulated(values, algorithm="ring"), values.mean(0))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"codec": "float21"}, "its payloads cannot be added up"),
        ({"feedback": True}, "what is rounded off is not known"),
        ({"kinds": {"conv3d": {}}}, "did you mean conv2d"),
        ({"ranks_per_host": 3, "topology": "two_level"}, "is no multiple of it"),
        ({"codec": {"module": "suite.comm.codecs.float21", "bits": 3}}, "comm.codec.bits: float21 has no such option"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        setup.make_channels(engines.comm(**changes), engines.tiny(), WORLD, "torch")


@pytest.mark.parametrize("algorithm", ["gather", "all_to_all", "ring"])
def test_backends_divide_by_three_to_the_same_bits(algorithm: str) -> None:
    """XLA would multiply by a third, which is no number of float32."""
    values = np.random.default_rng(0).normal(size=(3, 1_000)).astype(np.float32)
    made = {name: channels(name, algorithm=algorithm) for name in ("torch", "jax")}

    def ours(transport: Any) -> np.ndarray:
        own = {"a": torch.tensor(values[transport.rank])}
        return InTorch(transport, made["torch"]).mean("gradients", own, gradients=True)["a"].numpy()

    def theirs(value: Any) -> Any:
        reduce = InJax(OnMesh(3), made["jax"], state={}, key=np.asarray(KEY, np.uint32))
        return reduce.mean("gradients", {"a": value[0]}, gradients=True)["a"][None]

    mesh = Mesh(np.array(jax.devices()[:3]).reshape(1, 3), AXIS)
    run = jax.jit(jax.shard_map(theirs, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False))
    assert np.array_equal(np.stack(in_torch(ours, 3)), np.asarray(run(values)))


@pytest.mark.quick
def test_buckets_follow_backward() -> None:
    """Last layer first; a bucket is closed by what fills it, or by what travels otherwise."""
    sizes = {"a": 60, "b": 28, "c": 4, "d": 32}
    whole = channels(None)
    assert [members for _, _, members in whole.buckets(sizes)] == [["d", "c", "b", "a"]]
    assert [m for _, _, m in channels(None, bucket_mib=0).buckets(sizes)] == [["d"], ["c"], ["b"], ["a"]]
    some = channels(None, bucket_mib=33 / 2**20)
    assert [members for _, _, members in some.buckets(sizes)] == [["d", "c"], ["b", "a"]]
    gathered = {"linear": channels(None, algorithm="gather").default}
    split = replace(whole, kinds=gathered, kind_of={"a": "linear", "b": "linear", "c": "other", "d": "linear"})
    assert [members for _, _, members in split.buckets(sizes)] == [["d"], ["c"], ["b", "a"]]
