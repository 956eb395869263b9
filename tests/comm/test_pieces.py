"""Tests of long arrays in pieces: equal in torch and jax, as planned, nothing lost; one travels, one is encoded."""

import itertools
import math
from typing import Any

import coded
import engines
import numpy as np
import pytest
import torch
from reducing import COUNTED, KEY, WAYS, WORLD, both, by_torch, channels, gradients, levels, nothing_is_lost

from suite.comm import setup
from suite.comm.encoder.torch import Encoder
from suite.comm.exchange import gather_rows, scatter_rows
from suite.comm.layout import GROUP, MANY, cut_pieces

LONG = {"a": (97, 131), "b": (2_501,)}  # 15,208 values: four chunks of 3,802, three pieces each of eight bits a value
NODES = coded.NODES | {"stochastic": {"module": "suite.comm.codecs.int8", "rounding": "stochastic"}}
SMALL = {"piece_kib": 1}
CODED = ("gather", "all_to_all", "ring")


@pytest.mark.parametrize("key", NODES)
@pytest.mark.parametrize("most", [1, 10_000, 2**19, math.inf])
def test_pieces_are_as_long_as_they_may_be(key: str, most: float) -> None:
    codec = setup.make_codec(engines.part(**NODES[key]), None)
    for count in (0, 1, GROUP, GROUP + 1, 100_000, 1_000_003):
        first, *others = lengths = cut_pieces(codec, count, 4, most)
        assert sum(lengths) == count
        assert all(length == first for length in others[:-1]) and all(0 < length <= first for length in others)
        if others:
            assert first % GROUP == 0 and math.log2(first // GROUP).is_integer()
            assert codec.nbytes(2 * first, 4) > most and len(lengths) <= MANY
            assert codec.nbytes(first, 4) <= most or first == GROUP or 2 * count > MANY * first


@pytest.mark.parametrize(
    "kib, bytes_of_pieces",
    [
        (12, [12_288] * 4 + [10_848]),  # of 30,000 values: 6,144 of two bytes are 12 KiB
        (23.9, [12_288] * 4 + [10_848]),
        (24, [24_576] * 2 + [10_848]),
        (0, [60_000]),
        (0.1, [6_144] * 9 + [4_704]),  # no more than 16: pieces of 3 KiB would be 20
    ],
)
def test_pieces_have_about_the_size_that_the_settings_page_says(kib: float, bytes_of_pieces: list[int]) -> None:
    """Of gradients, which each of four ranks sends in four equal parts, and of what optimizers exchange."""
    shapes = {"a": (4, 30_000)}
    made = channels(None, shapes=shapes, codec="bfloat16", algorithm="all_to_all", piece_kib=kib)
    sent = made.default.topology.traffic(
        "gradients", 120_000, channel=made.default, itemsize=4, world=WORLD, locals=made.locals
    )
    (operation, *_), parts = sorted({entry.operation for entry in sent}), len(bytes_of_pieces)
    assert len([entry for entry in sent if entry.operation == operation]) == parts
    assert made.default.payloads(30_000, 4) == bytes_of_pieces
    other = engines.comm(codec="bfloat16", algorithm="all_to_all", piece_kib=0, factors={"piece_kib": kib})
    assert setup.make_channels(other, engines.tiny(), WORLD).factors.payloads(30_000, 4) == bytes_of_pieces


@pytest.mark.sample(1)
@pytest.mark.parametrize("key, algorithm", list(itertools.product(NODES, CODED)))
def test_backends_agree(key: str, algorithm: str) -> None:
    """Two rounds with error feedback: means, residuals and bytes, random numbers too."""
    changes = SMALL | {"codec": NODES[key], "algorithm": algorithm, "feedback": True}
    (ours, states, ledgers), (theirs, state, entries) = both(
        [gradients(0, shapes=LONG), gradients(1, shapes=LONG)], **changes
    )
    for one, other in zip(ours, theirs, strict=True):
        assert all(np.array_equal(one[name].view(np.uint32), other[name].view(np.uint32)) for name in LONG)
    assert states[0].keys() == state.keys() != set()
    for name, value in state.items():
        assert np.array_equal(np.stack([rank[name] for rank in states]), value), name
    assert ledgers[0].levels == {level: 2 * sent for level, sent in levels(entries).items()}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "key, algorithm, topology",
    [
        *COUNTED,
        *(
            pytest.param(key, *way, marks=pytest.mark.slow)
            for key in ("minifloat", "table(bits=8,percentiles=sampled)")
            for way in WAYS
        ),
    ],
)
def test_plan_ledger_and_trace_count_the_same_pieces(key: str, algorithm: str, topology: str) -> None:
    if algorithm == "native" and (key != "float32" or topology == "leader"):
        pytest.skip("native all-reduces send plain floats and know no leaders")
    node = coded.NODES[key]  # inside a host, too, where nothing is cut
    changes = SMALL | {"codec": node, "inner": node, "algorithm": algorithm, "topology": topology}
    (one, _, ledgers), (other, _, entries) = both([gradients(shapes=LONG)], **changes)
    assert algorithm == "native" or all(np.array_equal(one[0][name], other[0][name]) for name in LONG)
    made = channels(None, shapes=LONG, **changes)
    count = sum(math.prod(shape) for shape in LONG.values())
    planned = made.default.topology.traffic(
        "gradients", count, channel=made.default, itemsize=4, world=WORLD, locals=made.locals
    )
    assert levels(planned) == levels(entries) == ledgers[0].levels
    counted = [[(e.operation, e.level, e.payload) for e in each] for each in (planned, entries)]
    assert sorted(counted[0]) == sorted(counted[1])
    assert algorithm == "native" or len(planned) > 2


@pytest.mark.sample(3)
@pytest.mark.parametrize("key", ["float16", "bfloat16", "float21"])
@pytest.mark.parametrize("algorithm", CODED)
def test_numbers_that_are_coded_one_by_one_do_not_notice(key: str, algorithm: str) -> None:
    found = [
        means
        for size in (0, 1)
        for ([means], _, _) in both(
            [gradients(shapes=LONG)], codec=coded.NODES[key], algorithm=algorithm, piece_kib=size
        )
    ]
    for other in found[1:]:
        assert all(np.array_equal(other[name], found[0][name]) for name in LONG)


@pytest.mark.sample(6)
@pytest.mark.parametrize("key", NODES)
def test_what_was_sent_and_what_is_remembered_is_the_sum(key: str) -> None:
    made = channels("torch", shapes=LONG, codec=NODES[key], algorithm="all_to_all", feedback=True, **SMALL)
    each = [gradients(step, shapes=LONG) for step in range(4)]
    nothing_is_lost(made, each, by_torch(made, each))


class Watched:
    """A codec and a transport of one rank that write down what happens when."""

    def __init__(self, codec: Any):
        self.codec, self.seen = codec, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.codec, name)

    def __hash__(self) -> int:
        return hash(self.codec)

    def encode(self, *arguments: Any) -> torch.Tensor:
        self.seen.append("encode")
        return self.codec.encode(*arguments)

    def decode(self, *arguments: Any) -> torch.Tensor:
        self.seen.append("decode")
        return self.codec.decode(*arguments)

    def all_gather(self, name: str, value: torch.Tensor) -> Any:
        self.seen.append("start")
        self.value = value
        return type("Arriving", (), {"wait": lambda _: self.seen.append("wait") or value})()

    all_to_all = all_gather


@pytest.mark.parametrize("exchange", [scatter_rows, gather_rows])
def test_a_piece_is_on_its_way_while_the_next_is_encoded(exchange: Any) -> None:
    watched: Any = Watched(setup.make_codec(engines.part(**coded.NODES["bfloat16"]), "torch"))
    encoder = Encoder("a", watched, None, KEY, 0, 2 * GROUP)
    values = torch.arange(3 * GROUP, dtype=torch.float32)
    found = exchange("a", values[None] if exchange is scatter_rows else values, encoder, watched)
    assert torch.equal(found.reshape(-1), values.bfloat16().float())
    assert watched.seen == ["encode", "start"] * 3 + ["wait", "decode"] * 3
