"""Tests of what a run prints."""

import io
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engines import change
from stored import result_of

from suite import published
from suite.contract import Data, Evaluated, Finished, Layer, Started, Step, Target
from suite.published import matching
from suite.record.record import make_result
from suite.settings.configure import resolve_training
from suite.track import sweep, words
from suite.track.closing import show_result
from suite.track.console import Console, make_printer, show_patience

DIGITS = Data(
    "real", "scikit-learn digits", "87ff", {"train": 1437, "valid": 360}, note="too few to compare", unit="images"
)
RUN = resolve_training(["task=resnet50", "optimizer=kfac", "recipe=null", "comm=fp8", "max_steps=100"])


class Ladder:
    """As much of a task as the console looks at."""

    data = DIGITS
    targets = (Target("top1", 90), Target("top1", 95), Target("top1", 97))

    def layers(self) -> dict[str, Layer]:
        return {"conv1": Layer("conv2d", ("conv1.weight",))}


def console(**changes: Any) -> Console:
    return Console(change(RUN, changes), Ladder())  # pyright: ignore[reportArgumentType]


def evaluated(step: int, top1: float) -> Evaluated:
    return Evaluated(step, 64 * step, 0.05 * step, 0.06 * step, {"loss": 0.5, "top1": top1})


def step(number: int) -> Step:
    return Step(number, 64 * number, 0.25, {"lr": 0.1}, 0.05 * number, 0.05)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "resnet50 · laptop stand-in on {data} · kfac · torch · float32 · 1 device"),
        (
            {"scale": "gpu", "world": 4, "backend": "jax"},
            "resnet50 · gpu scale on {data} · kfac · jax · float32 · 4 devices · comm fp8",
        ),
        (
            {"device": "cuda", "precision": "bfloat16"},
            "resnet50 · laptop stand-in on {data} · kfac · torch · bfloat16, channels last · 1 device",
        ),
    ],
)
def test_the_first_line_says_what_runs(capsys: pytest.CaptureFixture[str], changes: dict[str, Any], line: str) -> None:
    console(**changes).opening()
    data = "scikit-learn digits (real, 1,797 images)"
    assert capsys.readouterr().out.splitlines()[0] == line.format(data=data)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "loading torch, making weights and the first batch; the clock"),
        ({"compile": True}, "first batch; compiling with torch.compile; the clock"),
        ({"backend": "jax"}, "loading jax, making weights and the first batch; compiling with jax; the clock"),
    ],
)
def test_the_second_line_says_what_comes_before_the_first_step(
    capsys: pytest.CaptureFixture[str], changes: dict[str, Any], says: str
) -> None:
    console(**changes).opening()
    _, second = capsys.readouterr().out.splitlines()
    assert says in second


def test_what_takes_long_is_named_and_what_does_not_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    said, printed = threading.Event(), []

    def spy(*words: str, **_: Any) -> None:
        printed.extend(words)
        said.set()

    monkeypatch.setattr("builtins.print", spy)
    with show_patience("soon done", seconds=60):
        pass
    with show_patience("reading the data of bert", seconds=0):
        assert said.wait(30)
    assert printed == ["reading the data of bert …"]


def test_the_first_line_needs_no_framework() -> None:
    code = """
import sys
from suite.launch.job import make_task
from suite.settings import configure
from suite.track.console import Console
config = configure.resolve(["+task=resnet50"])
Console(config, make_task(config)).opening()
print(sorted({"torch", "jax", "mlflow", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, _, loaded = done.stdout.splitlines()
    assert first.startswith("resnet50 · laptop stand-in on scikit-learn digits (real, 1,797 images) · sgd")
    assert loaded == "[]"


def test_progress_without_a_terminal_is_a_line_an_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    listen = console()
    for event in (Started(0), step(1), step(10), evaluated(10, 80.5), step(20), evaluated(20, 96.0)):
        listen(event)
    listen(evaluated(30, 94.0))
    listen(evaluated(40, 98.0))
    listen(Finished(40, {"kind": "reached", "step": 40}))
    assert capsys.readouterr().out.splitlines() == [
        "step 10/100 · train loss 0.25 · valid top1 80.5 · target 90 (9.5 short), last 97 (16.5 short) · "
        "0.5 s, at most 4.5 s left",
        "step 20/100 · train loss 0.25 · valid top1 96 · target 97 (1 short) · 1 s, at most 4 s left",
        "step 30/100 · train loss 0.25 · valid top1 94 · target 97 (3 short) · 1.5 s, at most 3.5 s left",
        "step 40/100 · train loss 0.25 · valid top1 98 · every target met · 2 s, at most 3 s left",
    ]


def test_where_less_is_better_the_training_loss_and_the_metric_are_told_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Less(Ladder):
        targets = (Target("loss", 0.4, False), Target("loss", 0.2, False))

    listen = Console(RUN, Less())  # pyright: ignore[reportArgumentType]
    listen(step(10))
    listen(evaluated(10, 80.5))
    assert "train loss 0.25 · valid loss 0.5 · target 0.4 (0.1 over), last 0.2 (0.3 over)" in capsys.readouterr().out


def test_a_long_silence_is_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    listen = console()
    for number in range(1, 61):
        now += 1.0
        listen(step(number))
    shown = [line.split(" · ")[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["step 20/100", "step 40/100", "step 60/100"]


def test_a_terminal_is_redrawn_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    listen, start = console(max_steps=5000), time.monotonic()
    for number in range(1, 5001):
        listen(step(number))
    drawn, most = screen.getvalue().count("step "), 2 + 10 * (time.monotonic() - start)
    listen(Finished(5000, {"kind": "exhausted", "step": 5000}))
    assert 1 <= drawn <= most
    assert screen.getvalue().endswith("\x1b[2K"), "the line is wiped at the end"


def test_resumed_and_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    listen = console()
    listen(Started(50, resumed=True))
    listen.interrupted(Path("runs/a"), Finished(57, {"kind": "interrupted", "step": 57, "signal": "SIGINT"}))
    resumed, interrupted = capsys.readouterr().out.splitlines()
    assert resumed == "continuing from step 50"
    assert interrupted == "interrupted (SIGINT): saved in runs/a; the same command continues from step 57"


@pytest.fixture
def close(made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Print a result with some of it changed; returns what was printed."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def call(**changes: Any) -> str:
        result = result_of(made) | changes
        show_result(make_printer(), make_result(result), Path("runs/a/result.json"), published.find_rows("resnet50"))
        return capsys.readouterr().out

    return call


def test_the_closing_table(made: Path, close: Callable[..., str]) -> None:
    printed, result = close(), result_of(made)
    lines = [re.sub(r"\s+", " ", line).strip() for line in printed.splitlines()]
    easy, best = result["targets"][0], max(point["metrics"]["top1"] for point in result["curve"])
    took = f"{easy['train_seconds']:.2f}"
    assert "target reached step samples train s all-in s last miss" in lines
    assert f"top1>=5 yes {easy['step']} {easy['samples']} {took} {easy['wall_seconds']:.2f} none" in lines
    last = result["curve"][-1]
    train, wall = f"{last['train_seconds']:.2f}", f"{last['wall_seconds']:.2f}"
    assert f"top1>=99 no, best {best:.4g} > 20 > 1,280 > {train} > {wall} {train} (step 20)" in lines
    assert "made all max_steps=20 steps. Not reached: top1>=99" in lines
    spent = " all in · compile 0.0 s · median step "
    assert any(" of training, " in line and spent in line and line.endswith(" · cpu") for line in lines)
    assert any(re.match(r"[A-Z]\d-\d\d (SGD|Nesterov), .* ResNet-50 ", line) for line in lines)
    assert f"6 of 190 published rows, {matching.ORDER}. To see all, run suite board" in lines
    assert "…" not in printed, "nothing is cut"
    assert "never accuracy, steps or seconds" in " ".join(lines)
    assert f"Data: {result['data']['note']}" in lines
    assert lines[-5:-3] == [
        "result runs/a/result.json",
        "MLflow not sent (track=none); to send it, run suite sync runs/a",
    ]
    assert "\x1b" not in printed and max(map(len, printed.splitlines())) <= 120


def test_a_run_of_a_sweep_is_closed_without_published_rows(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = result_of(made)
    rows = published.find_rows("resnet50")
    show_result(make_printer(), make_result(result), Path("runs/a/result.json"), rows, brief=True)
    printed = capsys.readouterr().out
    assert "made all max_steps=20 steps" in printed and "result  runs/a/result.json" in printed
    assert "published rows" not in printed and "Data: " not in printed


def test_the_closing_names_waits_for_batches_that_are_long(close: Callable[..., str]) -> None:
    printed = close(train_seconds=10.0, input_seconds=4.5)
    assert (
        "45 % of the training time went by until batches were made; prefetch=2 makes them in other threads" in printed
    )
    assert "until batches were made" not in close(train_seconds=10.0, input_seconds=1.9)


def test_the_closing_says_how_to_open_mlflow(
    made: Path, close: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = result_of(made)["spec"]
    spec["config"]["track"]["name"] = "mlflow"
    assert (
        "MLflow  mlflow ui --backend-store-uri sqlite:///mlflow.db, "
        "then http://127.0.0.1:5000/#/experiments?workflowType=machine_learning\n"
    ) in close(spec=spec)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert "MLflow  http://tracking:5000/#/experiments?workflowType=machine_learning\n" in close(spec=spec)


def test_the_closing_ends_in_what_to_run_next(close: Callable[..., str]) -> None:
    *_, page, other, seeds = close(command="suite task=resnet50 optimizer=kfac run_dir=a").splitlines()
    assert page == "next    suite report runs/a"
    assert other == "        suite task=resnet50 optimizer=kfac backend=jax"
    assert seeds == "        suite -m task=resnet50 optimizer=kfac seed=0,1,2,3,4"
    printed = close(command="suite task=resnet50 backend=torch seed=1")
    assert printed.endswith("next    suite report runs/a\n")


def test_other_outcomes_read_clearly(made: Path, close: Callable[..., str]) -> None:
    assert "diverged: the train loss at step 1,200 was nan" in close(
        outcome={"kind": "diverged", "step": 1200, "loss": "nan"}
    )
    failed = close(
        outcome={"kind": "failed", "error": "ValueError: shapes [3] and [4]"},
        curve=[],
        targets=[result_of(made)["targets"][1] | {"bracket": [None, None]}],
        step_seconds={"p50": None, "p99": None},
    )
    assert "failed: ValueError: shapes [3] and [4]" in failed
    assert "no step made" in failed and "never evaluated" in failed
    assert "published" not in failed, "nothing to compare"
    assert "compile 3.0 s (cache hit)" in close(compile_seconds=3.0, compile_cache="hit")


@pytest.mark.slow
def test_a_sweep_s_runs_stand_side_by_side(made: Path, tmp_path: Path) -> None:
    result = result_of(made)
    missed = [target | {"reached": False} for target in result["targets"]]
    for name, changes in {
        "hit": {},
        "miss": {"targets": missed, "outcome": {"kind": "diverged"}, "busy_pauses": 2},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(result | changes))
    assert sweep.make_table([([], tmp_path / "hit")]).caption is None
    runs = [(["task=a", f"seed={seed}"], tmp_path / name) for seed, name in enumerate(("hit", "miss", "nothing"))]
    file, screen = io.StringIO(), make_printer()
    screen.file, screen.width = file, 400
    screen.print(sweep.make_table([*runs, (["task=a", "seed=9"], None)]))
    head, _, *lines, note = [re.sub(r"\s+", " ", line).strip() for line in file.getvalue().splitlines()]
    assert head == "run target reached at step train s at the end result"
    easy, last = result["targets"][0], result["curve"][-1]
    end, spent = f"top1 {last['metrics']['top1']:.4g}", f"> {last['train_seconds']:.2f}"
    assert lines == [
        f"seed=0 top1>=5 {easy['step']} {easy['train_seconds']:.2f} {end} {tmp_path}/hit/result.json",
        f"seed=1 none, diverged > 20 {spent} ‡ {end} {tmp_path}/miss/result.json",
        f"seed=2 no result {tmp_path}/nothing",
        "seed=9 no result rejected",
    ]
    assert note.startswith("‡ too low")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.25 s"), (99.94, "99.9 s"), (330, "5.5 min"), (3600, "60 min"), (104400, "29 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert words.format_duration(seconds) == text
