"""Tests of sent types and sizes against the ledger's: read from XLA's compiled text, and at torch's dispatcher.

A type in the program's source proves nothing: XLA on CPUs sends bfloat16 as float32. The kernel's own count, for those
who are root, is in tests/testbed.
"""

import collections
import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

import engines
import jax
import numpy as np
import pytest
import torch.distributed as dist
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from suite.comm.transport import Entry
from suite.contract import UserError
from suite.settings import configure

WORLD, LOCALS = 4, 2
WAYS = [
    ("float32", "native", "flat"),
    ("float16", "native", "two_level"),
    *((codec, "all_to_all", "flat") for codec in ("bfloat16", "float21")),
    *(("float21", algorithm, topology) for algorithm in ("gather", "ring") for topology in ("flat", "two_level")),
    *(("bfloat16", algorithm, "leader") for algorithm in ("gather", "all_to_all", "ring")),
    ("minifloat", "all_to_all", "flat"),
    ("int8", "gather", "two_level"),
    ("table", "ring", "flat"),
    ("onebit", "all_to_all", "leader"),
]
BYTES = ("minifloat", "table")  # whose payloads jax makes of bytes, too
KFAC = ("gradients", "factor", "inverse")  # what is compressed of its traffic
TO_ITSELF = re.compile(r"source_target_pairs=\{(\{(\d+),\2\},?)+\}")
HLO = re.compile(r" = (\(.*?\)|\S+) (all-reduce|all-to-all|all-gather|collective-permute)(?:-start)?\(")
SHAPE = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "u8": "uint8", "u16": "uint16", "u32": "uint32"}
WIDTH = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "uint16": 2, "uint32": 4}


def configured(backend: str, codec: str, algorithm: str, topology: str) -> dict[str, Any]:
    comm = engines.comm(codec=codec, inner="float16", algorithm=algorithm, topology=topology, ranks_per_host=LOCALS)
    return engines.config("sgd", backend, precision="float32", world=WORLD, comm=comm)


def kfac(backend: str) -> dict[str, Any]:
    """K-FAC, all of whose traffic a first step has: triangles of factors and inverses, 21 bits, by hosts."""
    chosen = ["task=resnet50", "optimizer=kfac", "comm=kfac_hierarchical", f"world={WORLD}"]
    # torch would overlap, and what its thread sends would not be watched
    schedule = ["comm.schedule.module=suite.comm.schedules.sync"] if backend == "torch" else []
    comm = configure.resolve([*chosen, *schedule, f"comm.ranks_per_host={LOCALS}"]).comm
    hyper = {"factor_interval": 1, "inverse_interval": 1, "stale": False}
    return engines.config("kfac", backend, precision="float32", world=WORLD, hyper=hyper, comm=comm)


def ranks(entry: Entry) -> int:
    return {"flat": WORLD, "inner": LOCALS, "outer": WORLD // LOCALS}[entry.level]


def received(entries: list[Entry], leader: bool) -> collections.Counter[tuple[str, str]]:
    """Bytes of the results of XLA's collectives, by operation and type, as the ledger's entries have them.

    What XLA has no collective for is made of exchanges between pairs: between leaders all, inside their hosts two.
    """
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    for entry in entries:
        others, kind = ranks(entry) - 1, entry.operation.replace("_", "-")
        pairs = {"shift": entry.payload, "to_first": others * entry.payload, "broadcast": others * entry.payload}
        if leader and entry.level == "outer":
            row = entry.payload // ranks(entry) if entry.operation == "all_to_all" else entry.payload
            pairs |= {"all_to_all": others * row, "all_gather": others * row}
        if entry.operation in pairs:
            found["collective-permute", entry.dtype] += pairs[entry.operation]
        else:
            found[kind, entry.dtype] += entry.payload * (ranks(entry) if kind == "all-gather" else 1)
    return found


def compiled(text: str) -> collections.Counter[tuple[str, str]]:
    """Return the counts of `received` from a compiled program; what a rank sends to itself does not travel."""
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    travelling = [line for line in text.splitlines() if not TO_ITSELF.search(line)]
    for shapes, operation in HLO.findall("\n".join(travelling)):
        for kind, dimensions in SHAPE.findall(shapes):
            size = math.prod(int(number) for number in dimensions.split(",") if number)
            found[operation, TYPES[kind]] += size * WIDTH[TYPES[kind]]
    return found


def compared(settings: dict[str, Any], leader: bool = False) -> tuple[list[Entry], set[str]]:
    """A first step's entries, once its programs are found to hold the same; and the types of what is not `exact`."""
    if len(jax.devices()) < WORLD:
        pytest.skip("fewer than four jax devices: jax was imported before the tests could ask for them")
    made = engines.engine(settings)
    engines.advance(made, range(1))
    programs = made.programs.compiled.values()
    entries = [entry for _, each in programs for entry in each]
    ours, theirs = received(entries, leader), compiled("\n".join(program.as_text() for program, _ in programs))
    exact = sum(entry.payload for entry in entries if entry.name == "exact")
    merged = ours["all-reduce", "float32"] - theirs["all-reduce", "float32"]
    assert 0 <= merged <= exact // 2, "of equal small sums XLA may send one"
    del ours["all-reduce", "float32"], theirs["all-reduce", "float32"]
    assert ours == theirs
    return entries, {kind for _, kind in theirs}


@pytest.mark.sample(3)
@pytest.mark.parametrize("codec, algorithm, topology", WAYS)
def test_compiled_collectives_have_the_ledgers_types_and_sizes(codec: str, algorithm: str, topology: str) -> None:
    _, kinds = compared(configured("jax", codec, algorithm, topology), topology == "leader")
    if algorithm != "native":
        assert kinds <= {"uint8", "uint16", "uint32"}
    if codec in BYTES and topology == "flat":
        assert kinds == {"uint8"}


def test_compiled_factors_travel_as_21_bits_between_hosts() -> None:
    entries, kinds = compared(kfac("jax"))
    assert kinds == {"uint32"}  # inside a host the floats' own bytes
    sent = {(entry.name.split("/")[0], entry.level) for entry in entries if entry.name != "exact"}
    assert sent == {(what, level) for what in KFAC for level in ("inner", "outer")}


def test_a_type_that_xla_widens_is_found() -> None:
    """A sum of bfloat16 values, which says so in its source and travels as float32 on a CPU."""
    mesh = Mesh(np.array(jax.devices()[:WORLD]), ("all",))
    total = jax.shard_map(
        lambda v: jax.lax.psum(v, "all"), mesh=mesh, in_specs=P("all"), out_specs=P(), check_vma=False
    )
    program = jax.jit(total).lower(jax.ShapeDtypeStruct((WORLD * 8,), jax.numpy.bfloat16)).compile()
    assert compiled(program.as_text()) == {("all-reduce", "float32"): 8 * 4}


@pytest.mark.parametrize("topology", ["flat", "two_level"])
def test_such_a_sum_is_refused_before_the_first_step(topology: str) -> None:
    """When its program is traced: whether XLA widens depends on the device, which nobody knows before."""
    made = engines.engine(configured("jax", "bfloat16", "native", topology))
    with pytest.raises(UserError, match=r"sends bfloat16 as float32; set comm\.algorithm\.module=\S+\.all_to_all"):
        engines.advance(made, range(1))
    assert not made.programs.compiled and not made.programs.ledger.total


class Watch(TorchDispatchMode):
    """Types and bytes of what c10d's collectives are given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d":
            name = function.name().removeprefix("c10d::").strip("_")
            given = args[1] if name == "gather" else args[0]
            for value in given if isinstance(given, list) else [given]:
                kind = str(value.dtype).removeprefix("torch.")
                self.seen.append((name, kind, value.numel() * value.element_size()))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """Rank 0 of a group that sends nothing anywhere."""
    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    yield
    dist.destroy_process_group()


def watched(settings: dict[str, Any]) -> tuple[list[Entry], set[str]]:
    """A first step's entries, once c10d is found to be given the same; and the types of what is not `exact`."""
    names = {"all_reduce": "allreduce", "shift": "send", "to_first": "gather", "broadcast": "broadcast"}
    others = {"flat": WORLD - 1, "inner": 1, "outer": 1}  # two hosts of two

    def calls(entry: Entry) -> list[tuple[str, str, int]]:
        """Return torch's calls for an entry: rows travel by a message to each other rank."""
        if entry.operation in names:
            return [(names[entry.operation], entry.dtype, entry.payload)]
        each = others[entry.level]
        return [("send", entry.dtype, entry.sent // each)] * each

    made = engines.engine(settings)
    entries: list[Entry] = []
    made.ledger.add = entries.extend
    batch = made.task.batch("train", 0, 0, 0, WORLD)
    with Watch() as watch:
        made.step(0, batch, {})
    seen = [one for one in watch.seen if one[0] != "recv"]
    assert seen == [call for entry in entries for call in calls(entry)]
    turns = [name for name, _ in itertools.groupby(name for name, *_ in watch.seen if name in ("send", "recv"))]
    assert turns == ["recv", "send"] * (len(turns) // 2), "who sends first keeps the other from sending"
    return entries, {kind for _, kind, _ in seen if kind != "float32"}


@pytest.mark.parametrize("codec, algorithm, topology", WAYS)
def test_torch_hands_over_what_the_ledger_says(four_ranks: None, codec: str, algorithm: str, topology: str) -> None:
    _, kinds = watched(configured("torch", codec, algorithm, topology))
    if algorithm != "native":
        assert kinds == {"uint8"}


def test_torch_hands_over_factors_too(four_ranks: None) -> None:
    entries, kinds = watched(kfac("torch"))
    assert kinds == {"uint8"}
    sent = {(entry.name.split("/")[0], entry.level) for entry in entries if entry.name != "exact"}
    assert sent == {(what, level) for what in KFAC for level in ("inner", "outer")}
