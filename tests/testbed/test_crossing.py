"""Bytes that the plan says a host sends to others, against its kernel's count, with two ranks on each of two hosts."""

import pytest
import wired
from wired import CONSTANT, UNSHAPED

from suite.comm import setup
from suite.comm.projection import cost, network
from suite.comm.projection.network import Place
from suite.comm.settings import CommSettings
from suite.settings import configure
from testbed import Testbed, missing

pytestmark = [pytest.mark.testbed, pytest.mark.skipif(bool(REASON := missing()), reason=REASON)]
VALUES, HOSTS, LOCAL = 500_000, 2, 2
ALGORITHMS = ("native", "all_to_all", "gather", "ring")
ALL_GATHER = {"torch": "pairs", "jax": "ring"}  # between CPUs; conf/network/loopback.yaml has torch's


def mode(preset: str, algorithm: str) -> CommSettings:
    words = ["task=resnet50", f"comm={preset}", f"comm.algorithm.module=suite.comm.algorithms.{algorithm}"]
    return configure.resolve_training(words).comm


def said(node: CommSettings, backend: str) -> float:
    """Bytes of one mean."""
    words = ["+task=resnet50", "network=1gbit", f"network.all_gather={ALL_GATHER[backend]}"]
    given = configure.resolve_training(words).network
    assert given
    where, channel = network.make_network(given), setup.make_channel(node, None)
    world = HOSTS * LOCAL
    entries = channel.topology.traffic("", VALUES, channel=channel, itemsize=4, world=world, locals=LOCAL)
    return cost.count_crossing(entries, Place(world, LOCAL), where)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_hosts_bytes_are_the_plans(backend: str) -> None:
    modes = {algorithm: mode("float32", algorithm) for algorithm in ALGORITHMS}
    modes |= {f"float21 {algorithm}": mode("float21", algorithm) for algorithm in ("all_to_all", "ring")}
    with Testbed(HOSTS, verify=False) as bed:
        found = wired.start(bed, backend, modes, local=LOCAL, values=VALUES)
    for name, node in modes.items():
        expected, kernel = said(node, backend), max(found[name]["kernel"])
        assert expected <= kernel <= expected * UNSHAPED + CONSTANT, f"{name}: {expected:,.0f} said, {kernel:,} sent"
