"""Peer failure: when a run on several hosts breaks off, each rank prints which rank was lost and how to continue.

The process itself reports an exception. If the system or a framework's thread ends the process (jax's coordination
service and NCCL's watchdog do), a small watcher process reports it instead.
"""

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

ADDRESS = re.compile(r"\[([\d.]+|[\da-fA-F:]+)\]:\d+")  # the other end of a connection, in gloo's errors
TASK = re.compile(r"/task:(\d+)")  # a process, in the errors of jax's coordination service
SILENCE = re.compile(r"timed? ?out|deadline", re.IGNORECASE)


def find_address(first: str) -> str:
    """This host's IP address on the route to rank 0; nothing is sent.

    Args:
        first: where rank 0 listens, host:port.
    """
    host, _, port = first.rpartition(":")
    family, kind, _, _, destination = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(destination)
        return probe.getsockname()[0]


def explain_failure(error: Exception, rank: int, addresses: Sequence[str]) -> str:
    """Why a rank could not continue, as far as its error tells: usually which rank was lost.

    Args:
        error: the exception that ended the run.
        rank: of this process.
        addresses: the IP address of every rank's host.

    Returns:
        The reason in words.
    """
    text = str(error)
    if tasks := {int(task) for task in TASK.findall(text)} - {rank}:
        return f"lost rank {_listed(tasks)}"
    if match := ADDRESS.search(text):
        lost = [other for other, host in enumerate(addresses) if host == match[1] and other != rank]
        return f"lost {f'rank {_listed(lost)} at ' if lost else ''}{match[1]}"
    return "another rank did not answer in time" if SILENCE.search(text) else f"failed with {type(error).__name__}"


def _listed(ranks: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(ranks)))


@contextlib.contextmanager
def watch_peers(rank: int, directory: Path) -> Generator[None]:
    """Around a run: if this process is ended inside the context, a watcher process prints how to continue."""
    command = [sys.executable, "-m", "suite.launch.peer_failure", str(rank), str(directory)]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # so that Ctrl-C does not end it
    try:
        yield
    finally:
        watcher.communicate(b"over")


def main(rank: str, directory: str) -> None:
    """Wait until the run closes standard input, or its process ends; print how to continue in the second case."""
    if not sys.stdin.buffer.read():
        from suite.launch import ending  # imported here, because it is rarely needed

        ending.print_failure(Path(directory), f"rank {rank}: was terminated, possibly because another rank failed; ")


if __name__ == "__main__":
    main(*sys.argv[1:])
