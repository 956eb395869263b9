"""When the loop evaluates and stops, and which batches it asks for; with an engine that does nothing."""

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from engines import brief
from test_clock import Engine, Task

from suite.contract import Checkpointed, Evaluated, Event, Finished, Plan, Step, Target, UserError
from suite.training.loader import Loader, Validation
from suite.training.loop import train
from suite.training.metrics import read_metrics

CLOCK = {
    "billed": 0.0,
    "wall": 0.0,
    "excluded": {},
    "processor": {"training": 0.0, "excluded": 0.0},
    "busy_pauses": 0,
    "gaps": 0.0,
}
BEFORE = {"clock": CLOCK, "decisions": [], "best": None, "spent": {}}  # a checkpoint's state, without step and met


class Scored(Task):
    """Evaluations with given scores; notes the training batches."""

    targets = (Target("top1", 50.0),)

    def __init__(self, *scores: float):
        self.scores: Iterator[float] = iter(scores)
        self.seen: list[tuple[int, int]] = []

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> dict[str, int]:
        if split == "train":
            self.seen.append((seed, index))
        return {"index": index}

    def score(self, parts: object) -> dict[str, float]:
        return {"top1": next(self.scores)}


class Idle(Engine):
    """Notes the batches of its steps."""

    def __init__(self) -> None:
        super().__init__(device=0.0, host=0.0)
        self.trained: list[int] = []

    def step(self, step: int, batch: Any, hyper: object) -> float:
        self.trained.append(batch["index"])
        return 1.0

    def restore(self, arrays: object, skeleton: object) -> None:
        pass


def events(task: Scored, steps: int, engine: Any = None, restored: Any = None, **changes: object) -> list[Event]:
    run = brief(steps, **changes)
    return list(train(task, engine or Idle(), run, restored=restored))  # type: ignore[arg-type]


def test_evaluations_come_after_every_so_many_steps_and_after_the_last() -> None:
    made = events(Scored(*[0.0] * 3), 8, eval_every=3)
    assert [event.step for event in made if isinstance(event, Evaluated)] == [3, 6, 8]


def test_checkpoints_and_log_entries_come_when_the_settings_page_says() -> None:
    """`checkpoint_every`: updates between checkpoints, none at the end. `log_every`: updates between log entries; an
    evaluation and a checkpoint need the losses before them."""

    class Saving(Idle):
        def facts(self) -> dict[str, Any]:
            return {"compile_seconds": 0.0, "bytes": {}, "peak_memory_bytes": 0}

        def snapshot(self, *, replicated: bool) -> tuple[Any, Any]:
            return {}, {}

    made = events(Scored(*[0.0] * 2), 15, Saving(), eval_every=11, checkpoint_every=5, log_every=4)
    assert [event.step for event in made if isinstance(event, Checkpointed)] == [5, 10]
    steps = [event for event in made if isinstance(event, Step)]
    assert [event.step for event in steps] == list(range(1, 16))
    batches = [list(group) for _, group in itertools.groupby(steps, lambda event: event.train_seconds)]
    assert [group[-1].step for group in batches] == [4, 5, 9, 10, 11, 15]


@pytest.mark.parametrize("met, last", [(0, 4), (1, 1)])
def test_evaluations_that_meet_the_targets_must_follow_each_other(met: int, last: int) -> None:
    """Those before a checkpoint count, too."""
    restored = BEFORE | {"step": 0, "met": met}, ({}, {})
    made = events(Scored(60.0, 40.0, 60.0, 60.0, 60.0), 5, restored=restored, target_evaluations=2)
    assert isinstance(made[-1], Finished) and made[-1].outcome == {"kind": "reached", "step": last}


@pytest.mark.quick
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_outputs_that_are_not_finite_end_the_run_and_leave_no_metric(number: float) -> None:
    """Whatever the task's score says: 60 would have met the target. In padding they change nothing."""

    class Diverging(Idle):
        def evaluate(self, batches: object, generate: object = None) -> Iterator[dict[str, Any]]:
            yield {"weight": np.array([1, 0], np.float32), "logits": np.array([[0.0, 0.0], [number, 0.0]])}
            if len(self.trained) == 4:
                yield {"weight": np.array([1, 0], np.float32), "logits": np.array([[0.0, number], [0.0, 0.0]])}

    class Reading(Scored):
        def score(self, parts: Any) -> dict[str, float]:
            return {"top1": 60.0 if len(list(parts)) == 2 else 40.0}

    made = events(Reading(), 6, Diverging(), eval_every=2)
    assert [event.metrics for event in made if isinstance(event, Evaluated)] == [{"top1": 40.0}, {"top1": None}]
    assert isinstance(made[-1], Finished)
    assert made[-1].outcome == {"kind": "diverged", "step": 4, "outputs": "not finite"}


@pytest.mark.quick
def test_a_score_that_is_no_finite_number_meets_no_target() -> None:
    """It is undefined also where the outputs are finite; what is no number, or lacks the target's metric, is named."""
    less = type("Less", (Scored,), {"targets": (Target("top1", 50.0, higher_is_better=False),)})
    given: Any = [-np.inf, np.nan, np.float32(50.5), np.float32(49.5)]
    made = events(less(*given), 4, eval_every=1)
    metrics = [event.metrics["top1"] for event in made if isinstance(event, Evaluated)]
    assert metrics == [None, None, 50.5, 49.5] and type(metrics[-1]) is float
    assert isinstance(made[-1], Finished) and made[-1].outcome == {"kind": "reached", "step": 4}
    for scored, words in (({"top5": 1.0}, "score returns top5, but a target needs top1"), ({"top1": "a"}, "no number")):
        with pytest.raises(UserError, match=words):
            read_metrics(Scored(), scored)  # type: ignore[arg-type]


def test_threads_pin_the_batches_of_an_engine_that_asks_for_it() -> None:
    threads = set()

    class Pinning(Idle):
        def pin_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
            threads.add(threading.current_thread())
            return {"index": batch["index"] + 100}

    engine = Pinning()
    events(Scored(*[0.0] * 3), 3, engine, prefetch=2)
    assert engine.trained == [100, 101, 102]
    assert threads - {threading.main_thread()}


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_so_many_batches_are_prepared_in_advance_for_training_and_evaluation(prefetch: int) -> None:
    """While one batch is used, threads have made the next ones, up to the last; and no more of them."""
    made: dict[str, set[int]] = {"train": set(), "valid": set()}

    def check(split: str, used: int) -> None:
        wanted, until = set(range(min(used + 1 + prefetch, 8))), time.monotonic() + 20
        while made[split] != wanted and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.01)  # a thread would have begun with another one
        assert made[split] == wanted, (split, used)

    class Counted(Scored):
        def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> dict[str, int]:
            made[split].add(index)
            return {"index": index}

        def batches(self, split: str) -> int:
            return 8

    class Using(Idle):
        def step(self, step: int, batch: Any, hyper: object) -> float:
            check("train", step)
            return super().step(step, batch, hyper)

        def evaluate(self, batches: Any, generate: object = None) -> list[Any]:
            for number, _ in enumerate(batches):
                check("valid", number)
            return []

    events(Counted(0.0), 8, Using(), prefetch=prefetch, eval_every=8)
    assert made == {"train": set(range(8)), "valid": set(range(8))}


def test_a_run_begins_with_the_statistics_of_so_many_batches() -> None:
    """`warm_start` of the optimizer's plan: the first ones. A resumed run has its statistics."""

    class Preparing(Idle):
        plan, prepared = Plan(), list[int]()
        plan.warm_start = 3

        def prepare(self, batches: Any) -> None:
            assert not self.trained
            self.prepared = [batch["index"] for batch in batches]

    fresh, resumed = Preparing(), Preparing()
    events(Scored(0.0), 5, fresh, eval_every=5)
    events(Scored(0.0), 5, resumed, (BEFORE | {"step": 2, "met": 0}, ({}, {})), eval_every=5)
    assert (fresh.prepared, resumed.prepared) == ([0, 1, 2], [])


@pytest.mark.parametrize("prefetch", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_a_resumed_run_asks_for_the_batches_that_follow(prefetch: int) -> None:
    task, engine = Scored(0.0), Idle()
    restored = BEFORE | {"step": 2, "met": 0}, ({}, {})
    events(task, 6, engine, restored, seed=7, prefetch=prefetch, eval_every=6)
    assert engine.trained == [2, 3, 4, 5]
    assert set(task.seen) == {(7, index) for index in engine.trained}


@pytest.mark.quick
def test_threads_make_batches_at_the_same_time_and_in_order() -> None:
    together = threading.Barrier(3, timeout=20)

    def make(split: str, index: int) -> dict[str, Any]:
        together.wait()
        return {"index": (split, index)}

    for split in ("train", "valid"):
        with Loader(make, range(2, 8), 4, split=split, threads=3) as batches:
            assert [batch["index"] for batch in batches] == [(split, index) for index in range(2, 8)]
    validation = Validation(make, 6, most_bytes=0, ahead=3, threads=3)
    assert [batch["index"] for batch in validation] == [("valid", index) for index in range(6)]


@pytest.mark.quick
def test_threads_that_work_at_the_same_time_are_billed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def make(split: str, index: int) -> dict[str, Any]:
        nonlocal now
        now += 1
        if index:
            loader._make(index - 1)  # a second batch while this one is made
            assert loader.seconds() == now - before
        now += 1
        return {}

    loader, before = Loader(make, range(2), 2, threads=2), 0.0
    loader._make(1)
    assert loader.seconds() == 4.0
    now, before = 10.0, 6.0  # 4 to 10: no thread works
    loader._make(1)
    assert loader.seconds() == 8.0


@pytest.mark.quick
@pytest.mark.parametrize("ahead", [0, 1])
def test_only_the_wait_for_a_batch_counts_as_waiting(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    """Four batches of two seconds; a thread makes all but the first one during the steps."""
    now, stepping = 0.0, threading.Semaphore(0)
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def make(split: str, index: int) -> dict[str, Any]:
        nonlocal now
        if ahead and index:
            stepping.acquire(timeout=20)
        now += 2
        return {}

    loader = Loader(make, range(4), ahead)
    with loader as batches:
        for _ in batches:
            stepping.release()
            loader.wait()
            now += 100
    assert loader.waited <= 2 if ahead else loader.waited == 8


def test_validation_batches_are_made_once_and_a_model_cannot_change_them() -> None:
    """Two of three fit: the third is made at every pass. A batch with anything but arrays is never kept."""
    made: list[tuple[str, int]] = []

    def make(split: str, index: int) -> dict[str, Any]:
        made.append((split, index))
        return {"x": np.full(4, float(index)), **({"name": "last"} if index == 2 else {})}

    validation = Validation(make, 3, most_bytes=2 * 32)
    for _ in range(3):
        for index, batch in enumerate(validation):
            assert (batch["x"] == index).all()
            batch["x"] += 1.0
    assert made == [("valid", index) for index in (0, 1, 2, 2, 2)]
    roomy = Validation(make, 4)
    assert [len(list(roomy)) for _ in range(2)] == [4, 4] and len(made) == 5 + 4 + 2
