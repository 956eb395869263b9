"""A baseline: a model without optimizer, steps and batches, to compare its task's trained runs with.

`conf/baseline/<name>.yaml` names its task and its module, a `suite.contract.Baseline`. A baseline emits the events of
the training loop, and the same clock bills it.
"""

import os
import resource
from collections.abc import Callable, Iterator

from suite.contract import Evaluated, Event, Finished, Started, Task
from suite.load import Plain
from suite.settings.run import BaselineRun
from suite.training.absence import Absences
from suite.training.clock import Clock
from suite.training.idle import wait_until_idle
from suite.training.metrics import read_metrics


def measure_baseline(task: Task, run: BaselineRun, absences: Callable[[], Absences] = Absences) -> Iterator[Event]:
    """Fit and score a baseline.

    Fitting is billed as training, scoring as evaluation. The data is made before the clock starts, as for a run.

    Args:
        task: the task.
        run: the run.
        absences: returns the seconds in which this process did not run; they are not billed.

    Yields:
        `Started`, one `Evaluated`, whose step and samples are None, and `Finished`.
    """
    member = run.baseline.member
    clock = Clock(lambda: None, wait_until_idle=wait_until_idle, absences=absences)
    task.batch("train", run.seed, 0)
    yield Started(0, facts=facts())
    clock.start()
    model = member.fit(task, run.seed)
    with clock.paused("evaluation"):
        metrics = read_metrics(task, member.score(task, model))
        yield Evaluated(None, None, clock.seconds, clock.wall, metrics)
    with clock.paused("logging"):
        reached = task.targets and all(target.met(metrics) for target in task.targets)
        yield Finished(0, {"kind": "reached" if reached else "exhausted"}, facts() | clock.facts())


def facts() -> dict[str, Plain]:
    """Return the entries of the result that an engine would provide, such as `device`."""
    return {
        "device": "cpu",
        "parameters": None,  # of a network
        "compile_seconds": 0.0,
        "compile_cache": None,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "bytes": {"sent": 0, "by_name": {}},
    }


def prepare(threads: int) -> None:
    """Limit the threads of OpenMP; call before a library loads it."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
