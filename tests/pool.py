"""Ranks that stay: processes that have imported a framework and met each other, and then take one job after the other.

A job is a function of a module below tests/, called with (backend, rank, world, *arguments) on every rank.
"""

import atexit
import importlib
import multiprocessing
import os
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

MEET = 60  # seconds that a rank waits for another
KEPT = 4  # pools in a process of tests, so that memory stays small
pools: dict[tuple[str, int], "Pool"] = {}


@dataclass(frozen=True)
class Failure:
    """A rank that raised an error or died: the error's type and text, and where it was raised."""

    text: str
    place: str = ""


class Pool:
    """Connected ranks of one framework, each with a pipe to this process."""

    def __init__(self, backend: str, world: int):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        from conftest import FLAGS  # here, because ranks import this module and need no pytest

        context = multiprocessing.get_context("spawn")
        self.ranks: list[tuple[Any, Connection]] = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(backend, rank, world, address, theirs, FLAGS))
            process.start()
            theirs.close()  # so that a rank's end is seen
            self.ranks.append((process, ours))

    def run(self, job: str, arguments: tuple[Any, ...], deadline: float) -> list[Any]:
        """Every rank's answer, or its failure."""
        until = time.monotonic() + deadline
        for _, pipe in self.ranks:
            pipe.send((job, arguments))
        answers = []
        for rank, (_, pipe) in enumerate(self.ranks):
            try:
                late = not pipe.poll(max(1.0, until - time.monotonic()))
                answers.append(Failure(f"rank {rank} took more than {deadline:g} s") if late else pipe.recv())
            except (EOFError, ConnectionResetError):
                answers.append(Failure(f"rank {rank} died"))
        return answers

    def close(self) -> None:
        """End the processes; those of jax ignore SIGTERM."""
        for process, pipe in self.ranks:
            pipe.close()
            process.kill()
            process.join()


def ask(backend: str, world: int, job: str, *arguments: Any, deadline: float = 480) -> list[Any]:
    """Call `job`, as "module.function", on `world` ranks; returns every rank's answer, or its `Failure`.

    After a failure the next job gets new ranks.
    """
    key = backend, world
    if key in pools and not all(process.is_alive() for process, _ in pools[key].ranks):
        pools.pop(key).close()  # jax ends processes that have not heard of each other for a minute
    if key not in pools:
        while len(pools) >= KEPT:
            pools.pop(next(iter(pools))).close()
        pools[key] = Pool(backend, world)
    answers = pools[key].run(job, arguments, deadline)
    if any(isinstance(answer, Failure) for answer in answers):
        pools.pop(key).close()
    return answers


def run(backend: str, world: int, job: str, *arguments: Any, deadline: float = 480) -> list[Any]:
    """As `ask`, for a job in which no rank may fail."""
    answers = ask(backend, world, job, *arguments, deadline=deadline)
    failures = [answer for answer in answers if isinstance(answer, Failure)]
    assert not failures, "\n".join(f"{failure.text}\n{failure.place}" for failure in failures)
    return answers


@atexit.register
def close() -> None:
    """End all pools."""
    while pools:
        pools.popitem()[1].close()


def serve(backend: str, rank: int, world: int, address: str, pipe: Connection, flags: str) -> None:
    """Be a rank until the other end of the pipe is closed."""
    os.environ["XLA_FLAGS"] = flags  # one device for each process
    from suite import load

    try:
        load.load_half("suite.engine.ranks", backend).connect(rank, world, address, MEET)
        if backend == "jax":
            cache_every_rank()
        while True:
            job, arguments = pipe.recv()
            try:
                module, _, function = job.rpartition(".")
                answer = getattr(importlib.import_module(module), function)(backend, rank, world, *arguments)
            except Exception as error:
                kind = type(error)
                answer = Failure(f"{kind.__module__}.{kind.__qualname__}: {error}", traceback.format_exc())
            pipe.send(answer)
            if "jax" in sys.modules:  # see conftest.py
                sys.modules["jax"].clear_caches()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        os._exit(0)  # gloo's threads abort in the interpreter's own clean-up now and then


def cache_every_rank() -> None:
    """Let this rank write to jax's cache of compiled programs.

    jax lets rank 0 alone write. On CPUs the keys differ from rank to rank, so the others would compile every program
    again in every job.
    """
    from jax._src import compiler

    compiler.distributed = SimpleNamespace(global_state=SimpleNamespace(process_id=0, client=None))
