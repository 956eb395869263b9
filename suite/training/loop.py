"""Training loop: a generator of events. It determines when to stop, when to evaluate, and what the clock counts.

Consumers of the events may take any time, because the clock is stopped at each yield.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from suite.contract import (
    Batch,
    Checkpointed,
    Engine,
    Evaluated,
    Event,
    Finished,
    Generates,
    Loss,
    Pins,
    SendsBytes,
    Snapshot,
    Sparse,
    Started,
    Step,
    Target,
    Task,
)
from suite.settings import rates
from suite.settings.run import Run
from suite.training.absence import Absences
from suite.training.adaptation import Adaptation
from suite.training.checkpoint import State
from suite.training.clock import Clock
from suite.training.idle import wait_until_idle
from suite.training.loader import Loader, Validation, count_spare_cores
from suite.training.metrics import read_metrics
from suite.training.weights import Keeper, Weights

Save = Callable[[int, State, Snapshot], str]
Keep = Callable[[int, Weights], Event | None]


def train(
    task: Task,
    engine: Engine,
    run: Run,
    *,
    save: Save | None = None,
    keep: Keep | None = None,
    restored: tuple[State, Snapshot] | None = None,
    stop: Callable[[], str | None] = lambda: None,
    kernel_bytes: Callable[[], Mapping[str, int]] | None = None,
    absences: Callable[[], Absences] = Absences,
) -> Iterator[Event]:
    """Train until the last target is reached, `max_steps` are made, the loss is not finite, or `stop` returns a signal.

    Args:
        task: data, metric and targets.
        engine: one backend's engine, freshly built.
        run: the run.
        save: writes a checkpoint from (step, state of the loop, engine snapshot) and returns its path; called on every
            rank.
        keep: writes the weights (step, arrays by name) and returns the event to log; called on every rank if the
            setting `save=` requires it.
        restored: (state of the loop with its step, engine snapshot) of the checkpoint to continue from.
        stop: returns the name of a signal that requests the end of the run, or None.
        kernel_bytes: returns the bytes that the kernel has counted, for `bytes.kernel` of the result.
        absences: returns the seconds in which this process did not run; they are not billed.

    Yields:
        `Started`, then `Step`, `Evaluated`, `Decided` and `Checkpointed` as they happen, and `Finished` last.
    """
    loop = _Loop(task, engine, run, save, keep, restored, kernel_bytes, absences)
    yield loop.warm_up()
    loop.start_clock()
    with loop.loader as batches:
        for step, batch in zip(loop.steps, batches, strict=True):
            yield from loop.decide(step)
            loop.make_step(step, batch)
            for event in loop.report(step + 1, stop):
                yield event
                if isinstance(event, Finished):
                    return
    with loop.clock.paused("logging"):
        yield loop.finish(run.max_steps, "exhausted")


class _Loop:
    """State of `train`, whose arguments it takes."""

    def __init__(
        self,
        task: Task,
        engine: Engine,
        run: Run,
        save: Save | None,
        keep: Keep | None,
        restored: tuple[State, Snapshot] | None,
        kernel_bytes: Callable[[], Mapping[str, int]] | None,
        absences: Callable[[], Absences],
    ):
        state = restored[0] if restored else None
        self.task, self.engine, self.run, self.state = task, engine, run, state
        self.save, self.keep, self.kernel_bytes = save, keep, kernel_bytes
        self.steps = range(state["step"] if state else 0, run.max_steps)
        threads = count_spare_cores()
        self.loader = Loader(self.batch, self.steps, run.prefetch, threads=threads)
        self.validation = Validation(self.batch, task.batches("valid"), ahead=run.prefetch, threads=threads)
        self.clock = Clock(
            engine.synchronize, background=self.loader, wait_until_idle=wait_until_idle, absences=absences
        )
        rate = task.rate if isinstance(task, Sparse) else 1.0
        self.hyper = rates.Scheduled(run.max_steps, run.schedule, run.optimizer, rate)
        self.met = state["met"] if state else 0  # evaluations in a row that met every target
        last_target = task.targets[-1] if task.targets else None
        self.keeper = Keeper(run.save if keep else "none", last_target, state["best"] if state else None)
        self.pending: list[tuple[int, Loss]] = []  # steps whose losses are not logged yet
        self.since = 0.0  # training seconds at the first of them
        self.adaptation: Adaptation | None = None
        if run.comm.policy:
            batch, hyper, evaluate = self.train_batch, self.hyper, self.evaluate
            self.adaptation = Adaptation(run, task, engine, self.clock, batch=batch, hyper=hyper, evaluate=evaluate)
        if restored:
            arrays, skeleton = restored[1]
            engine.restore(arrays, skeleton)
            self.clock.restore(restored[0]["clock"])
            if self.adaptation:
                self.adaptation.restore(restored[0]["decisions"])

    def batch(self, split: str, index: int) -> Batch:
        """Make this process's share of a batch."""
        key = split, self.run.seed, index, *self.engine.share
        if self.engine.takes_bytes and isinstance(self.task, SendsBytes) and self.task.moments:
            batch = self.task.byte_batch(*key)
        else:
            batch = self.task.batch(*key)
        return self.engine.pin_batch(batch) if isinstance(self.engine, Pins) else batch

    def train_batch(self, index: int) -> Batch:
        """Make this process's share of a training batch."""
        return self.batch("train", index)

    def warm_up(self) -> Started:
        """Compile what the steps need, before the clock starts."""
        if self.steps:
            self.engine.warm(self.train_batch(self.steps[0]), self.steps, self.hyper[self.steps[0]])
        self.engine.synchronize()  # a device may still work on what `warm` and a restore began
        excluded, facts = self.clock.excluded, self.engine.facts()
        excluded["compile"] = excluded.get("compile", 0.0) + facts["compile_seconds"]
        earlier = {"before": self.state["spent"]} if self.state else {}
        return Started(self.steps.start, self.state is not None, facts | earlier)

    def start_clock(self) -> None:
        """Start the clock; at the start of the run, initialise the optimizer's statistics."""
        self.clock.start()
        self.since = self.clock.seconds
        if not self.steps.start and self.engine.plan.warm_start:
            self.engine.prepare(self.train_batch(index) for index in range(self.engine.plan.warm_start))

    def decide(self, step: int) -> Iterator[Event]:
        """Let the policy choose a communication mode, where there is one and a decision is due."""
        if self.adaptation and (decided := self.adaptation.before(step)):
            with self.clock.paused("logging"):
                yield decided
            self.since = self.clock.seconds

    def make_step(self, step: int, batch: Batch) -> None:
        """Make one update; its loss stays on the device."""
        self.pending.append((step, self.engine.step(step, batch, self.hyper[step])))

    def report(self, done: int, stop: Callable[[], str | None]) -> Iterator[Event]:
        """Log, evaluate and save what is due after `done` steps; the clock stops meanwhile."""
        every, last = self.run.checkpoint_every, done == self.run.max_steps
        evaluating = last or not done % self.run.eval_every
        saving = bool(every) and not done % every and not last
        if not (evaluating or saving or len(self.pending) >= self.run.log_every):
            return
        yield from self.log_steps()
        if evaluating:
            yield from self.log_evaluation(done)
        signal = self.engine.ranks.agree(stop())
        if saving or signal:
            with self.clock.paused("checkpoint"):
                yield self.checkpoint(done)
                if signal:
                    yield self.finish(done, "interrupted", signal=signal)
        self.since = self.clock.seconds

    def log_steps(self) -> Iterator[Event]:
        """Log the pending steps; a loss that is not finite ends the run."""
        losses = self.engine.losses([loss for _, loss in self.pending])
        step_seconds = (self.clock.settle() - self.since) / len(self.pending)
        with self.clock.paused("logging"):
            seconds = self.clock.seconds
            for (number, _), loss in zip(self.pending, losses, strict=True):
                if not math.isfinite(loss):
                    self.engine.compare()  # raises if the cause is a corrupted byte, not divergence
                    yield self.finish(number + 1, "diverged", loss=str(loss))
                samples = (number + 1) * self.task.batch_size
                yield Step(number + 1, samples, loss, self.hyper[number], seconds, step_seconds)
            self.pending.clear()

    def log_evaluation(self, done: int) -> Iterator[Event]:
        """Evaluate, keep the weights if they are wanted, and end the run if every target was met often enough."""
        with self.clock.paused("evaluation"):
            metrics, finite = self.evaluate()
            yield Evaluated(done, done * self.task.batch_size, self.clock.seconds, self.clock.wall, metrics)
            if not finite:
                yield self.finish(done, "diverged", outputs="not finite")
            self.met = self.met + 1 if _all_met(self.task.targets, metrics) else 0
            enough = self.run.stop_at_target and self.met >= self.run.target_evaluations
            final = enough or done == self.run.max_steps
            if self.keep and self.keeper.wants(metrics, final=final):
                kept = self.keep(done, self.engine.weights())
                yield from [kept] if kept else []
            if enough:
                yield self.finish(done, "reached")

    def evaluate(self) -> tuple[Mapping[str, float | None], bool]:
        """Compute the metrics of the validation split, and whether its outputs are finite; if not, all are None."""
        generate = self.task.generate if isinstance(self.task, Generates) else None
        outputs = _Watched(self.engine.evaluate(self.validation, generate))
        metrics = read_metrics(self.task, self.task.score(outputs))
        return (metrics if outputs.finite else dict.fromkeys(metrics)), outputs.finite

    def checkpoint(self, step: int) -> Checkpointed:
        """Write a checkpoint."""
        counted = self.count()
        state: State = {
            "step": step,
            "clock": self.clock.state(),
            "decisions": list(self.adaptation.past) if self.adaptation else [],
            "best": self.keeper.best,
            "met": self.met,
            "spent": {name: counted[name] for name in ("bytes", "peak_memory_bytes")},
        }
        snapshot = self.engine.snapshot(replicated=self.engine.share[0] == 0)
        return Checkpointed(step, self.save(step, state, snapshot) if self.save else "")

    def count(self) -> dict[str, Any]:
        """Return the engine's facts of this segment, with the kernel's bytes if they are counted."""
        facts = self.engine.facts()
        if self.kernel_bytes:
            facts["bytes"]["kernel"] = self.kernel_bytes()
        return facts

    def finish(self, step: int, kind: str, **details: str) -> Finished:
        """Make the last event."""
        return Finished(step, {"kind": kind, "step": step, **details}, self.count() | self.clock.facts())


class _Watched:
    """A model's outputs, and whether those of samples with a positive weight are finite so far."""

    def __init__(self, parts: Iterable[Batch]):
        self.parts, self.finite = parts, True

    def __iter__(self) -> Iterator[Batch]:
        for part in self.parts:
            floats = [value for value in part.values() if value.dtype.kind == "f"]
            scored = part["weight"] > 0 if "weight" in part else slice(None)
            self.finite = self.finite and all(np.isfinite(value[scored]).all() for value in floats)
            yield part


def _all_met(targets: tuple[Target, ...], metrics: Mapping[str, float | None]) -> bool:
    return bool(targets) and all(target.met(metrics) for target in targets)
