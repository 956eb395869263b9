"""One rank's segment of a run: trains, passes the events to the log and the console, and writes checkpoints."""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from suite import disk
from suite import engine as backend
from suite.comm import setup
from suite.comm.transport.kernel import Counter
from suite.contract import Engine, Event, Finished, Snapshot, Started
from suite.launch.job import Job
from suite.record.log import Log
from suite.settings.run import BaselineRun, Run
from suite.track.console import Console
from suite.training import baseline, checkpoint, weights
from suite.training.absence import Absences
from suite.training.loop import train

Restored = tuple[checkpoint.Arrays, checkpoint.Index]


@dataclass
class Segment:
    """One rank's part of an execution: from the start or a checkpoint until the run ends.

    Attributes:
        job: the job.
        engine: the backend's engine; None for a baseline.
        log: the event log; None on all ranks but 0.
        console: shows the events; None on all ranks but 0.
        made_progress: whether the run has a checkpoint or an event other than `Started`.
        absences: returns the seconds in which this process did not run.
    """

    job: Job
    engine: Engine | None
    log: Log | None
    console: Console | None
    made_progress: bool
    absences: Callable[[], Absences]

    def train(self, restored: Restored | None, received: Sequence[str]) -> Finished:
        """Train, or fit a baseline, and pass every event on; return the last one.

        Args:
            restored: the checkpoint to continue from, as `checkpoint.load_checkpoint` returns it.
            received: names of the signals received so far; the first one ends the training.
        """
        finished: Finished | None = None
        for event in self._events(restored, received):
            self._emit(event)
            finished = event if isinstance(event, Finished) else finished
            self.made_progress = self.made_progress or not isinstance(event, Started)
        assert finished is not None
        return finished

    def failure(self, error: Exception) -> Finished | None:
        """Handle the error that ended the run.

        Returns:
            The event `Finished`, which has been logged; None if the failure is no outcome of the run, because ranks
            differ or no step was made.

        Raises:
            WriteError: if the error is one of the disk.
            Exception: `error`, if the run has several processes: another rank may be the cause, and the checkpoint
                remains.
        """
        if isinstance(error, OSError) and error.errno in disk.PASSING:
            raise disk.WriteError(f"{error.filename or self.job.directory}: {disk.explain_error(error)}") from error
        if self.engine and self.job.processes > 1:
            raise error
        traceback.print_exception(error)
        if isinstance(error, backend.RanksDiffer) or (self.engine and not self.made_progress):
            return None
        facts = (self.engine or baseline).facts()
        finished = Finished(0, {"kind": "failed", "error": f"{type(error).__name__}: {error}"}, facts)
        self._emit(finished)
        return finished

    def _events(self, restored: Restored | None, received: Sequence[str]) -> Iterator[Event]:
        run, task = self.job.run, self.job.task
        if isinstance(run, BaselineRun):
            return baseline.measure_baseline(task, run, self.absences)
        assert self.engine is not None  # a training run has one
        start = None
        if restored:
            arrays, index = restored
            start = index, (arrays, index["skeleton"])
        return train(
            task,
            self.engine,
            run,
            save=self._save,
            keep=self._keep,
            restored=start,
            stop=lambda: received[0] if received else None,
            kernel_bytes=_kernel_bytes(run.world),
            absences=self.absences,
        )

    def _emit(self, event: Event) -> None:
        if self.log:
            self.log(event)
        if self.console:
            self.console(event)

    def _save(self, step: int, state: checkpoint.State, snapshot: Snapshot) -> str:
        """Write a checkpoint, together with all ranks; return its path."""
        job, run = self.job, self.job.run
        assert isinstance(run, Run) and self.engine is not None
        world = run.world

        def meta() -> checkpoint.Meta:
            assert self.log is not None  # called on rank 0
            return {"config_hash": job.hash, "world": world, **state, "log": self.log.state()}

        ranks, gather = self.engine.local_ranks, self.engine.ranks.gather
        return str(checkpoint.save_checkpoint(job.directory, snapshot, meta, step=step, ranks=ranks, gather=gather))

    def _keep(self, step: int, values: weights.Weights) -> Event | None:
        """Write the weights on rank 0, which receives the other ranks' rows of tables; return the event to log."""
        if self.log is None:
            return weights.send_rows(values)
        task = self.job.run.task
        about = {"task": task.name, "variant": task.variant, "hash": self.job.hash}
        return weights.save_weights(self.job.directory, step, values, about)


def _kernel_bytes(world: int) -> Callable[[], Mapping[str, int]] | None:
    """A function that returns the bytes that this host's kernel has sent since now; None outside the test bed."""
    counter = Counter.here()
    if counter is None:
        return None
    ranks = setup.count_ranks_per_host("auto", world)
    return lambda: {"sent": counter.total(), "ranks": ranks}
