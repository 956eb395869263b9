"""Billed time: an asynchronous step, host work that straddles an evaluation, and nothing of the evaluation."""

import functools
import subprocess
import sys
import threading
import time

import pytest
from engines import brief

from suite.contract import Data, Evaluated, Finished, Plan, Target
from suite.training.clock import Clock
from suite.training.loader import Loader
from suite.training.loop import train

WORK = 0.05


class Timer:
    """A device that works in the background: `issue` returns at once."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def issue(self, seconds: float) -> None:
        thread = threading.Thread(target=time.sleep, args=(seconds,))
        thread.start()
        self.threads.append(thread)

    def synchronize(self) -> None:
        for thread in self.threads:
            thread.join()
        self.threads.clear()


class Hours:
    """Time that passes only where a test says so, so that a busy machine changes nothing."""

    def __init__(self) -> None:
        self.now, self.ready = 0.0, 0.0

    def issue(self, seconds: float) -> None:
        self.ready = max(self.ready, self.now + seconds)

    def synchronize(self) -> None:
        self.now = max(self.now, self.ready)


@pytest.mark.quick
def test_asynchronous_work_is_billed_to_training_not_to_the_pause() -> None:
    hours = Hours()
    clock = Clock(hours.synchronize, lambda: hours.now)
    clock.start()
    hours.issue(WORK)
    with clock.paused("evaluation"):
        pass
    assert clock.seconds == WORK
    assert clock.excluded["evaluation"] == 0.0


@pytest.mark.quick
def test_a_pause_is_not_billed() -> None:
    hours = Hours()
    clock = Clock(hours.synchronize, lambda: hours.now)
    clock.start()
    with clock.paused("evaluation"):
        hours.now += WORK
    assert clock.seconds == 0.0
    assert clock.excluded["evaluation"] == clock.wall == WORK


@pytest.mark.quick
def test_the_clock_goes_on_after_a_restore() -> None:
    now = iter(float(n) for n in range(100))
    first = Clock(lambda: None, lambda: next(now))
    first.start()
    with first.paused("checkpoint"):
        state = first.state()
    loader = Loader(lambda split, index: {}, range(0), 0)
    loader.waited = 0.5
    second = Clock(lambda: None, lambda: next(now), background=loader)
    second.restore({**state, "waited": 0.25})
    second.start()
    assert second.waited == second.state()["waited"] == 0.75
    assert second.seconds > state["billed"] > 0
    assert second.wall > state["wall"]


class Task:
    """Nothing but a number of batches."""

    name, version, group, batch_size, eval_batch_size = "clock", "1", 1, 1, 1
    targets = (Target("top1", 101.0),)
    data = Data("generated", "clock", "1", {"train": 1, "valid": 1})

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> dict[str, int]:
        return {"index": index}

    def batches(self, split: str) -> int:
        return 1

    def score(self, parts: object) -> dict[str, float]:
        time.sleep(2 * WORK)
        return {"top1": 1.0}


class Engine:
    """Steps that return at once; work on the device, and work on the host that an optimizer left under way."""

    share, plan, takes_bytes = (0, 1), Plan(), False

    def __init__(self, *, device: float, host: float) -> None:
        self.device, self.host, self.timer = device, host, Timer()
        self.ranks = self

    def warm(self, batch: object, steps: range, hyper: object) -> None:
        pass

    def step(self, step: int, batch: object, hyper: object) -> float:
        self.timer.issue(self.device)
        self.timer.issue(self.host)  # still running when the evaluation begins
        return 1.0

    def losses(self, pending: list[float]) -> list[float]:
        return pending

    def evaluate(self, batches: object, generate: object = None) -> list[object]:
        return []

    def agree(self, signal: str | None) -> str | None:
        return signal

    def synchronize(self) -> None:
        self.timer.synchronize()

    def facts(self) -> dict[str, float]:
        return {"compile_seconds": 0.0}


class Evaluating(Task):
    """An evaluation takes twice as long as a step."""

    def __init__(self, hours: Hours) -> None:
        self.hours = hours

    def score(self, parts: object) -> dict[str, float]:
        self.hours.now += 2 * WORK
        return {"top1": 1.0}


@pytest.mark.quick
@pytest.mark.parametrize("device, host", [(WORK, 0.0), (0.0, WORK)])
def test_the_loop_bills_steps_and_only_steps(
    device: float, host: float, idle: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from suite.training import loop

    hours = Hours()
    monkeypatch.setattr(loop, "Clock", functools.partial(Clock, now=lambda: hours.now))
    engine = Engine(device=device, host=host)
    engine.timer = hours  # type: ignore[assignment]
    points = []
    for event in train(Evaluating(hours), engine, brief(4, eval_every=2, log_every=100)):  # type: ignore[arg-type]
        if isinstance(event, Evaluated):
            points.append(event)
        if isinstance(event, Finished):
            last = event
    # two steps run at once before each evaluation
    assert points[0].train_seconds == pytest.approx(WORK)
    assert last.facts["train_seconds"] == pytest.approx(2 * WORK)
    assert last.facts["excluded_seconds"]["evaluation"] == pytest.approx(2 * 2 * WORK)
    assert last.outcome["kind"] == "exhausted"


@pytest.mark.quick
def test_what_a_warm_up_leaves_on_the_device_is_not_billed(idle: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from suite.training import loop

    hours = Hours()
    monkeypatch.setattr(loop, "Clock", functools.partial(Clock, now=lambda: hours.now))
    engine = Engine(device=0.0, host=0.0)
    engine.timer = hours  # type: ignore[assignment]
    monkeypatch.setattr(engine, "warm", lambda *arguments: hours.issue(WORK))
    *_, last = train(Evaluating(hours), engine, brief(1))  # type: ignore[arg-type]
    assert isinstance(last, Finished) and last.facts["train_seconds"] == 0.0


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_the_engine_waits_for_its_device(backend: str) -> None:
    """Training seconds of asynchronous steps equal those of steps that are waited for one by one, within a factor."""
    import engines

    def seconds(each: bool) -> float:
        made = engines.engine(engines.config("kfac", backend, precision="float32"))
        engines.advance(made, range(2))
        clock = Clock(made.synchronize)
        clock.start()
        for step in range(2, 42):
            made.step(step, made.task.batch("train", 0, step), {})
            if each:
                made.synchronize()
        with clock.paused("evaluation"):
            pass
        return clock.seconds

    together, apart = min(seconds(False) for _ in range(3)), min(seconds(True) for _ in range(3))
    assert together > apart / 5


class Batches(Task):
    """Batches that take a while to make, and evaluations that take longer."""

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> dict[str, int]:
        if split == "train":
            time.sleep(WORK)
        return {"index": index}


@pytest.mark.quick
@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_batches_made_while_the_clock_stands_are_billed(prefetch: int, idle: None) -> None:
    """An evaluation lasts as long as two batches take, so that a thread could make them all unbilled."""
    steps = 8
    *_, last = train(Batches(), Engine(device=0.0, host=0.0), brief(steps, prefetch=prefetch))  # type: ignore
    assert isinstance(last, Finished)
    assert last.facts["train_seconds"] >= steps * WORK
    evaluation = last.facts["excluded_seconds"]["evaluation"]
    assert evaluation >= steps * 2 * WORK * 0.9
    assert last.facts["train_seconds"] < evaluation, "half as long; the ratio holds on a busy machine, too"


def test_a_slow_listener_does_not_hide_the_making_of_batches() -> None:
    """Logging is not waited for, so the thread goes on, and its seconds are billed."""
    steps, last = 6, None
    for event in train(Batches(), Engine(device=0.0, host=0.0), brief(steps, prefetch=4, eval_every=steps)):  # type: ignore
        time.sleep(2 * WORK)
        last = event
    assert isinstance(last, Finished) and last.facts["train_seconds"] >= steps * WORK


class Worker(Engine):
    """An engine whose optimizer computes in a thread that nobody knows of."""

    def __init__(self, seconds: float) -> None:
        super().__init__(device=0.0, host=0.0)
        self.seconds, self.over = seconds, threading.Event()

    def step(self, step: int, batch: object, hyper: object) -> float:
        def compute() -> None:
            until = time.thread_time() + self.seconds
            while time.thread_time() < until and not self.over.is_set():
                sum(range(1000))

        threading.Thread(target=compute, daemon=True).start()
        return 1.0


def test_an_unannounced_thread_is_awaited_and_billed() -> None:
    *_, last = train(Task(), Worker(0.5), brief(1))  # type: ignore
    assert isinstance(last, Finished)
    assert last.facts["train_seconds"] >= 0.5
    assert last.facts["busy_pauses"] == 0


class Parent(Engine):
    """An engine whose optimizer computes in a child process."""

    def step(self, step: int, batch: object, hyper: object) -> float:
        busy = "import time\nwhile time.process_time() < 0.5: pass"
        subprocess.Popen([sys.executable, "-S", "-c", busy])
        return 1.0


def test_a_child_process_is_awaited_and_billed() -> None:
    *_, last = train(Task(), Parent(device=0.0, host=0.0), brief(1))  # type: ignore
    assert isinstance(last, Finished)
    assert last.facts["train_seconds"] >= 0.4
    assert last.facts["busy_pauses"] == 0


def test_a_thread_that_never_ends_marks_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from suite.training import idle, loop

    monkeypatch.setattr(loop, "wait_until_idle", lambda patience: idle.wait_until_idle(min(patience, 0.1)))
    engine = Worker(60.0)
    *_, last = train(Task(), engine, brief(2))  # type: ignore
    engine.over.set()
    assert isinstance(last, Finished) and last.facts["busy_pauses"] == 2


IDLE = """
from suite.training.clock import SHORT, Clock
from suite.training.idle import wait_until_idle

for _ in range(5):  # another process may take the core for a while
    clock = Clock(lambda: None, wait_until_idle=wait_until_idle)
    clock.start()
    with clock.paused("evaluation"):
        pass
    assert clock.busy_pauses == 0
    assert set(clock.facts()["processor_seconds"]) == {"training", "excluded"}
    if clock.seconds < SHORT:
        break
else:
    raise AssertionError("never idle")
"""


def test_waiting_for_idleness_costs_an_idle_process_nothing() -> None:
    """In a process with nothing else; the one that runs the tests has the threads of all frameworks."""
    subprocess.run([sys.executable, "-c", IDLE], check=True, timeout=120)
