"""The loop: a generator of events. It owns the stop rule, the evaluation cadence and what the clock sees.

Everything else listens: whoever consumes the events may take any time, because the clock stands still at each yield.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from suite import communication, schedule
from suite.adapt import Adaptation
from suite.clock import Clock
from suite.comm.testbed.counters import Counter
from suite.contract import Checkpointed, Evaluated, Event, Finished, Generates, Sparse, Started, Step, Target, Task

Batch = dict[str, Any]


def train(
    task: Task,
    engine: Any,
    config: Mapping[str, Any],
    *,
    save: Callable[[int, dict[str, Any], Any], str] | None = None,
    restored: tuple[dict[str, Any], Any] | None = None,
    stop: Callable[[], str | None] = lambda: None,
) -> Iterator[Event]:
    """Train until the last target is reached, `max_steps` are made, the loss is not finite, or `stop` says so.

    Args:
        task: data, metric and targets.
        engine: one backend's engine, freshly built.
        config: the run's configuration: `seed max_steps eval_every checkpoint_every log_every prefetch schedule
            optimizer comm decisions stop_at_target`.
        save: writes a snapshot (step, state of clock and decisions, engine snapshot) and returns its path; called on
            every rank.
        restored: that state with the step, and the engine's snapshot, to go on from.
        stop: the name of a signal that asks for an end, or None.

    Yields:
        `Started`, then `Step`, `Evaluated`, `Decided` and `Checkpointed` as they happen, and `Finished` last.
    """
    clock, total, start = Clock(engine.synchronize), config["max_steps"], 0
    counter = Counter.here()  # from here on the ledger counts too; ranks have found each other before
    if restored:
        state, (arrays, skeleton) = restored
        engine.restore(arrays, skeleton)
        clock.restore(state["clock"])
        start = state["step"]
    rate = task.rate if isinstance(task, Sparse) else 1.0
    hyper = [schedule.hyper(step, total, config["schedule"], config["optimizer"], rate) for step in range(total)]
    rank, world = engine.share

    def batch(split: str, index: int) -> Batch:
        return task.batch(split, config["seed"], index, rank, world)

    def evaluate() -> Mapping[str, float]:
        batches = (batch("valid", index) for index in range(task.batches("valid")))
        return task.score(engine.evaluate(batches, task.generate if isinstance(task, Generates) else None))

    def train_batch(index: int) -> Batch:
        return batch("train", index)

    adaptation = None
    if config["comm"]["policy"]:
        given = {"batch": train_batch, "hyper": hyper, "evaluate": evaluate}
        adaptation = Adaptation(config, task, engine, clock, **given)
        if restored:
            adaptation.restore(restored[0]["decisions"])

    def checkpoint(step: int) -> Checkpointed:
        state = {"clock": clock.state(), "decisions": list(adaptation.past) if adaptation else []}
        return Checkpointed(step, save(step, state, engine.snapshot()) if save else "")

    def finish(step: int, outcome: Mapping[str, Any]) -> Finished:
        facts = engine.facts()
        if counter:
            local = communication.ranks_per_host("auto", config["world"])
            facts["bytes"]["kernel"] = {"sent": counter.total(), "ranks": local}
        return Finished(
            step,
            outcome,
            facts
            | {"train_seconds": clock.seconds, "wall_seconds": clock.wall, "excluded_seconds": dict(clock.excluded)},
        )

    if start < total:
        engine.warm(batch("train", start), range(start, total), hyper[start])
    clock.excluded["compile"] = clock.excluded.get("compile", 0.0) + engine.facts()["compile_seconds"]
    yield Started(start, restored is not None, engine.facts())

    pending: list[tuple[int, Any]] = []
    since = 0.0
    clock.start()
    since = clock.seconds
    if not start and engine.plan.warm_start:
        engine.prepare(batch("train", index) for index in range(engine.plan.warm_start))
    with Prefetch(batch, range(start, total), config["prefetch"]) as batches:
        for step, data in zip(range(start, total), batches, strict=True):
            if adaptation and (decided := adaptation.before(step)):
                with clock.paused("logging"):
                    yield decided
                since = clock.seconds
            pending.append((step, engine.step(step, data, hyper[step])))
            done = step + 1
            evaluating = done % config["eval_every"] == 0 or done == total
            saving = bool(config["checkpoint_every"]) and done % config["checkpoint_every"] == 0
            if not (evaluating or saving or len(pending) >= config["log_every"]):
                continue
            losses = engine.losses([loss for _, loss in pending])
            each = (clock.settle() - since) / len(pending)
            with clock.paused("logging"):
                seconds = clock.seconds
                for (at, _), loss in zip(pending, losses, strict=True):
                    if not math.isfinite(loss):
                        yield finish(at + 1, {"kind": "diverged", "step": at + 1, "loss": str(loss)})
                        return
                    yield Step(at + 1, (at + 1) * task.batch_size, loss, hyper[at], seconds, each)
                pending.clear()
            if evaluating:
                with clock.paused("evaluation"):
                    metrics = evaluate()
                    yield Evaluated(done, done * task.batch_size, clock.seconds, clock.wall, metrics)
                    if config["stop_at_target"] and _all_met(task.targets, metrics):
                        yield finish(done, {"kind": "reached", "step": done})
                        return
            asked = engine.ranks.agree(stop())
            if saving or asked:
                with clock.paused("checkpoint"):
                    yield checkpoint(done)
                    if asked:
                        yield finish(done, {"kind": "interrupted", "step": done, "signal": asked})
                        return
            since = clock.seconds
    with clock.paused("logging"):
        yield finish(total, {"kind": "exhausted", "step": total})


def _all_met(targets: tuple[Target, ...], metrics: Mapping[str, float]) -> bool:
    return bool(targets) and all(target.met(metrics) for target in targets)


class Prefetch:
    """Batches made ahead of time by one thread, in order; made on demand where `ahead` is 0.

    A context manager and an iterator over the batches of `steps`.
    """

    def __init__(self, batch: Callable[[str, int], Batch], steps: range, ahead: int):
        self._batch, self._steps, self._ahead = batch, steps, ahead
        self._pool = ThreadPoolExecutor(1) if ahead else None

    def __enter__(self) -> Iterator[Batch]:
        return self._from_thread(self._pool) if self._pool else (self._batch("train", step) for step in self._steps)

    def __exit__(self, *error: Any) -> None:
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _from_thread(self, pool: ThreadPoolExecutor) -> Iterator[Batch]:
        queue: list[Future[Batch]] = [pool.submit(self._batch, "train", step) for step in self._steps[: self._ahead]]
        for step in self._steps:
            following = step + self._ahead
            if following in self._steps:
                queue.append(pool.submit(self._batch, "train", following))
            yield queue.pop(0).result()
