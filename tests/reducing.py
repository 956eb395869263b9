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

from suite import communication
from suite.comm.channel import Channels
from suite.comm.reduce.jax import Reduce as InJax
from suite.comm.reduce.torch import Reduce as InTorch
from suite.comm.transport.jax import AXIS
from suite.comm.transport.jax import Transport as OnMesh
from suite.comm.transport.torch_sim import simulate

Shapes = Mapping[str, tuple[int, ...]]

WORLD = 4
SHAPES = {"a": (5, 3), "b": (7,), "c": (), "d": (2, 4)}  # 31 values: no multiple of the world
ALGORITHMS = ("native", "gather", "all_to_all", "ring")
TOPOLOGIES = ("flat", "two_level", "leader")
WAYS = [(algorithm, topology) for algorithm in ALGORITHMS for topology in TOPOLOGIES]
KEY = (3, 5)


def channels(backend: str | None, topology: str = "flat", shapes: Shapes = SHAPES, **changes: Any) -> Channels:
    """Of a task that has parameters of these shapes, no layers."""

    class Task:
        layers = staticmethod(dict)
        shapes = staticmethod(
            lambda: {name: type("Spec", (), {"kind": "parameter", "shape": s}) for name, s in shapes.items()}
        )

    node = engines.comm(topology=topology, ranks_per_host=2, **changes)
    return communication.channels(node, Task(), WORLD, backend)  # type: ignore[arg-type]


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
            means.append({name: value.numpy() for name, value in reduce.mean("gradients", own).items()})
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
    """What `by_torch` and `by_jax` give."""
    shapes = {name: value.shape[1:] for name, value in each[0].items()}
    made = {name: channels(name, shapes=shapes, **changes) for name in ("torch", "jax")}
    return [by_torch(made["torch"], each), by_jax(made["jax"], each)]


def levels(entries: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in entries:
        found[entry.level] = found.get(entry.level, 0) + entry.sent
    return found


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
