"""The training loop: a generator of events. It determines when to stop, when to evaluate, and what the clock counts.

Consumers of the events may take any time, because the clock is stopped at each yield.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from suite.contract import (
    Checkpointed,
    Engine,
    Evaluated,
    Event,
    Finished,
    Generates,
    Sparse,
    Started,
    Step,
    Target,
    Task,
)
from suite.settings.run import Run
from suite.training import schedule
from suite.training.adaptation import Adaptation
from suite.training.clock import Clock
from suite.training.idle import wait_until_idle
from suite.training.weights import Keeper

Batch = dict[str, Any]


def train(
    task: Task,
    engine: Engine,
    run: Run,
    *,
    save: Callable[[int, dict[str, Any], Any], str] | None = None,
    keep: Callable[[int, Mapping[str, Any]], Event | None] | None = None,
    restored: tuple[dict[str, Any], Any] | None = None,
    stop: Callable[[], str | None] = lambda: None,
    kernel_bytes: Callable[[], Mapping[str, int]] | None = None,
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

    Yields:
        `Started`, then `Step`, `Evaluated`, `Decided` and `Checkpointed` as they happen, and `Finished` last.
    """
    total, start = run.max_steps, restored[0]["step"] if restored else 0
    rank, world = engine.share

    def batch(split: str, index: int) -> Batch:
        return task.batch(split, run.seed, index, rank, world)

    loader = Loader(batch, range(start, total), run.prefetch)
    clock = Clock(engine.synchronize, background=loader, wait_until_idle=wait_until_idle)
    if restored:
        state, (arrays, skeleton) = restored
        engine.restore(arrays, skeleton)
        clock.restore(state["clock"])
    rate = task.rate if isinstance(task, Sparse) else 1.0
    hyper = schedule.Scheduled(total, run.schedule, run.optimizer, rate)

    def evaluate() -> Mapping[str, float | None]:
        batches = (batch("valid", index) for index in range(task.batches("valid")))
        return task.score(engine.evaluate(batches, task.generate if isinstance(task, Generates) else None))

    met = restored[0]["met"] if restored else 0  # evaluations in a row that met every target
    best = restored[0]["best"] if restored else None
    rule, last_target = run.save if keep else "none", task.targets[-1] if task.targets else None
    keeper = Keeper(rule, last_target, best)

    def saved(step: int, metrics: Mapping[str, float | None], *, final: bool) -> Iterator[Event]:
        if keep and keeper.wants(metrics, final=final) and (event := keep(step, engine.weights())):
            yield event

    def train_batch(index: int) -> Batch:
        return batch("train", index)

    adaptation = None
    if run.comm.policy:
        functions = {"batch": train_batch, "hyper": hyper, "evaluate": evaluate}
        adaptation = Adaptation(run, task, engine, clock, **functions)
        if restored:
            adaptation.restore(restored[0]["decisions"])

    def checkpoint(step: int) -> Checkpointed:
        state = {"clock": clock.state(), "decisions": list(adaptation.past) if adaptation else []}
        state |= {"best": keeper.best, "met": met}
        state["spent"] = {name: counted()[name] for name in ("bytes", "peak_memory_bytes")}
        return Checkpointed(step, save(step, state, engine.snapshot(replicated=rank == 0)) if save else "")

    def counted() -> dict[str, Any]:
        """The engine's facts of this segment, with the kernel's bytes if they are counted."""
        facts = engine.facts()
        if kernel_bytes:
            facts["bytes"]["kernel"] = kernel_bytes()
        return facts

    def finish(step: int, outcome: Mapping[str, Any]) -> Finished:
        return Finished(step, outcome, counted() | clock.facts())

    if start < total:
        engine.warm(batch("train", start), range(start, total), hyper[start])
    clock.excluded["compile"] = clock.excluded.get("compile", 0.0) + engine.facts()["compile_seconds"]
    earlier = {"before": restored[0]["spent"]} if restored else {}
    yield Started(start, restored is not None, engine.facts() | earlier)

    pending: list[tuple[int, Any]] = []
    since = 0.0
    clock.start()
    since = clock.seconds
    if not start and engine.plan.warm_start:
        engine.prepare(batch("train", index) for index in range(engine.plan.warm_start))
    with loader as batches:
        for step, data in zip(range(start, total), batches, strict=True):
            if adaptation and (decided := adaptation.before(step)):
                with clock.paused("logging"):
                    yield decided
                since = clock.seconds
            pending.append((step, engine.step(step, data, hyper[step])))
            done = step + 1
            evaluating = done % run.eval_every == 0 or done == total
            saving = bool(run.checkpoint_every) and done % run.checkpoint_every == 0 and done < total
            if not (evaluating or saving or len(pending) >= run.log_every):
                continue
            losses = engine.losses([loss for _, loss in pending])
            step_seconds = (clock.settle() - since) / len(pending)
            with clock.paused("logging"):
                seconds = clock.seconds
                for (number, _), loss in zip(pending, losses, strict=True):
                    if not math.isfinite(loss):
                        engine.compare()  # raises if the cause is a corrupted byte, not divergence
                        yield finish(number + 1, {"kind": "diverged", "step": number + 1, "loss": str(loss)})
                        return
                    samples = (number + 1) * task.batch_size
                    yield Step(number + 1, samples, loss, hyper[number], seconds, step_seconds)
                pending.clear()
            if evaluating:
                with clock.paused("evaluation"):
                    metrics = evaluate()
                    yield Evaluated(done, done * task.batch_size, clock.seconds, clock.wall, metrics)
                    met = met + 1 if _all_met(task.targets, metrics) else 0
                    enough = run.stop_at_target and met >= run.target_evaluations
                    yield from saved(done, metrics, final=enough or done == total)
                    if enough:
                        yield finish(done, {"kind": "reached", "step": done})
                        return
            signal = engine.ranks.agree(stop())
            if saving or signal:
                with clock.paused("checkpoint"):
                    yield checkpoint(done)
                    if signal:
                        yield finish(done, {"kind": "interrupted", "step": done, "signal": signal})
                        return
            since = clock.seconds
    with clock.paused("logging"):
        yield finish(total, {"kind": "exhausted", "step": total})


def _all_met(targets: tuple[Target, ...], metrics: Mapping[str, float | None]) -> bool:
    return bool(targets) and all(target.met(metrics) for target in targets)


class Loader:
    """Training batches in order; the clock's `Background`.

    A context manager; entering it returns an iterator over the batches.

    Args:
        batch: makes a batch from a split and its number.
        steps: the numbers of the batches.
        ahead: batches that one thread makes in advance; 0: make each when it is requested.
    """

    def __init__(self, batch: Callable[[str, int], Batch], steps: range, ahead: int):
        self._batch, self._steps, self._ahead = batch, steps, ahead
        self._pool = ThreadPoolExecutor(1) if ahead else None
        self._queue: deque[Future[Batch]] = deque()
        self._lock = threading.Lock()  # guards the next two
        self._worked = 0.0  # seconds for finished batches
        self._began: float | None = None  # when the thread began its current batch

    def __enter__(self) -> Iterator[Batch]:
        return self._from_thread(self._pool) if self._pool else (self._batch("train", step) for step in self._steps)

    def __exit__(self, *error: Any) -> None:
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def seconds(self) -> float:
        """Return the seconds that the thread has worked."""
        with self._lock:
            return self._worked + (time.perf_counter() - self._began if self._began is not None else 0.0)

    def wait(self) -> None:
        """Wait until the requested batches are made."""
        wait(self._queue)

    def _make(self, step: int) -> Batch:
        with self._lock:
            self._began = began = time.perf_counter()
        try:
            return self._batch("train", step)
        finally:
            with self._lock:
                self._began, self._worked = None, self._worked + time.perf_counter() - began

    def _from_thread(self, pool: ThreadPoolExecutor) -> Iterator[Batch]:
        self._queue.extend(pool.submit(self._make, step) for step in self._steps[: self._ahead])
        for step in self._steps:
            following = step + self._ahead
            if following in self._steps:
                self._queue.append(pool.submit(self._make, following))
            yield self._queue.popleft().result()
