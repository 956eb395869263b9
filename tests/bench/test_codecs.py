"""Encoding and decoding 25 million values against a bfloat16 cast to and fro, eager, compiled and in jax, taking turns.

The processor's seconds on one thread: others on the machine hardly change those, and all of these compute all the time.
In torch compiled are the kernels, as in a run with `compile=true`; torch's own cast is faster than what it compiles.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import coded
import pytest

from .measure import ONCE, check_limit, interleaved, ratio

pytestmark = pytest.mark.bench
COUNT, ROUNDS, BASE = 250_000 if ONCE else 25_000_000, 5, "bfloat16 cast"
CODECS = {"float16": {}, "bfloat16": {}, "float21": {}, "minifloat": {}, "int8": {}, "onebit": {}}
TABLES = {f"table-{bits}": {"bits": bits} for bits in (1, 2, 4, 8)}
# compiled forms only; eager torch reads and writes parts of arrays at every operation
LIMITS = {"float21": 2.0} | dict.fromkeys(TABLES, 4.0)
MISSED: dict[str, dict[str, float]] = {}


def in_torch(compiles: bool) -> dict[str, Callable[[], Any]]:
    import torch

    torch.set_num_threads(1)
    values = torch.from_numpy(coded.samples(COUNT, kind="normal"))

    def trip(encode: Any, decode: Any) -> Callable[[], Any]:
        return lambda: decode(encode(values), values)

    found = {BASE: trip(lambda v: v.to(torch.bfloat16), lambda narrow, like: narrow.to(like.dtype))}
    codecs = {name: replace(codec, compiles=compiles) for name, codec in halves("torch").items()}
    return found | {name: trip(codec.encode, codec.decode) for name, codec in codecs.items()}


def in_jax() -> dict[str, Callable[[], Any]]:
    import jax
    import jax.numpy as jnp

    values = jnp.asarray(coded.samples(COUNT, kind="normal"))

    def trip(encode: Any, decode: Any) -> Callable[[], Any]:
        encode, decode = jax.jit(encode), jax.jit(decode)
        return lambda: decode(encode(values), values).block_until_ready()

    found = {BASE: trip(lambda v: v.astype(jnp.bfloat16), lambda narrow, like: narrow.astype(like.dtype))}
    return found | {name: trip(codec.encode, codec.decode) for name, codec in halves("jax").items()}


def halves(backend: str) -> dict[str, Any]:
    nodes = {name: {"module": f"suite.comm.codecs.{name}", **options} for name, options in CODECS.items()}
    nodes |= {name: {"module": "suite.comm.codecs.table", **options} for name, options in TABLES.items()}
    return {name: coded.halves(node)[backend] for name, node in nodes.items()}


WAYS = {"torch, eager": lambda: in_torch(False), "torch, compiled": lambda: in_torch(True), "jax": in_jax}


@pytest.mark.parametrize("way", WAYS)
def test_encoding_and_decoding_against_a_cast(way: str, benchmark: Any, capsys: Any) -> None:
    trips = WAYS[way]()
    assert all(len(trip()) == COUNT for trip in trips.values())
    seconds = interleaved(trips, ROUNDS, clock=time.process_time)
    benchmark.pedantic(trips["float21"], rounds=1)
    found = {name: ratio(seconds, name, BASE) for name in trips if name != BASE}
    limits = {} if way == "torch, eager" else LIMITS | MISSED.get(way, {})
    benchmark.extra_info |= {"ratios": found, "limits": limits}
    with capsys.disabled():
        base = seconds[BASE]
        print(f"\n25 million values to bytes and back · {way} · {BASE} {1e3 * statistics.median(base):.0f} ms", end="")
        print(f" ({1e3 * min(base):.0f} to {1e3 * max(base):.0f} ms)")
        for name, each in found.items():
            limit = f", limit {limits[name]:g}" if name in limits else ""
            middle = f"{1e3 * statistics.median(seconds[name]):6.0f} ms"
            print(f"  {name:<10} {middle}  {each['median']:5.2f} ({each['least']:.2f} to {each['most']:.2f}){limit}")
    over = {name: found[name]["median"] for name, limit in limits.items() if found[name]["median"] > limit}
    check_limit(not over, over)
