"""Agreement of the processes of a pipeline in jax."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from statistics import median

import jax
import numpy as np
from jax.experimental import multihost_utils

from suite.comm.partition.calibration import Passes
from suite.comm.partition.plan import Plan
from suite.comm.transport import jax_messages
from suite.contract import UserError

PAUSE = 5.0  # seconds between signs of life; on CPUs, a process that waits 30 seconds for another gives up


@contextlib.contextmanager
def meet_processes() -> Iterator[None]:
    """Around work without communication that takes some processes longer than others; at its end, all are done."""
    if jax.process_count() == 1:
        yield
        return
    done, ended = threading.Event(), Future[None]()
    threading.Thread(target=_meet, args=(done, ended), daemon=True).start()  # must not keep a failed process alive
    yield
    done.set()
    ended.result()


def _meet(done: threading.Event, ended: "Future[None]") -> None:
    """Meet the other processes again and again until all are done."""
    try:
        while not multihost_utils.process_allgather(np.int32(done.wait(PAUSE))).all():
            pass
        ended.set_result(None)
    except Exception as error:
        ended.set_exception(error)


def agree_on(make: Callable[[], Plan]) -> Plan:
    """Process 0's plan, in every process; its error, too."""
    if jax.process_count() == 1:
        return make()
    answer: Plan | str = ""
    with meet_processes():
        if jax.process_index() == 0:
            try:
                answer = make()
            except Exception as error:  # or the other processes would wait
                answer = str(error) if isinstance(error, UserError) else f"process 0 could not plan: {error!r}"
    answer = jax_messages.broadcast(answer)
    if isinstance(answer, str):
        raise UserError(answer)
    return answer


def gather_values(passes: Mapping[int, Passes], world: int) -> dict[int, Passes]:
    """Return the median seconds of the passes of every rank, in every process.

    Args:
        passes: of this process's ranks, by rank.
        world: number of ranks.
    """
    seconds = np.zeros((world, 2))
    for rank, own in passes.items():
        seconds[rank] = median(own.forward), median(own.backward)
    if jax.process_count() > 1:
        # as bytes, because arrays of jax may have no double precision
        rows = np.frombuffer(np.asarray(multihost_utils.process_allgather(seconds.view(np.uint8))).tobytes())
        seconds = rows.reshape(-1, world, 2).sum(0)
    return {rank: Passes([forward], [backward]) for rank, (forward, backward) in enumerate(seconds) if forward}
