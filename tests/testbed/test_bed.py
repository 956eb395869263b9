"""Tests of the test bed itself: its links are what was asked for, or refused; whatever ran on it or made it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench.measure import ONCE
from conftest import TESTS

from suite.contract import UserError
from testbed import RankFailed, Testbed, gc, missing, network

pytestmark = pytest.mark.testbed
needs_bed = pytest.mark.skipif(bool(REASON := missing()), reason=REASON)
SLEEP = ["sleep", "1000"]


def namespaces() -> str:
    return network.command("ip", "netns", "list")


@needs_bed
@pytest.mark.slow
@pytest.mark.skipif(ONCE, reason="a test bed refuses its links while other tests keep every core busy: make testbed")
def test_links_are_what_was_asked_for_or_refused() -> None:
    """A bed of another rate or delay than it says must not open."""
    with Testbed(2, "100mbit", "2ms") as bed:
        for link in bed.links:
            assert 97e6 <= link.rate <= 103e6 and 4e-3 <= link.round_trip <= 4.32e-3
        bed.delay = "3ms"
        with pytest.raises(UserError, match=r"from host 1 to host 0 a round trip takes 4\d\d\d us instead of 6000"):
            bed._checked(1, 0)
    with Testbed(2, "100mbit", verify=False) as bed:
        network.command(
            "tc", "-n", bed.network.names[0], "qdisc", "replace", "dev", "e0", "root", *network.bucket("90mbit")
        )
        with pytest.raises(UserError, match=r"from host 0 to host 1 the rate is (89|90)\.\d Mbit/s instead of 100mbit"):
            bed._checked(0, 1)
    assert bed.network.token not in namespaces()


@needs_bed
def test_a_rank_that_fails_is_named_and_leaves_nothing() -> None:
    """Also what a rank put into a session of its own, and one that has not ended by the deadline."""
    with Testbed(2, verify=False) as bed:
        began = time.monotonic()
        fails = ["sh", "-c", "setsid sleep 1000 & echo no such thing >&2; exit 3"]
        with pytest.raises(RankFailed, match="rank 1 ended with 3: no such thing") as failed:
            bed.run([(0, SLEEP), (1, fails)], deadline=60)
        assert failed.value.rank == 1 and time.monotonic() - began < 30
        assert not any(network.command("ip", "netns", "pids", name) for name in bed.network.names)
        with pytest.raises(RankFailed, match="rank 0 had not ended after 1 s"):
            bed.run([(0, SLEEP), (1, ["true"])], deadline=1)
        assert not any(network.command("ip", "netns", "pids", name) for name in bed.network.names)
        assert bed.run([(1, ["hostname", "-I"]), (0, ["hostname", "-I"])], deadline=60) == [
            "10.77.0.2 \n",
            "10.77.0.1 \n",
        ]


@needs_bed
def test_a_bed_whose_process_was_killed_is_taken_away_and_a_living_one_is_not() -> None:
    command = [sys.executable, str(TESTS / "testbed"), "up", "--hosts", "2", "--delay", "100us"]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    names = [owner.stdout.readline().split()[4] for _ in range(2)]
    left = subprocess.Popen(["ip", "netns", "exec", names[0], *SLEEP], start_new_session=True)
    with Testbed(2, verify=False) as living:
        gc()
        assert all(name in namespaces() for name in (*names, *living.network.names))
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert names[0].split("-")[1] in gc()
        assert not any(name in namespaces() for name in names)
        assert left.wait(10) == -signal.SIGKILL
        assert all(name in namespaces() for name in living.network.names)
        assert not any((Path("/etc/netns") / name).exists() for name in names)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing() == "a test bed needs root"
    with pytest.raises(UserError, match="needs root"), Testbed(2):
        pass
    for rate in ("1", "fast", "0mbit", "1gibit"):
        with pytest.raises(UserError, match=f"rate={rate}: set a number and one of kbit"):
            network.bits(rate)
    assert network.bits("2.5gbit") == 2.5e9 and network.seconds("500us") == 5e-4
