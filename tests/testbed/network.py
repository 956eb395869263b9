"""Makes and removes the namespaces and links of a test bed, and shapes the links.

Each host has one interface, `e0`, which is connected to a bridge (the switch) in a namespace of its own. Token buckets
limit the host's egress and the switch's port to the host, so that both directions have the rate. The queue has 64 MiB,
because small messages lost packets in shorter ones. The congestion control is reno, because a namespace cannot select
cubic.
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

from suite.comm.transport.kernel import INTERFACE
from suite.contract import UserError

LOCKS = Path("/run/suite-testbed")  # one file for each test bed, locked while its process runs
HOSTS = Path("/etc/netns")  # `ip netns exec NAME` mounts the files of NAME here over /etc
NAME = re.compile(r"suite-([0-9a-f]{6})-\w+")
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
LONG_PACKETS = 60_000  # bytes; the relay, in Python, forwards only some thousand packets a second


def command(*arguments: str) -> str:
    """Run an iproute2 command and return its standard output.

    Raises:
        UserError: if the command fails, with its message.
    """
    completed = subprocess.run(arguments, capture_output=True, text=True)
    if completed.returncode:
        message = (completed.stderr or completed.stdout).strip() or completed.returncode
        raise UserError(f"{' '.join(arguments)}: {message}")
    return completed.stdout


def missing() -> str:
    """Return why no test bed can be made on this machine, or "". Tries to make and shape one namespace."""
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
    """Convert a rate such as `100mbit` or `1gbit` to bits per second.

    Raises:
        UserError: if it is not a number with a unit.
    """
    return _number(rate, UNITS, "rate")


def seconds(delay: str) -> float:
    """Convert a delay such as `500us` or `2ms` to seconds.

    Raises:
        UserError: if it is not a number with a unit.
    """
    return _number(delay, SECONDS, "delay")


def _number(text: str, units: dict[str, float], option: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text)
    if not match or match[2] not in units or not float(match[1]):
        raise UserError(f"{option}={text}: set a number and one of {', '.join(units)}, as in 1{next(iter(units))}")
    return float(match[1]) * units[match[2]]


def bucket(rate: str) -> list[str]:
    """Return the arguments of `tc` for a token bucket of a rate."""
    burst = "512kb" if bits(rate) >= 1e9 else "64kb"
    return ["handle", "1:", "tbf", "rate", rate, "burst", burst, "limit", "64mb"]


class Network:
    """Hosts that are connected by a switch.

    Args:
        hosts: number of hosts.
        rate: rate of every link in both directions, such as `1gbit`; None: unlimited.
        delay: one-way delay between any two hosts, such as `500us`; None: no delay.

    Attributes:
        names: the namespace of each host.
        addresses: the IP address of each host.
        switch: the namespace of the switch.
        mtu: bytes of the longest packet.

    Raises:
        UserError: if the network cannot be made.
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
            # jax's gloo listens at the address of the host name; it has no option for another address
            (HOSTS / name).mkdir(parents=True, exist_ok=True)
            (HOSTS / name / "hosts").write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
            if self.rate:
                for namespace, device in ((name, INTERFACE), (self.switch, f"p{host}")):
                    command("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *bucket(self.rate))

    def _relay(self, delay: float) -> None:
        """Start the relay, which delays packets from each host to the switch and ends with this process."""
        if not Path("/dev/net/tun").exists():
            raise UserError("delay: needs /dev/net/tun, which this machine lacks; leave the delay out")
        script = Path(__file__).with_name("relay.py")
        arguments = [sys.executable, str(script), str(delay), self.switch, INTERFACE, *self.names]
        self.relay = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.relay.stdout
        if self.relay.stdout.readline() != "up\n":
            raise UserError("delay: the relay did not start; see its message above")

    def remove(self) -> None:
        """Kill the processes on the hosts, and remove the hosts."""
        if self.relay:
            self.relay.kill()
            self.relay.communicate()
        _remove(self.token)
        os.close(self.lock)


def kill(name: str) -> None:
    """Kill all processes in a namespace with SIGKILL, because jax does not end at SIGTERM."""
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout
    for process in pids.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)


def gc() -> list[str]:
    """Remove the test beds whose process has ended; return their tokens."""
    LOCKS.mkdir(exist_ok=True)
    known = {path.stem for path in LOCKS.glob("*.lock")}
    removed = []
    for token in sorted(known | set(_tokens())):
        with contextlib.suppress(BlockingIOError), (LOCKS / f"{token}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(token)
            removed.append(token)
    return removed


def _claim() -> tuple[int, str]:
    """Lock a new test bed's file; return (descriptor, token). Tries again if `gc` removed the file before the lock."""
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
    return (match[1] for name in names if (match := NAME.fullmatch(name)) and not name.endswith("-try"))


def _remove(token: str) -> None:
    for line in command("ip", "netns", "list").splitlines():
        name = line.split()[0] if line else ""
        if name.startswith(f"suite-{token}-"):
            kill(name)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            shutil.rmtree(HOSTS / name, ignore_errors=True)
    (LOCKS / f"{token}.lock").unlink(missing_ok=True)
