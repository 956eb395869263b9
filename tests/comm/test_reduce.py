"""Algorithms and topologies: torch = jax, all ranks equal, what is promised of integers, of bytes and of residuals."""

import math
from dataclasses import replace
from typing import Any

import coded
import engines
import jax
import numpy as np
import pytest
import torch
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from suite import communication
from suite.comm.channel import Channels
from suite.comm.reduce.jax import Reduce as InJax
from suite.comm.reduce.torch import Reduce as InTorch
from suite.comm.transport.jax import AXIS
from suite.comm.transport.jax import Transport as OnMesh
from suite.comm.transport.jax_sim import simulate as in_jax
from suite.comm.transport.torch_sim import simulate as in_torch
from suite.contract import UserError

WORLD = 4
SHAPES = {"a": (5, 3), "b": (7,), "c": (), "d": (2, 4)}  # 31 values: no multiple of the world
ALGORITHMS = ("native", "gather", "all_to_all", "ring")
TOPOLOGIES = ("flat", "two_level", "leader")
WAYS = [(algorithm, topology) for algorithm in ALGORITHMS for topology in TOPOLOGIES]
KEY = (3, 5)
ALL_TO_ALL = {"module": "suite.comm.algorithms.all_to_all"}


def channels(backend: str | None, topology: str = "flat", **changes: Any) -> Channels:
    """Of a task that has the parameters of SHAPES, no layers."""

    class Task:
        layers = staticmethod(dict)
        shapes = staticmethod(
            lambda: {name: type("Spec", (), {"kind": "parameter", "shape": s}) for name, s in SHAPES.items()}
        )

    node = engines.comm(topology=topology, ranks_per_host=2, **changes)
    return communication.channels(node, Task(), WORLD, backend)  # type: ignore[arg-type]


def gradients(step: int = 0, whole: bool = False) -> dict[str, np.ndarray]:
    """Every rank's, (world, …)."""
    generator = np.random.default_rng(step)
    drawn = {name: generator.normal(size=(WORLD, *shape)) for name, shape in SHAPES.items()}
    return {name: (np.round(8 * v) * WORLD if whole else 1e-3 * v).astype(np.float32) for name, v in drawn.items()}


def by_torch(made: Channels, each: list[dict[str, np.ndarray]]) -> tuple[list[dict[str, np.ndarray]], Any, Any]:
    """Rank by rank: the means after several rounds, the residuals, the ledgers."""

    def body(transport: Any) -> Any:
        reduce = InTorch(transport, made)
        reduce.key = KEY
        means = []
        for values in each:
            own = {name: torch.tensor(value[transport.rank]) for name, value in values.items()}
            means.append({name: value.numpy() for name, value in reduce.mean("gradients", own).items()})
        return means, {name: value.numpy() for name, value in reduce.state.items()}, transport.ledger

    found = in_torch(body, WORLD, made.locals)
    assert all(
        np.array_equal(one[name], other[name])
        for means, _, _ in found
        for one, other in zip(means, found[0][0], strict=True)
        for name in SHAPES
    ), "ranks hold different bits"
    return found[0][0], [state for _, state, _ in found], [ledger for _, _, ledger in found]


def by_jax(made: Channels, each: list[dict[str, np.ndarray]]) -> tuple[list[dict[str, np.ndarray]], Any, Any]:
    """The same over four devices: residuals by name (world, …), and one trace's entries."""
    if len(jax.devices()) < WORLD:
        pytest.skip("fewer than four jax devices: jax was imported before the tests could ask for them")
    sent: list[Any] = []

    def body(values: Any, state: Any) -> Any:
        transport = OnMesh(WORLD, made.locals)
        reduce = InJax(transport, made, state=state, key=np.asarray(KEY, np.uint32))
        found = reduce.mean("gradients", {name: value[0] for name, value in values.items()})
        sent.append(transport.entries)
        return {name: value[None] for name, value in found.items()}, reduce.state

    mesh = Mesh(np.array(jax.devices()[:WORLD]).reshape(-1, made.locals or WORLD), AXIS)
    run = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False))
    means, state = [], {}
    for values in each:
        found, state = run(values, state)
        ranks = {name: np.asarray(value) for name, value in found.items()}
        assert all((value == value[:1]).all() for value in ranks.values()), "ranks hold different bits"
        means.append({name: value[0] for name, value in ranks.items()})
    return means, {name: np.asarray(value) for name, value in state.items()}, sent[-1]


def both(each: list[dict[str, np.ndarray]], **changes: Any) -> list[Any]:
    return [run(channels(name, **changes), each) for name, run in (("torch", by_torch), ("jax", by_jax))]


@pytest.mark.parametrize("algorithm, topology", WAYS)
def test_exact_codecs_give_the_mean_and_hosts_do_not_matter(algorithm: str, topology: str) -> None:
    """Whole numbers have no order of summation: every way gives the same bits."""
    values = gradients(whole=True)
    expected = {name: value.sum(0) / WORLD for name, value in values.items()}
    for backend, run in (("torch", by_torch), ("jax", by_jax)):
        made = channels(backend, topology, algorithm=algorithm)
        if (backend, algorithm, topology) == ("jax", "native", "leader"):
            with pytest.raises(UserError, match="type comm"):
                run(made, [values])
            continue
        [means], _, _ = run(made, [values])
        assert all(np.array_equal(means[name], expected[name]) for name in SHAPES), backend


@pytest.mark.parametrize("key", coded.NODES)
@pytest.mark.parametrize("algorithm", ["gather", "all_to_all", "ring"])
def test_backends_reduce_to_the_same_bits(key: str, algorithm: str) -> None:
    """Two rounds with error feedback, in one bucket each tensor: means and residuals."""
    changes = {"codec": coded.NODES[key], "algorithm": algorithm, "feedback": True, "bucket_mib": 0}
    (ours, states, _), (theirs, state, _) = both([gradients(0), gradients(1)], **changes)
    for one, other in zip(ours, theirs, strict=True):
        assert all(np.array_equal(one[name].view(np.uint32), other[name].view(np.uint32)) for name in SHAPES)
    assert states[0].keys() == state.keys() != set()
    for name, value in state.items():
        assert np.array_equal(np.stack([rank[name] for rank in states]), value), name


@pytest.mark.parametrize("key", coded.NODES)
@pytest.mark.parametrize("algorithm, topology", [way for way in WAYS if way[0] != "native"])
def test_what_was_sent_and_what_is_remembered_is_the_sum_of_gradients(
    key: str, algorithm: str, topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several steps, over all ranks, hops and levels: nothing is lost, it only comes later."""
    node = coded.NODES[key]
    ones = np.ones(17, np.float32) * (np.arange(17) > 0)
    if (made := coded.halves(node)["numpy"]).decode(made.encode(ones), ones)[0] != 0:
        # zeros that fill chunks up do not come back as zeros: they are dropped, but what they lost is remembered
        monkeypatch.setitem(globals(), "SHAPES", {"a": (4, 3), "b": (8,), "c": (4,), "d": (2, 4)})
    changes = {"codec": node, "inner": node, "algorithm": algorithm, "feedback": True, "bucket_mib": 0}
    each = [gradients(step) for step in range(5)]
    means, states, _ = by_torch(channels("torch", topology, **changes), each)
    sent = sum(float(mean[name].astype(np.float64).sum()) for mean in means for name in SHAPES)
    remembered = sum(float(kept_sum(name, value, topology)) for state in states for name, value in state.items())
    expected = sum(float(value.astype(np.float64).sum()) / WORLD for values in each for value in values.values())
    scale = sum(float(np.abs(value).sum()) for values in each for value in values.values())
    assert abs(sent + remembered - expected) <= 2e-6 * scale


def kept_sum(name: str, value: np.ndarray, topology: str) -> float:
    """What a residual will add to the mean when it is sent.

    Before a division by the number of ranks that take part it counts that much less; what an owner of a chunk, a host
    or a leader keeps of a mean counts whole, once.
    """
    total = float(value.astype(np.float64).sum())
    inner, outer = "/inner/" in name, "/outer/" in name
    ranks = 2 if inner or outer else WORLD
    first = name.endswith(("worker", "owners")) or "hop" in name.rpartition("/")[2]
    if topology == "leader" and outer:
        return total / ranks if first else total  # only leaders have these
    if inner:
        if topology == "leader":
            return total / WORLD if first else total / 2  # a host's broadcast goes to that host only: half of the ranks
        return total / WORLD if first else total / 2
    if outer:
        return total / ranks if first else total
    return total / ranks if first else total


@pytest.mark.parametrize("key", ["float32", "float21"])
@pytest.mark.parametrize("algorithm, topology", WAYS)
def test_the_ledger_counts_what_is_planned(key: str, algorithm: str, topology: str) -> None:
    """One rule for bytes: rank 0's ledger in torch, a trace in jax, and the formula that plans."""
    if algorithm == "native" and (key == "float21" or topology == "leader"):
        return
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
        {"uint8"} if lossy or algorithm != "native" else {"float32"}
    )


def levels(entries: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in entries:
        found[entry.level] = found.get(entry.level, 0) + entry.sent
    return found


def test_owners_get_their_rows_and_give_them_back() -> None:
    """`to_owners` and `gather`, flat and by hosts, to the same bits in both backends; statistics in float21."""
    stack = (8 * np.random.default_rng(0).normal(size=(WORLD, WORLD * 2, 3, 3))).round().astype(np.float32) * WORLD
    mean = stack.sum(0) / WORLD
    for topology in TOPOLOGIES:
        for codec in ("float32", "float21"):
            factors = {"symmetric": True, "codec": {"module": f"suite.comm.codecs.{codec}"}, "algorithm": ALL_TO_ALL}

            made = channels("torch", topology, factors=factors)

            def one(transport: Any, made: Channels = made) -> Any:
                reduce = InTorch(transport, made)
                mine = reduce.to_owners("factor", torch.from_numpy(stack[transport.rank]))
                return mine.numpy(), reduce.gather("inverse", mine).numpy()

            for rank, (mine, whole) in enumerate(in_torch(one, WORLD, 2 if topology != "flat" else None)):
                assert np.array_equal(mine, mean[2 * rank : 2 * rank + 2])
                assert np.array_equal(whole, mean)


def test_a_thousand_ranks_in_one_program() -> None:
    """The same code over `vmap`: the error of a mean belongs to the algorithm, not to the codec alone."""
    world, count = 1024, 2048
    values = np.stack([coded.samples(count, seed) for seed in range(world)])
    exact = values.astype(np.float64).mean(0)
    node = {"codec": coded.NODES["bfloat16"]}
    errors = {}
    for algorithm in ("gather", "all_to_all"):
        made = channels("jax", algorithm=algorithm, **node)

        def one(transport: Any, value: Any, made: Any = made) -> Any:
            ways = InJax(transport, made, state={}, key=(0, 0))._ways(made.default)
            return made.default.topology.mean("gradients", value, **ways)

        found = np.asarray(in_jax(one, values))
        assert (found == found[0]).all()
        errors[algorithm] = float(np.linalg.norm(found[0] - exact) / np.linalg.norm(exact))
    assert 0 < errors["gather"] < errors["all_to_all"] < 5e-3


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
        communication.channels(engines.comm(**changes), engines.tiny(), WORLD, "torch")


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
