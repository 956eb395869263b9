"""Namespaces, links and their shaping; what makes them and what takes them away.

Each host has one interface, `e0`, and hangs on a bridge in a namespace of its own. A token bucket limits the host's
egress and the switch's port to it, so that both directions have the rate. Settings were found by measurement: with a
queue of less than 64 MiB small messages lost packets; reno because a namespace may not choose cubic.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from suite.comm.testbed.counters import INTERFACE
from suite.contract import UserError

LOCKS = Path("/run/suite-testbed")  # a file for each bed, locked as long as its process lives
HOSTS = Path("/etc/netns")  # what `ip netns exec NAME` shows as /etc
NAME = re.compile(r"suite-([0-9a-f]{6})-\w+")
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
LONG_PACKETS = 60_000  # bytes; a relay in Python moves some thousand packets a second


def command(*arguments: str) -> str:
    """What an iproute2 command prints.

    Raises:
        UserError: with what it says where it fails.
    """
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{' '.join(arguments)}: {(done.stderr or done.stdout).strip() or done.returncode}")
    return done.stdout


def missing() -> str:
    """Why no test bed can be made here, found by making the least of one; "" where one can."""
    if os.geteuid() != 0:
        return "a test bed needs root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"a test bed needs {tool}; type: apt-get install iproute2"
    name = f"suite-{secrets.token_hex(3)}-try"
    try:
        command("ip", "netns", "add", name)
        command("tc", "-n", name, "qdisc", "replace", "dev", "lo", "root", *bucket("1gbit"))
        command("ip", "netns", "exec", name, "true")
    except UserError as error:
        return f"a test bed cannot be made here: {error}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return ""


def bits(rate: str) -> float:
    """How many bits a second `100mbit` or `1gbit` are."""
    return _number(rate, UNITS, "rate")


def seconds(delay: str) -> float:
    """How many seconds `500us` or `2ms` are."""
    return _number(delay, SECONDS, "delay")


def _number(text: str, units: dict[str, float], what: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text)
    if not found or found[2] not in units or not float(found[1]):
        raise UserError(f"{what}={text}: write a number and one of {', '.join(units)}, as in 1{next(iter(units))}")
    return float(found[1]) * units[found[2]]


def bucket(rate: str) -> list[str]:
    """The words for a token bucket of this rate, as tc takes them."""
    burst = "512kb" if bits(rate) >= 1e9 else "64kb"
    return ["handle", "1:", "tbf", "rate", rate, "burst", burst, "limit", "64mb"]


class Network:
    """Hosts, joined; `names[i]` is the namespace of host i, whose address is `addresses[i]`.

    Args:
        hosts: how many.
        rate: of every link, in both directions, as tc writes it; None: as fast as the machine.
        delay: from any host to any other, one way; None: none.
    """

    def __init__(self, hosts: int, rate: str | None, delay: str | None):
        self.lock, token = _claim()
        self.rate, self.token = rate, token
        self.names = [f"suite-{token}-{host}" for host in range(hosts)]
        self.switch = f"suite-{token}-switch"
        self.addresses = [f"10.77.0.{host + 1}" for host in range(hosts)]
        self.mtu = LONG_PACKETS if delay else 1500
        self.relay: subprocess.Popen[str] | None = None
        try:
            self._make(seconds(delay) if delay else 0.0)
        except BaseException:
            self.remove()
            raise

    def _make(self, delay: float) -> None:
        command("ip", "netns", "add", self.switch)
        command("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        command("ip", "-n", self.switch, "link", "set", "br0", "up")
        for name in self.names:
            command("ip", "netns", "add", name)
        if delay:
            self._relay(delay)
        for host, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            if not delay:
                pair = ("type", "veth", "peer", "name", f"p{host}", "netns", self.switch)
                command("ip", "link", "add", "name", INTERFACE, "netns", name, *pair)
            command("ip", "-n", self.switch, "link", "set", f"p{host}", "mtu", str(self.mtu), "master", "br0", "up")
            command("ip", "-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
            command("ip", "-n", name, "link", "set", INTERFACE, "mtu", str(self.mtu), "up")
            command("ip", "-n", name, "link", "set", "lo", "up")
            reno = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"
            command("ip", "netns", "exec", name, "sh", "-c", reno)
            # jax's gloo listens at the address of the host's name, and has no option for another
            (HOSTS / name).mkdir(parents=True, exist_ok=True)
            (HOSTS / name / "hosts").write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
            if self.rate:
                for place, device in ((name, INTERFACE), (self.switch, f"p{host}")):
                    command("tc", "-n", place, "qdisc", "replace", "dev", device, "root", *bucket(self.rate))

    def _relay(self, delay: float) -> None:
        """Start what holds packets back on their way from each host to the switch; it ends with this process."""
        if not Path("/dev/net/tun").exists():
            raise UserError("delay: needs /dev/net/tun, which is not here; leave the delay out")
        script = Path(__file__).with_name("relay.py")
        arguments = [sys.executable, str(script), str(delay), self.switch, INTERFACE, *self.names]
        self.relay = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.relay.stdout
        if self.relay.stdout.readline() != "up\n":
            raise UserError("delay: the relay did not start; what it said stands above")

    def remove(self) -> None:
        """Kill what still runs on the hosts, and take them away."""
        if self.relay:
            self.relay.kill()
            self.relay.communicate()
        _remove(self.token)
        os.close(self.lock)


def kill(name: str) -> None:
    """End everything that runs in a namespace, jax too, which does not die of SIGTERM."""
    listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout
    for process in listed.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)


def gc() -> list[str]:
    """Take away the beds whose process is dead; returns their tokens."""
    LOCKS.mkdir(exist_ok=True)
    known = {path.stem for path in LOCKS.glob("*.lock")}
    dead = []
    for token in sorted(known | set(_tokens())):
        with contextlib.suppress(BlockingIOError), (LOCKS / f"{token}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(token)
            dead.append(token)
    return dead


def _claim() -> tuple[int, str]:
    """A lock file of a new bed: (descriptor, token). One that `gc` took away before it was locked is no good."""
    LOCKS.mkdir(exist_ok=True)
    while True:
        token = secrets.token_hex(3)
        lock = os.open(LOCKS / f"{token}.lock", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return lock, token
        os.close(lock)


def _tokens() -> Iterator[str]:
    names = [line.split()[0] for line in command("ip", "netns", "list").splitlines() if line]
    return (found[1] for name in names if (found := NAME.fullmatch(name)) and not name.endswith("-try"))


def _remove(token: str) -> None:
    for line in command("ip", "netns", "list").splitlines():
        name = line.split()[0] if line else ""
        if name.startswith(f"suite-{token}-"):
            kill(name)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            shutil.rmtree(HOSTS / name, ignore_errors=True)
    (LOCKS / f"{token}.lock").unlink(missing_ok=True)
