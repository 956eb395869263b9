"""Ranks that another program has started first report to rank 0; one line names the missing ranks if some are missing.

The frameworks' own errors for a missing rank, a used port or a wrong address are pages long and do not name the rank.
Rank 0 listens at the port that the framework will use next, and every other rank sends its number there.
"""

import contextlib
import errno
import json
import socket
import time
from collections.abc import Iterable

from suite.contract import UserError
from suite.engine.ranks.listening import listen_at

PAUSE = 0.2  # seconds between two attempts to reach rank 0
UNKNOWN = 30.0  # seconds for which a host's name may be unknown; clusters may register names late
GREETING = 5.0  # seconds that a process may take to send its rank
GRACE = 5.0  # seconds that other ranks wait longer than rank 0, so that they receive its error
LINE = 4096  # largest size of a message in bytes


def meet_ranks(rank: int, ranks: int, address: str, deadline: float) -> None:
    """Return when all processes of a run have joined.

    Args:
        rank: of this process.
        ranks: number of processes.
        address: where rank 0 listens, host:port.
        deadline: seconds to wait.

    Raises:
        UserError: if ranks are missing, which are named, or the address is wrong.
    """
    host, port = parse_address(address)
    if ranks > 1:
        (_receive(ranks, address, port, deadline) if rank == 0 else _report(rank, ranks, address, host, port, deadline))


def parse_address(address: str) -> tuple[str, int]:
    """Split `launch.address` into host and port.

    Raises:
        UserError: if it is not HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"launch.address={address}: must be HOST:PORT, with a port from 1 to 65535")
    return host.strip("[]"), int(port)


# -------------------------------------------------------------------------------------------------------- rank 0
def _receive(ranks: int, address: str, port: int, deadline: float) -> None:
    """Wait for the other ranks; then send them the start, or the error."""
    until = time.monotonic() + deadline
    joined: dict[int, socket.socket] = {}
    with _listening(address, port) as server, contextlib.ExitStack() as stack:
        try:
            while missing := _missing(joined, ranks):
                server.settimeout(max(0.01, until - time.monotonic()))
                try:
                    visitor = stack.enter_context(server.accept()[0])
                except TimeoutError:
                    raise UserError(_absent(missing, ranks, address, deadline)) from None
                if greeting := _greeting(visitor):
                    _join(joined, greeting, visitor, ranks)
        except UserError as error:
            _answer(joined.values(), str(error))
            raise
        _answer(joined.values(), "")
        for visitor in joined.values():  # the side that closes first blocks the port, which rank 0 needs next
            with contextlib.suppress(OSError):
                visitor.recv(1)


def _missing(joined: dict[int, socket.socket], ranks: int) -> list[int]:
    """Ranks that have not joined; if all have, those that have left since, which are removed from `joined`."""
    missing = [rank for rank in range(1, ranks) if rank not in joined]
    if not missing:
        missing = [rank for rank, visitor in joined.items() if not _waits(visitor)]
        for rank in missing:
            joined.pop(rank).close()
    return sorted(missing)


def _listening(address: str, port: int) -> socket.socket:
    """A listening socket at the port.

    Raises:
        UserError: if the port cannot be used.
    """
    try:
        return listen_at(address)
    except OSError as error:
        reason = {
            errno.EADDRINUSE: "is in use on this host; end the process that uses it",
            errno.EACCES: "is reserved for root",
        }.get(error.errno or 0, f"cannot be used ({error.strerror})")
        raise UserError(
            f"launch.address={address}: port {port} {reason}, or set another port, the same for every rank"
        ) from error


def _greeting(visitor: socket.socket) -> dict[str, int] | None:
    """Return the rank and the number of ranks that a process sends; None for a process that sends something else."""
    try:
        visitor.settimeout(GREETING)
        message = json.loads(visitor.recv(LINE))
        return {"rank": int(message["rank"]), "ranks": int(message["ranks"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _join(joined: dict[int, socket.socket], greeting: dict[str, int], visitor: socket.socket, ranks: int) -> None:
    """Add a rank to `joined`.

    Raises:
        UserError: if its number, or its number of ranks, contradicts the others.
    """
    rank = greeting["rank"]
    fault = ""
    if greeting["ranks"] != ranks:
        fault = (
            f"launch.processes={ranks} on rank 0, but {greeting['ranks']} on rank {rank}; set the same for every rank"
        )
    elif not 0 < rank < ranks or (rank in joined and _waits(joined[rank])):
        fault = f"launch.rank={rank}: two processes have this rank; give each process its own, 0 to {ranks - 1}"
    if fault:
        _answer([visitor], fault)
        raise UserError(fault)
    joined[rank] = visitor


def _waits(visitor: socket.socket) -> bool:
    """Return whether a process that has joined still waits; a process that was restarted has left."""
    visitor.setblocking(False)
    try:
        return visitor.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _answer(visitors: Iterable[socket.socket], fault: str) -> None:
    """Let other ranks start (empty `fault`), or send them the error; processes that have left are skipped."""
    for visitor in visitors:
        with contextlib.suppress(OSError):
            visitor.settimeout(GREETING)
            visitor.sendall(json.dumps({"fault": fault}).encode())


def _absent(missing: list[int], ranks: int, address: str, deadline: float) -> str:
    names = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
    return (
        f"{names} of {ranks} did not join at launch.address={address} within launch.deadline={deadline:g} seconds; "
        "start every rank with this address; the host must be rank 0's, as the others see it"
    )


# ---------------------------------------------------------------------------------------------------- other ranks
def _report(rank: int, ranks: int, address: str, host: str, port: int, deadline: float) -> None:
    """Report to rank 0 and wait for its answer.

    Raises:
        UserError: with rank 0's error, or if it does not answer.
    """
    began = time.monotonic()
    with _connection(address, host, port, deadline) as server:
        server.settimeout(max(1.0, began + deadline + GRACE - time.monotonic()))
        try:
            server.sendall(json.dumps({"rank": rank, "ranks": ranks}).encode())
            answer = json.loads(server.recv(LINE))
            fault = str(answer["fault"])
        except TimeoutError:
            fault = (
                f"rank 0 at launch.address={address} did not start the run within launch.deadline={deadline:g} seconds"
            )
        except OSError:
            fault = f"rank 0 at launch.address={address} ended before all ranks had joined; see its output"
        except (ValueError, KeyError, TypeError):
            fault = (
                f"launch.address={address}: the process that answers there is not rank 0 of this run, or it has "
                "ended; see rank 0's output, or set another port, the same for every rank"
            )
    if fault:
        raise UserError(fault)


def _connection(address: str, host: str, port: int, deadline: float) -> socket.socket:
    """Connect to rank 0, which may not listen yet.

    Raises:
        UserError: if the host is unknown, or nobody answers within the deadline.
    """
    began = time.monotonic()
    while True:
        waited = time.monotonic() - began
        try:
            return socket.create_connection((host, port), max(1.0, deadline - waited))
        except socket.gaierror as error:
            if waited > min(deadline, UNKNOWN):
                raise UserError(
                    f"launch.address={address}: the host {host} is unknown on this machine; set rank 0's name or "
                    "address as the other ranks see it"
                ) from error
        except OSError as error:
            if waited > deadline:
                reason = error.strerror or "no answer"
                raise UserError(
                    f"no process answered at launch.address={address} within launch.deadline={deadline:g} seconds "
                    f"({reason}); start rank 0 there, and every rank with the same address"
                ) from error
        time.sleep(PAUSE)
