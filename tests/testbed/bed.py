"""Test bed: it measures its links before use, runs ranks on its hosts, and stops all of them when one fails."""

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

from suite.comm.transport.kernel import INTERFACE, VARIABLE, count_sent
from suite.contract import UserError
from testbed import network

TOLERANCE = 0.03  # relative, of the rate and the round trip
BASE = 2e-4  # seconds of a round trip without delay on one machine
HEADERS, FRAME = 52, 14  # bytes: IP and TCP with time stamps inside the packet, Ethernet around it
PORT = 29_400
GRACE = 3.0  # seconds until the other ranks are stopped after one has failed


class RankFailed(RuntimeError):
    """A rank failed, or had not ended by the deadline.

    Attributes:
        rank: the rank.
    """

    def __init__(self, rank: int, reason: str):
        super().__init__(f"rank {rank} {reason}")
        self.rank = rank


@dataclass(frozen=True)
class Link:
    """Measured link from one host to the next."""

    source: int
    target: int
    rate: float  # bits a second on the wire, with Ethernet's headers
    round_trip: float  # seconds


class Testbed:
    """Some hosts and their network, as a context manager.

    Args:
        hosts: number of hosts.
        rate: rate of every link, `100mbit` to `10gbit`; None: unlimited.
        delay: one-way delay between any two hosts, such as `500us`; None: no delay.
        verify: measure every link before use.

    Attributes:
        links: the measured links.

    Raises:
        UserError: if this machine cannot make a test bed, or a link's rate or delay is wrong by more than 3 %.
    """

    __test__ = False  # pytest would take the class for tests because of its name

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
        """Return the address of each host."""
        return self.network.addresses

    # ------------------------------------------------------------------------------------------- measuring
    def _checked(self, source: int, target: int) -> Link:
        """Measure a link; up to three times, because the machine may be busy.

        Raises:
            UserError: if the rate or the round trip is wrong each time.
        """
        reason = ""
        for _ in range(3):
            link = self.measure(source, target)
            reason = self._off(link)
            if not reason:
                return link
        raise UserError(
            f"test bed: from host {source} to host {target} {reason}; measurements on it would be unreliable. "
            "Stop other programs on this machine, or use a lower rate"
        )

    def _off(self, link: Link) -> str:
        if self.rate and abs(link.rate / network.bits(self.rate) - 1) > TOLERANCE:
            return f"the rate is {link.rate / 1e6:.1f} Mbit/s instead of {self.rate}"
        if self.delay:
            expected = 2 * network.seconds(self.delay)
            if abs(link.round_trip - expected) > TOLERANCE * expected + BASE:
                return f"a round trip takes {1e6 * link.round_trip:.0f} us instead of {1e6 * expected:.0f}"
        return ""

    def measure(self, source: int, target: int, seconds: float = 1.0) -> Link:
        """Measure a link: the rate of one connection in some seconds, then the round trip of single bytes."""
        script, port = str(Path(__file__).with_name("probe.py")), str(PORT - 1)
        # not measured: TCP's slow start and the first burst
        skip = max(0.2 * seconds, 20 * network.seconds(self.delay) if self.delay else 0.0)
        listen = [sys.executable, script, "listen", port, str(skip)]
        talk = [sys.executable, script, "talk", self.addresses[target], port, str(seconds + skip)]
        rate, round_trip = self.run([(target, listen), (source, talk)], deadline=30)
        packet = self.network.mtu
        return Link(source, target, 8 * float(rate) * (packet + FRAME) / (packet - HEADERS), float(round_trip))

    def sent(self, host: int) -> int:
        """Bytes that a host's kernel has sent so far."""
        return count_sent(network.command("ip", "netns", "exec", self.network.names[host], "cat", "/proc/self/net/dev"))

    # --------------------------------------------------------------------------------------------- running
    def start(self, host: int, command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """Start a command on a host, in its own session; `options` are those of `subprocess.Popen`."""
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
        """Run the commands of all ranks at once.

        When a rank fails, the others are stopped after three seconds. Afterwards all processes on the hosts are killed.

        Args:
            commands: (host, command) of each rank.
            deadline: seconds until the ranks are stopped.
            environment: variables of all ranks; by default this process's.
            each: further variables of each rank.
            folder: the working directory.

        Returns:
            The standard output of each rank.

        Raises:
            RankFailed: with the first rank that failed, and the end of its standard error.
        """
        base = dict(os.environ if environment is None else environment)
        started: list[subprocess.Popen[Any]] = []
        with contextlib.ExitStack() as stack:
            files = [[stack.enter_context(tempfile.TemporaryFile("w+")) for _ in "oe"] for _ in commands]
            stack.callback(self._end, started)
            for rank, ((host, command), (out, err)) in enumerate(zip(commands, files, strict=True)):
                variables = {**base, **(each[rank] if each else {})}
                started.append(self.start(host, command, env=variables, stdout=out, stderr=err, cwd=folder))
            failed = _first_failure(started, deadline)
            for out, err in files:
                out.seek(0)
                err.seek(0)
            if failed is not None:
                status = started[failed].returncode
                reason = f"had not ended after {deadline:g} s" if status is None else f"ended with {status}"
                raise RankFailed(failed, f"{reason}: {files[failed][1].read()[-2000:].strip()}")
            return [out.read() for out, _ in files]

    def _end(self, started: "list[subprocess.Popen[Any]]") -> None:
        self.kill()
        for process in started:
            process.wait()

    def kill(self, *hosts: int) -> None:
        """Kill all processes on the given hosts, or on all hosts, with SIGKILL."""
        for host in hosts or range(self.hosts):
            network.kill(self.network.names[host])

    def cut(self, host: int, out: bool = True) -> None:
        """Disconnect a host from the switch, or with `out=False` connect it again. The host receives no signal."""
        network.command("ip", "-n", self.network.switch, "link", "set", f"p{host}", "down" if out else "up")


def _first_failure(processes: "Sequence[subprocess.Popen[Any]]", deadline: float) -> int | None:
    """Return the rank that failed first, or the first that still runs at the deadline; None if all succeeded."""
    until, failed = time.monotonic() + deadline, None
    while running := [rank for rank, process in enumerate(processes) if process.poll() is None]:
        if time.monotonic() >= until:
            break
        if failed is None:
            failed = next((rank for rank, process in enumerate(processes) if process.returncode), None)
            until = min(until, time.monotonic() + GRACE) if failed is not None else until
        time.sleep(0.01)
    if failed is None:
        failed = next((rank for rank, process in enumerate(processes) if process.returncode), None)
    return failed if failed is not None else running[0] if running else None


def rendezvous(rank: int, ranks: int, hosts: int, address: str, port: int = PORT) -> dict[str, str]:
    """Return the environment variables that torchrun sets for a rank, and those that jax reads.

    Args:
        rank: the rank; ranks are numbered host by host.
        ranks: number of ranks, a multiple of `hosts`.
        hosts: number of hosts.
        address: address of rank 0's host.
        port: port at which the ranks meet.
    """
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
