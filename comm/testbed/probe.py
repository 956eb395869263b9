"""What a link really does: `probe.py listen PORT SKIP` on one host, `probe.py talk ADDRESS PORT SECONDS` on another.

`listen` prints the bytes a second that arrived after the first SKIP seconds, `talk` the median round trip of one byte.
"""

import socket
import statistics
import sys
import time

PINGS = 101
PATIENCE = 10.0  # seconds to wait for the other side


def listen(port: str, skip: str) -> None:
    """Count what arrives on a first connection, echo on a second."""
    with socket.create_server(("", int(port))) as server:
        server.settimeout(PATIENCE)
        connection, _ = server.accept()
        buffer, count, began, last, first = bytearray(2**20), 0, None, 0.0, 0.0
        while size := connection.recv_into(buffer):
            last = time.monotonic()
            first = first or last
            if began is None and last - first >= float(skip):
                began = last  # what is in the buffer now came before
            elif began is not None:
                count += size
        assert began is not None, "nothing arrived for long enough"
        print(count / (last - began), flush=True)
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while byte := connection.recv(1):
            connection.sendall(byte)


def talk(address: str, port: str, seconds: str) -> None:
    """Send for some seconds, then play ping-pong."""
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
        found = []
        for _ in range(PINGS):
            began = time.monotonic()
            connection.sendall(b"x")
            connection.recv(1)
            found.append(time.monotonic() - began)
        print(statistics.median(found), flush=True)


if __name__ == "__main__":
    {"listen": listen, "talk": talk}[sys.argv[1]](*sys.argv[2:])
