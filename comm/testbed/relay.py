"""Holds back what hosts send: `relay.py SECONDS SWITCH INTERFACE HOST…`, for kernels without netem.

Each host gets a tap device as its interface, and the switch one port for it. Packets from the host reach the port some
time later, packets to the host at once. Ends with the process that holds its standard input.
"""

import collections
import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h
LONGEST = 65_536  # bytes of a packet
OWN = 8e-5  # seconds that waking up twice, reading and writing take by themselves; measured on a busy virtual machine


def tap(namespace: str, name: str, number: int) -> int:
    """A tap device in a namespace; its descriptor here."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    made = f"t{os.getpid()}x{number}"  # must not be a name of the outer namespace
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", made.encode(), IFF_TAP | IFF_NO_PI))
    for words in (["link", "set", made, "netns", namespace], ["-n", namespace, "link", "set", made, "name", name]):
        subprocess.run(["ip", *words], check=True)
    return device


def main(arguments: list[str]) -> None:
    """Make the devices, say `up`, and relay."""
    delay, switch, interface, *hosts = float(arguments[0]), *arguments[1:]
    Path("/proc/self/timerslack_ns").write_text("1000")  # wake up on time
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # a relay that waits for a core is a slower network
    towards: dict[int, int] = {}  # descriptor to read from -> descriptor to write to
    late: set[int] = set()
    for number, host in enumerate(hosts):
        inside, port = tap(host, interface, 2 * number), tap(switch, f"p{number}", 2 * number + 1)
        towards |= {inside: port, port: inside}
        late.add(inside)
    print("up", flush=True)
    waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()  # in order, as all wait equally long
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([0, *towards], [], [], patience)
        now = time.monotonic()
        for source in ready:
            if source == 0:
                return  # nothing is ever written to standard input: this is its end
            with contextlib.suppress(BlockingIOError):
                packet = os.read(source, LONGEST)
                if source in late:
                    waiting.append((now + max(0.0, delay - OWN), towards[source], packet))
                else:
                    _write(towards[source], packet)
        while waiting and waiting[0][0] <= time.monotonic():
            _, target, packet = waiting.popleft()
            _write(target, packet)


def _write(target: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # not up yet: lost, as on any network
        os.write(target, packet)


if __name__ == "__main__":
    main(sys.argv[1:])
