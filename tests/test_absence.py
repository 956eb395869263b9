"""Time in which a process did not run: simulated clocks, and processes that are stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import ANY

import pytest

from suite.training import absence
from suite.training.absence import Absences, Watch, read_suspended
from suite.training.clock import Clock


class World:
    """Clocks and signals that a test moves."""

    def __init__(self) -> None:
        self.now = self.processor = self.suspended = 0.0
        self.signals = b""
        self.watch = Watch(self.read, lambda: self.now, lambda: self.processor, lambda: self.suspended)

    def read(self) -> bytes:
        received, self.signals = self.signals, b""
        return received

    def wait(self, seconds: float, computing: float = 0.0, signals: bytes = b"") -> None:
        self.now, self.processor, self.signals = self.now + seconds, self.processor + computing, signals


CONTINUED = bytes([signal.SIGCONT])


@pytest.mark.quick
@pytest.mark.parametrize(
    ("seconds", "computing", "signals", "expected"),
    [
        (12.0, 0.0, CONTINUED, Absences(stopped=12.0)),
        (12.0, 5.0, CONTINUED, Absences(stopped=7.0)),  # a library kept Python's lock while it computed
        (12.0, 48.0, CONTINUED, Absences()),
        (0.25, 0.0, CONTINUED, Absences()),  # SIGCONT without a stop
        (12.0, 0.0, bytes([signal.SIGTERM]), Absences(gaps=12.0)),
        (12.0, 0.0, b"", Absences(gaps=12.0)),
        (12.0, 11.75, b"", Absences()),
    ],
)
def test_a_stop_is_confirmed_by_sigcont(seconds: float, computing: float, signals: bytes, expected: Absences) -> None:
    world = World()
    world.wait(seconds, computing, signals)
    assert world.watch.look() == expected
    world.wait(0.125)
    assert world.watch.look() == expected, "and it is counted once"


def test_sigcont_after_the_look_confirms_the_stop_unless_it_is_late() -> None:
    world = World()
    world.wait(12.0)
    assert world.watch.look() == Absences(gaps=12.0)
    world.wait(0.125, signals=CONTINUED)
    assert world.watch.look() == Absences(stopped=12.0)
    world.wait(8.0)
    world.watch.look()
    world.wait(0.25)
    world.watch.look()
    for _ in range(30):
        world.wait(0.25)
        world.watch.look()
    world.wait(0.25, signals=CONTINUED)
    assert world.watch.look() == Absences(stopped=12.0, gaps=8.0)


@pytest.mark.quick
def test_stops_and_suspensions_are_excluded_and_stated_and_gaps_only_stated() -> None:
    world = World()
    clock = Clock(lambda: None, lambda: world.now, absences=world.watch.look)
    clock.start()
    world.wait(1.0, 1.0)
    world.wait(12.0, signals=CONTINUED)
    assert clock.seconds == 1.0
    world.suspended += 100.0  # monotonic clocks stand still
    with clock.paused("evaluation"):
        world.wait(2.0, 2.0)
        world.watch.look()
        world.wait(7.0, signals=CONTINUED)
    world.wait(5.0)
    with clock.paused("logging"):
        facts = clock.facts()
    assert facts["train_seconds"] == 6.0
    assert facts["excluded_seconds"] == {"evaluation": 2.0, "stopped": 19.0, "suspended": 100.0}
    assert facts["gap_seconds"] == 5.0
    assert facts["wall_seconds"] == 1 + 12 + 100 + 2 + 7 + 5
    with clock.paused("checkpoint"):
        state = clock.state()
    later = Clock(lambda: None, lambda: world.now, absences=world.watch.look)
    later.restore(state)
    later.start()
    with later.paused("logging"):
        of_this_process = {"processor_seconds": later.processor, "queued_seconds": ANY}
        assert later.facts() == facts | of_this_process | {"excluded_seconds": later.excluded}
    assert {"evaluation": 2.0, "stopped": 19.0, "suspended": 100.0}.items() <= later.excluded.items()


def test_a_wall_clock_that_jumps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with absence.watch_absences() as look:
        clock = Clock(lambda: None, absences=look)
        clock.start()
        monkeypatch.setattr(time, "time", lambda: 0.0)
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        before = clock.seconds
        monkeypatch.setattr(time, "time", lambda: 1e12)
        with clock.paused("logging"):
            facts = clock.facts()
    assert before <= facts["train_seconds"] < 1e6 and set(facts["excluded_seconds"]) <= {"logging"}


def test_the_boot_clock_is_read() -> None:
    assert read_suspended() >= -1e-3


LOOK = """
import os, signal, subprocess, sys, time
from suite.training.absence import watch_absences
before = signal.getsignal(signal.SIGCONT)
with watch_absences() as look:
    time.sleep(0.3)
    helper = f"sleep {sys.argv[1]}; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", helper])
    began = time.monotonic()
    os.kill(os.getpid(), signal.SIGSTOP)
    print(time.monotonic() - began, look().stopped)
assert signal.getsignal(signal.SIGCONT) == before and signal.set_wakeup_fd(-1) == -1
"""


def test_a_stopped_process_finds_its_stop_at_the_first_look() -> None:
    words = subprocess.run([sys.executable, "-c", LOOK, "1.5"], check=True, capture_output=True, text=True).stdout
    held, stopped = map(float, words.split())
    assert held / 2 < stopped <= held + 1.0  # an earlier look may be late on a loaded machine


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    overrides = ["task=resnet50", "track=none", "threads=1", "eval_every=1000", "max_steps=1000", *words]
    variables = os.environ | {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "suite", *overrides, f"run_dir={folder}"]
    return subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)


def await_step(folder: Path, run: subprocess.Popen[bytes]) -> None:
    """Wait until a run has logged a step."""
    while not (folder / "events.jsonl").exists() or b'"step_seconds"' not in (folder / "events.jsonl").read_bytes():
        assert run.poll() is None
        time.sleep(0.05)


def hold(pid: int, seconds: float = 4.0) -> float:
    """Stop a process; return the seconds until it was continued."""
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    held = time.monotonic() - began
    os.kill(pid, signal.SIGCONT)
    return held


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_a_run_is_not_billed_for_a_stop_of_any_rank(tmp_path: Path, world: int) -> None:
    """Of two ranks, the one that writes no result is stopped."""
    folder = tmp_path / "run"
    run = start(folder, f"world={world}")
    await_step(folder, run)
    children = Path("/proc", str(run.pid), "task", str(run.pid), "children").read_text().split()
    held = hold(int(children[1]) if world == 2 else run.pid)
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 143
    last = json.loads((folder / "events.jsonl").read_text().splitlines()[-1])["facts"]
    assert held / 2 < last["excluded_seconds"]["stopped"]
    steps = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    seconds = [event["train_seconds"] for event in steps if event["event"] == "step"]
    assert seconds == sorted(seconds)
    assert last["train_seconds"] + sum(last["excluded_seconds"].values()) < last["wall_seconds"] + 1.0
