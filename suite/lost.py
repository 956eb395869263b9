"""What a rank says when a run over several hosts breaks off: whom it lost, as far as it can know, and how to go on.

An exception is told by the process itself. Where it cannot, because the system or a framework's own thread has ended it
(jax's coordination service does, NCCL's watchdog does), a small process that waited for that tells instead.
"""

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ADDRESS = re.compile(r"\[([\d.]+|[\da-fA-F:]+)\]:\d+")  # how gloo names the other end of a connection
TASK = re.compile(r"/task:(\d+)")  # how jax's coordination service names a process
SILENCE = re.compile(r"timed? ?out|deadline", re.IGNORECASE)


def address(first: str) -> str:
    """This host's own, as it is on the way to where rank 0 listens, host:port; nothing is sent."""
    host, _, port = first.rpartition(":")
    family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)
        return probe.getsockname()[0]


def reason(error: Exception, rank: int, addresses: Sequence[str]) -> str:
    """What a rank can know of why it could not go on.

    Args:
        error: what ended it.
        rank: its own number.
        addresses: of every rank's host.
    """
    text = str(error)
    if tasks := {int(task) for task in TASK.findall(text)} - {rank}:
        return f"lost rank {_listed(tasks)}"
    if at := ADDRESS.search(text):
        there = [other for other, its in enumerate(addresses) if its == at[1] and other != rank]
        return f"lost {f'rank {_listed(there)} at ' if there else ''}{at[1]}"
    return "another rank did not answer in time" if SILENCE.search(text) else f"failed with {type(error).__name__}"


def _listed(ranks: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(ranks)))


@contextlib.contextmanager
def watched(rank: int, directory: Path) -> Iterator[None]:
    """Around a run: should this process end in the middle, it is said all the same how the run goes on."""
    command = [sys.executable, "-m", "suite.lost", str(rank), str(directory)]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # Ctrl-C is not for it
    try:
        yield
    finally:
        watcher.communicate(b"over")


def main(rank: str, directory: str) -> None:
    """Wait until standard input is closed, by the run or by the end of its process."""
    if not sys.stdin.buffer.read():
        from suite import launch  # seldom needed

        launch.failed(Path(directory), f"rank {rank}: was ended, perhaps because another rank was; ")


if __name__ == "__main__":
    main(*sys.argv[1:])
