"""Means over four ranks, simulated in torch and on four devices in jax, for the tests of communication."""

from collections.abc import Mapping
from typing import Any

import engines
import jax
import numpy as np
import pytest
import torch
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from simulated_torch import simulate

from suite.comm import setup
from suite.comm.channel import Channels
from suite.comm.reduce.jax import Reduce as InJax
from suite.comm.reduce.torch import Reduce as InTorch
from suite.comm.transport.jax import AXIS
from suite.comm.transport.jax import Transport as OnMesh

Shapes = Mapping[str, tuple[int, ...]]

WORLD, LOCALS = 4, 2
SHAPES = {"a": (5, 3), "b": (7,), "c": (), "d": (2, 4)}  # 31 values: no multiple of the world
ALGORITHMS = ("native", "gather", "all_to_all", "ring")
TOPOLOGIES = ("flat", "two_level", "leader")
WAYS = [(algorithm, topology) for algorithm in ALGORITHMS for topology in TOPOLOGIES]
# plain floats and 21 bits; what both can do is tried with plain floats by `make test-all` only
COUNTED = [
    pytest.param(key, *way, marks=[pytest.mark.slow] if key == "float32" and way[0] != "native" else [])
    for key in ("float32", "float21")
    for way in WAYS
]
KEY = (3, 5)


def channels(backend: str | None, topology: str = "flat", shapes: Shapes = SHAPES, **changes: Any) -> Channels:
    """Of a task that has parameters of these shapes, no layers."""

    class Task:
        layers = staticmethod(dict)
        shapes = staticmethod(
            lambda: {name: type("Spec", (), {"kind": "parameter", "shape": s}) for name, s in shapes.items()}
        )

    node = engines.comm(topology=topology, ranks_per_host=LOCALS, **changes)
    return setup.make_channels(node, Task(), WORLD, backend)  # type: ignore[arg-type]


def gradients(step: int = 0, whole: bool = False, shapes: Shapes = SHAPES) -> dict[str, np.ndarray]:
    """Every rank's, (world, …)."""
    generator = np.random.default_rng(step)
    drawn = {name: generator.normal(size=(WORLD, *shape)) for name, shape in shapes.items()}
    return {name: (np.round(8 * v) * WORLD if whole else 1e-3 * v).astype(np.float32) for name, v in drawn.items()}


def by_torch(made: Channels, each: list[dict[str, np.ndarray]]) -> tuple[list[dict[str, np.ndarray]], Any, Any]:
    """Rank by rank: the means after several rounds, the residuals, the ledgers."""

    def body(transport: Any) -> Any:
        reduce = InTorch(transport, made)
        reduce.key = KEY
        means = []
        for values in each:
            own = {name: torch.tensor(value[transport.rank]) for name, value in values.items()}
            means.append({name: value.numpy() for name, value in reduce.mean("gradients", own, gradients=True).items()})
        return means, {name: value.numpy() for name, value in reduce.state.items()}, transport.ledger

    found = simulate(body, WORLD, made.locals)
    assert all(
        np.array_equal(one[name], other[name])
        for means, _, _ in found
        for one, other in zip(means, found[0][0], strict=True)
        for name in one
    ), "ranks hold different bits"
    return found[0][0], [state for _, state, _ in found], [ledger for _, _, ledger in found]


def by_jax(made: Channels, each: list[dict[str, np.ndarray]]) -> tuple[list[dict[str, np.ndarray]], Any, Any]:
    """Return the same over four devices: residuals by name (world, …), and one trace's entries."""
    if len(jax.devices()) < WORLD:
        pytest.skip("fewer than four jax devices: jax was imported before the tests could ask for them")
    sent: list[Any] = []

    def body(values: Any, state: Any) -> Any:
        transport = OnMesh(WORLD, made.locals)
        reduce = InJax(transport, made, state=state, key=np.asarray(KEY, np.uint32))
        own = {name: value[0] for name, value in values.items()}
        found = reduce.mean("gradients", own, gradients=True)
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
    """Return the results of `by_torch` and `by_jax`."""
    shapes = {name: value.shape[1:] for name, value in each[0].items()}
    made = {name: channels(name, shapes=shapes, **changes) for name in ("torch", "jax")}
    return [by_torch(made["torch"], each), by_jax(made["jax"], each)]


def levels(entries: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in entries:
        found[entry.level] = found.get(entry.level, 0) + entry.sent
    return found


States = list[dict[str, np.ndarray]]


def kept(states: States, name: str, count: int, topology: str = "flat") -> np.ndarray:
    """Return what all ranks' residuals of one array will add to its mean when they are sent, value by value; (count,).

    Before a division by the number of ranks that take part a residual counts that much less; what an owner of a chunk
    keeps of a mean counts whole, and what a host's ranks keep of it as their host's share. What fills up a last chunk
    is remembered, too, but belongs to no value.
    """
    if topology == "leader":  # every rank would be told something, but only leaders' words go out
        leaders = states[::LOCALS]
        up = sum(state[f"{name}/inner/worker"][0] for state in states) / WORLD
        down = sum(state[f"{name}/inner/server"][0] for state in leaders) / len(leaders)
        return up + down + kept(leaders, f"{name}/outer", count)
    parts = LOCALS if topology == "two_level" else len(states)
    chunks = np.zeros((parts, -(-count // parts)))
    if topology == "two_level":
        for rank, state in enumerate(states):
            chunks += state[f"{name}/inner/owners"] / WORLD
            chunks[rank % LOCALS] += state[f"{name}/inner/gather"][0] / (WORLD // LOCALS)
        for local, chunk in enumerate(chunks):
            chunk += kept(states[local::LOCALS], f"{name}/outer", chunk.size)
        return chunks.reshape(-1)[:count]
    ring, values = f"{name}/hop0" in states[0], chunks.reshape(-1)[:count]
    for rank, state in enumerate(states):
        if f"{name}/worker" in state:
            values += state[f"{name}/worker"].reshape(-1)[:count] / parts
        if f"{name}/server" in state:
            chunks[(rank + ring) % parts] += state[f"{name}/server"][0]
        for hop in range(parts - 1 if ring else 0):
            chunks[(rank - hop) % parts] += state[f"{name}/hop{hop}"][0] / parts
    return values


def nothing_is_lost(made: Channels, each: list[dict[str, np.ndarray]], found: Any, topology: str = "flat") -> None:
    """Of every value by itself: what was sent and what is remembered is the sum of what should have been sent.

    Args:
        made: how it went, feedback and all.
        each: what ranks had, round by round.
        found: what `by_torch` or `by_jax` gave.
        topology: by which it went.
    """
    means, states, _ = found
    if isinstance(states, dict):  # jax
        states = [{name: value[rank] for name, value in states.items()} for rank in range(WORLD)]
    largest = max(np.abs(value).max() for state in states for value in state.values())
    largest += max(np.abs(value).max() for values in each for value in values.values())
    for number, _, members in made.buckets({name: value[0].nbytes for name, value in each[0].items()}):

        def flat(values: Mapping[str, Any], members: list[str] = members) -> np.ndarray:
            return np.concatenate([np.asarray(values[name], np.float64).reshape(-1) for name in members])

        given = sum(flat({name: value.astype(np.float64).mean(0) for name, value in values.items()}) for values in each)
        sent = sum(flat(mean) for mean in means)
        remembered = kept(states, f"gradients/{number}", sent.size, topology)
        assert np.abs(sent + remembered - given).max() <= 1e-6 * len(each) * largest, number
