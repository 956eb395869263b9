"""Measures a link: `probe.py listen PORT SKIP` on one host, `probe.py talk ADDRESS PORT SECONDS` on another.

`listen` prints the bytes a second that arrived after the first SKIP seconds, `talk` the median round trip of one byte.
"""

import socket
import statistics
import sys
import time

PINGS = 101
PATIENCE = 10.0  # seconds to wait for the other side


def listen(port: str, skip: str) -> None:
    """Print the rate of the bytes that arrive on a first connection, then echo a second connection.

    Args:
        port: TCP port.
        skip: seconds at the beginning that are not counted.
    """
    with socket.create_server(("", int(port))) as server:
        server.settimeout(PATIENCE)
        connection, _ = server.accept()
        buffer, count, began, last, first = bytearray(2**20), 0, None, 0.0, 0.0
        while size := connection.recv_into(buffer):
            last = time.monotonic()
            first = first or last
            if began is None and last - first >= float(skip):
                began = last  # the bytes in the buffer arrived before
            elif began is not None:
                count += size
        assert began is not None, "the other side did not send for long enough"
        print(count / (last - began), flush=True)
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while byte := connection.recv(1):
            connection.sendall(byte)


def talk(address: str, port: str, seconds: str) -> None:
    """Send for some seconds on a first connection, then print the median round trip of one byte on a second.

    Args:
        address: IP address of the listening host.
        port: TCP port.
        seconds: seconds of sending.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            connection = socket.create_connection((address, int(port)), timeout=PATIENCE)
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
    with connection:
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            connection.sendall(bytes(2**17))
    with socket.create_connection((address, int(port)), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        round_trips = []
        for _ in range(PINGS):
            began = time.monotonic()
            connection.sendall(b"x")
            connection.recv(1)
            round_trips.append(time.monotonic() - began)
        print(statistics.median(round_trips), flush=True)


if __name__ == "__main__":
    {"listen": listen, "talk": talk}[sys.argv[1]](*sys.argv[2:])
