"""What is billed: an asynchronous step, host work that straddles an evaluation, and nothing of the evaluation."""

import threading
import time

import pytest

from suite.clock import Clock
from suite.contract import Data, Evaluated, Finished, Plan, Target
from suite.train import train

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


def test_asynchronous_work_is_billed_to_training_not_to_the_pause() -> None:
    device = Timer()
    clock = Clock(device.synchronize)
    clock.start()
    device.issue(WORK)
    with clock.paused("evaluation"):
        pass
    assert clock.seconds >= WORK
    assert clock.excluded["evaluation"] < WORK / 2


def test_a_pause_is_not_billed() -> None:
    clock = Clock(lambda: None)
    clock.start()
    with clock.paused("evaluation"):
        time.sleep(WORK)
    assert clock.seconds < WORK / 2
    assert clock.excluded["evaluation"] >= WORK
    assert clock.wall >= WORK


def test_the_clock_goes_on_after_a_restore() -> None:
    now = iter(float(n) for n in range(100))
    first = Clock(lambda: None, lambda: next(now))
    first.start()
    with first.paused("checkpoint"):
        state = first.state()
    second = Clock(lambda: None, lambda: next(now))
    second.restore(state)
    second.start()
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

    share, plan = (0, 1), Plan()

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


@pytest.mark.parametrize("device, host", [(WORK, 0.0), (0.0, WORK)])
def test_the_loop_bills_steps_and_only_steps(device: float, host: float) -> None:
    steps = 4
    config = {"seed": 0, "max_steps": steps, "eval_every": 2, "checkpoint_every": 0, "log_every": 100, "prefetch": 0}
    config |= {"schedule": {"shape": "constant"}, "optimizer": {"lr": 1.0}, "stop_at_target": True}
    config |= {"comm": {"policy": None}}
    points = []
    for event in train(Task(), Engine(device=device, host=host), config):  # type: ignore[arg-type]
        time.sleep(WORK / 5)  # a slow listener
        if isinstance(event, Evaluated):
            points.append(event)
        if isinstance(event, Finished):
            last = event
    # two steps run at once before each evaluation, so between one and two times the work
    assert WORK <= points[0].train_seconds < 2 * WORK + WORK / 2
    assert last.facts["train_seconds"] < 2 * (2 * WORK + WORK / 2)
    assert last.facts["excluded_seconds"]["evaluation"] >= 2 * 2 * WORK
    assert last.outcome["kind"] == "exhausted"


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
