"""The test bed: a network that is measured before it is used, and ranks on its hosts that end together."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.comm.testbed import network
from suite.comm.testbed.counters import INTERFACE, VARIABLE, sent
from suite.contract import UserError

TOLERANCE = 0.03  # of the rate and of the round trip
BASE = 2e-4  # seconds of a round trip that are this machine's own
HEADERS, FRAME = 52, 14  # bytes: IP and TCP with time stamps inside the packet, Ethernet around it
PORT = 29_400
GRACE = 3.0  # seconds the other ranks get after one has failed


class RankFailed(RuntimeError):
    """A rank failed, or had not ended by the deadline; `rank` is which."""

    def __init__(self, rank: int, what: str):
        super().__init__(f"rank {rank} {what}")
        self.rank = rank


@dataclass(frozen=True)
class Link:
    """What was measured from one host to the next."""

    source: int
    target: int
    rate: float  # bits a second on the wire, Ethernet's own included
    round_trip: float  # seconds


class Testbed:
    """Some hosts and their network, as a context manager.

    Args:
        hosts: how many.
        rate: of every link, `100mbit` to `10gbit`; None: as fast as the machine.
        delay: one way between any two hosts, as `500us`; None: none.
        verify: measure every link before use.

    Attributes:
        links: what was measured.

    Raises:
        UserError: where none can be made, or where a link is off by more than 3 %.
    """

    __test__ = False  # for pytest, which takes the name for a test's

    def __init__(self, hosts: int, rate: str | None = None, delay: str | None = None, *, verify: bool = True):
        self.hosts, self.rate, self.delay, self.verify = hosts, rate, delay, verify
        self.links: list[Link] = []

    def __enter__(self) -> "Testbed":
        if reason := network.missing():
            raise UserError(reason)
        network.gc()
        self.network = network.Network(self.hosts, self.rate, self.delay)
        try:
            if self.verify:
                self.links = [self._checked(host, (host + 1) % self.hosts) for host in range(self.hosts)]
        except BaseException:
            self.network.remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.network.remove()

    @property
    def addresses(self) -> list[str]:
        """Each host's."""
        return self.network.addresses

    # ------------------------------------------------------------------------------------------- measuring
    def _checked(self, source: int, target: int) -> Link:
        """A link as it is; measured again if it is off, because the machine may have been busy.

        Raises:
            UserError: where it is off three times.
        """
        reason = ""
        for _ in range(3):
            link = self.measure(source, target)
            reason = self._off(link)
            if not reason:
                return link
        raise UserError(
            f"test bed: from host {source} to host {target} {reason}; nothing measured on it would be worth anything. "
            "Stop what else runs here, or take a lower rate"
        )

    def _off(self, link: Link) -> str:
        if self.rate and abs(link.rate / network.bits(self.rate) - 1) > TOLERANCE:
            return f"{link.rate / 1e6:.1f} Mbit/s pass where {self.rate} should"
        if self.delay:
            asked = 2 * network.seconds(self.delay)
            if abs(link.round_trip - asked) > TOLERANCE * asked + BASE:
                return f"a round trip takes {1e6 * link.round_trip:.0f} us where {1e6 * asked:.0f} should pass"
        return ""

    def measure(self, source: int, target: int, seconds: float = 1.0) -> Link:
        """Send for some seconds over one connection, then play ping-pong."""
        script, port = str(Path(__file__).with_name("probe.py")), str(PORT - 1)
        skip = max(0.2 * seconds, 20 * network.seconds(self.delay) if self.delay else 0.0)  # slow start, first burst
        listen = [sys.executable, script, "listen", port, str(skip)]
        talk = [sys.executable, script, "talk", self.addresses[target], port, str(seconds + skip)]
        arrived, round_trip = self.run([(target, listen), (source, talk)], deadline=30)
        packet = self.network.mtu
        return Link(source, target, 8 * float(arrived) * (packet + FRAME) / (packet - HEADERS), float(round_trip))

    def sent(self, host: int) -> int:
        """Bytes that a host's kernel has sent so far."""
        return sent(network.command("ip", "netns", "exec", self.network.names[host], "cat", "/proc/self/net/dev"))

    # --------------------------------------------------------------------------------------------- running
    def start(self, host: int, command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """Start a command on a host, in a session of its own; `options` are Popen's."""
        options["env"] = {**(options.get("env") or os.environ), "GLOO_SOCKET_IFNAME": INTERFACE, VARIABLE: "1"}
        inside = ["ip", "netns", "exec", self.network.names[host], *command]
        return subprocess.Popen(inside, start_new_session=True, **options)

    def run(
        self,
        commands: Sequence[tuple[int, Sequence[str]]],
        *,
        deadline: float,
        environment: Mapping[str, str] | None = None,
        each: Sequence[Mapping[str, str]] | None = None,
        folder: Path | None = None,
    ) -> list[str]:
        """Run rank r's (host, command) for all r at once; returns what each wrote to standard output.

        When one fails the others get three seconds; whatever the ranks had started is gone afterwards.

        Args:
            commands: one a rank.
            deadline: seconds for all of it.
            environment: of all, instead of this process's own.
            each: variables of each rank, beside these.
            folder: to run in.

        Raises:
            RankFailed: naming the first rank that failed, with the end of what it wrote to standard error.
        """
        base = dict(os.environ if environment is None else environment)
        started: list[subprocess.Popen[Any]] = []
        with contextlib.ExitStack() as stack:
            made = [[stack.enter_context(tempfile.TemporaryFile("w+")) for _ in "oe"] for _ in commands]
            stack.callback(self._end, started)
            for rank, ((host, command), (out, err)) in enumerate(zip(commands, made, strict=True)):
                own = {**base, **(each[rank] if each else {})}
                started.append(self.start(host, command, env=own, stdout=out, stderr=err, cwd=folder))
            failed = _first_failure(started, deadline)
            for out, err in made:
                out.seek(0)
                err.seek(0)
            if failed is not None:
                how = started[failed].returncode
                what = f"had not ended after {deadline:g} s" if how is None else f"ended with {how}"
                raise RankFailed(failed, f"{what}: {made[failed][1].read()[-2000:].strip()}")
            return [out.read() for out, _ in made]

    def _end(self, started: "list[subprocess.Popen[Any]]") -> None:
        self.kill()
        for process in started:
            process.wait()

    def kill(self, *hosts: int) -> None:
        """End everything on some hosts, or on all, by SIGKILL."""
        for host in hosts or range(self.hosts):
            network.kill(self.network.names[host])

    def cut(self, host: int, out: bool = True) -> None:
        """Take a host's cable out of the switch, or put it in again: nobody is told."""
        network.command("ip", "-n", self.network.switch, "link", "set", f"p{host}", "down" if out else "up")


def _first_failure(processes: "Sequence[subprocess.Popen[Any]]", deadline: float) -> int | None:
    """The rank that failed first, or that was last to run at the deadline; None where all ended well."""
    until, failed = time.monotonic() + deadline, None
    while (running := [rank for rank, one in enumerate(processes) if one.poll() is None]) and time.monotonic() < until:
        if failed is None:
            failed = next((rank for rank, one in enumerate(processes) if one.returncode), None)
            until = min(until, time.monotonic() + GRACE) if failed is not None else until
        time.sleep(0.01)
    bad = next((rank for rank, one in enumerate(processes) if one.returncode), None)
    return failed if failed is not None else bad if bad is not None else running[0] if running else None


def rendezvous(rank: int, ranks: int, hosts: int, address: str, port: int = PORT) -> dict[str, str]:
    """What torchrun tells a rank in its environment, and what jax reads there; ranks are numbered host by host."""
    local = ranks // hosts
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "JAX_PROCESS_ID": str(rank),
        "JAX_NUM_PROCESSES": str(ranks),
        "JAX_COORDINATOR_ADDRESS": f"{address}:{port}",
    }


def interrupted() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.pause()
