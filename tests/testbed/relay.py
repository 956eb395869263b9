"""Delays the packets that hosts send: `relay.py SECONDS SWITCH INTERFACE HOST…`, for kernels without netem.

Each host gets a tap device as its interface, and the switch gets one as the host's port. Packets from the host reach
the port SECONDS later, packets to the host at once. The relay ends when its standard input is closed.
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
OVERHEAD = 8e-5  # seconds of waking up twice, reading and writing; measured on a busy virtual machine


def tap(namespace: str, name: str, number: int) -> int:
    """Make a tap device in a namespace; return its file descriptor.

    Args:
        namespace: name of the network namespace.
        name: name of the device there.
        number: distinct for each device of this process.
    """
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    temporary = f"t{os.getpid()}x{number}"  # the outer namespace must not have a device of this name
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", temporary.encode(), IFF_TAP | IFF_NO_PI))
    subprocess.run(["ip", "link", "set", temporary, "netns", namespace], check=True)
    subprocess.run(["ip", "-n", namespace, "link", "set", temporary, "name", name], check=True)
    return device


def main(arguments: list[str]) -> None:
    """Make the devices, print `up`, and forward packets until standard input is closed."""
    delay, switch, interface, *hosts = float(arguments[0]), *arguments[1:]
    Path("/proc/self/timerslack_ns").write_text("1000")  # wake up on time
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # waiting for a core would slow the network down
    targets: dict[int, int] = {}  # descriptor to read from -> descriptor to write to
    delayed: set[int] = set()  # descriptors whose packets wait
    for number, host in enumerate(hosts):
        inside, port = tap(host, interface, 2 * number), tap(switch, f"p{number}", 2 * number + 1)
        targets |= {inside: port, port: inside}
        delayed.add(inside)
    print("up", flush=True)
    waiting: collections.deque[tuple[float, int, bytes]] = (
        collections.deque()
    )  # (due time, descriptor, packet), in order of time
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([0, *targets], [], [], timeout)
        now = time.monotonic()
        for source in ready:
            if source == 0:
                return  # standard input was closed; nothing is ever written to it
            with contextlib.suppress(BlockingIOError):
                packet = os.read(source, LONGEST)
                if source in delayed:
                    waiting.append((now + max(0.0, delay - OVERHEAD), targets[source], packet))
                else:
                    _write(targets[source], packet)
        while waiting and waiting[0][0] <= time.monotonic():
            _, target, packet = waiting.popleft()
            _write(target, packet)


def _write(target: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # the device is not up yet; the packet is lost, as on any network
        os.write(target, packet)


if __name__ == "__main__":
    main(sys.argv[1:])
