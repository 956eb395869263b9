"""Writes that fail: the last good checkpoint stays, one line says what to do, and the same command ends bit for bit."""

import errno
import functools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import conftest
import pytest
from engines import change
from faulty import Faulty
from tiny_runs import TINY, curve

from suite import disk
from suite.contract import UserError
from suite.launch import local
from suite.record import environment
from suite.settings import configure
from suite.training import checkpoint

Call = Callable[..., tuple[int, str]]
RUN = (*TINY, "max_steps=5", "eval_every=5", "checkpoint_every=2", "stop_at_target=false", "optimizer=adamw")


@pytest.fixture(autouse=True)
def captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at the machine, the packages and the checkout takes longer than these runs."""
    monkeypatch.setattr(environment, "capture_environment", functools.cache(environment.capture_environment))


def failing(start: Callable[[], tuple[int, str]], directory: Path, at: int) -> tuple[Faulty, int, str, int | None]:
    """A run whose `at`-th write fails: the disk, exit code, output, and the checkpoint's step just before."""
    seen: list[int | None] = [None]

    def look() -> None:
        seen[0] = checkpoint.find_latest(directory)

    with pytest.MonkeyPatch.context() as patch:
        disk = Faulty(patch, directory, at, look)
        code, text = start()
    return disk, code, text, seen[0]


@pytest.mark.slow  # some forty runs
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_any_write_may_fail(tmp_path: Path, backend: str, capfd: pytest.CaptureFixture[str], idle: None) -> None:
    """Each write of a run in turn, with different errors: of header, log, checkpoints, result, and removals."""
    command = [*RUN, f"backend={backend}"]
    config = configure.resolve(command[2:], conftest.OUTSIDE / "conf")

    def start(directory: Path) -> tuple[int, str]:
        capfd.readouterr()
        try:
            return local.launch(change(config, {"run_dir": str(directory)}), command), "".join(capfd.readouterr())
        except UserError as error:  # as suite.cli does
            return 2, "".join(capfd.readouterr()) + f"suite: {error}\n"

    whole = tmp_path / "whole"
    disk, code, text, _ = failing(lambda: start(whole), whole, 0)
    assert code == 0, text
    assert disk.count > 40, "config, header, log, two checkpoints and a result are more writes than that"
    expected, steps = curve(whole), set()
    for at in range(1, disk.count + 1):
        directory = tmp_path / f"cut{at}"
        disk, code, text, before = failing(functools.partial(start, directory), directory, at)
        over = (directory / "result.json").exists()
        assert disk.failed and "Traceback" not in text, (disk.failed, text)
        if over:
            assert code == 0 or "result.json" in text, (disk.failed, text)  # what failed came after the result
        else:
            [line] = [line for line in text.splitlines() if line.startswith("suite: ")]
            assert code == 2 and "the same command" in line and str(directory) in line, (disk.failed, text)
            assert checkpoint.find_latest(directory) == before, disk.failed
        steps.add(before)
        code, text = start(directory)
        assert code == 0, (disk.failed, text)
        assert curve(directory) == expected, disk.failed
        assert not list(directory.glob("**/*.partial")) and (over or checkpoint.find_latest(directory) is None)
    assert steps == {None, 2, 4}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system can only be mounted by root")
    yield folder
    # lazily: MLflow keeps its database open
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.sample(1)
@pytest.mark.parametrize("left", [0, 4, 12])
def test_a_disk_that_is_really_full(suite: Call, tmp_path: Path, small_disk: Path, left: int) -> None:
    """With some kilobytes left another write fails each time; the checkpoint of before stays."""
    run = (*RUN, "max_steps=60")
    directory = small_disk / "run"
    with pytest.MonkeyPatch.context() as patch:  # ends after the first checkpoint
        real = checkpoint.save_checkpoint
        calls: list[int] = []

        def save(*arguments: Any, **named: Any) -> Path:
            calls.append(1)
            if len(calls) == 2:
                raise UserError("stopped by the test")
            return real(*arguments, **named)

        patch.setattr(checkpoint, "save_checkpoint", save)
        assert suite(*run, f"run_dir={directory}")[0] == 2
    assert checkpoint.find_latest(directory) == 2
    ballast = small_disk / "ballast"
    with pytest.raises(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with ballast.open("r+b") as file:
        file.truncate(ballast.stat().st_size - left * 1024)
    code, text = suite(*run, f"run_dir={directory}")
    assert code == 2 and "the disk is full; make room" in text and "Traceback" not in text, text
    step = checkpoint.find_latest(directory)
    assert step is not None and f"the same command continues from step {step}" in text, text
    assert not (directory / "result.json").exists()
    ballast.unlink()
    code, text = suite(*run, f"run_dir={directory}")
    assert code == 0 and f"continuing from step {step}" in text
    suite(*run, f"run_dir={tmp_path / 'whole'}")
    assert curve(directory) == curve(tmp_path / "whole")


def test_mlflow_on_a_full_disk_does_not_harm_the_run(
    suite: Call, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{small_disk}/mlflow.db")
    (small_disk / "ballast").write_bytes(bytes(900 * 1024))
    run = [argument for argument in RUN if argument != "track=none"]
    code, text = suite(*run, f"run_dir={small_disk}/run")
    assert code == 0 and "MLflow at" in text and "suite sync" in text and "Traceback" not in text, text
    assert (small_disk / "run" / "result.json").exists()


def test_a_temporary_directory_that_is_full_is_one_line(
    suite: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`suite verify` writes there."""
    import tempfile

    assert suite(*RUN, "run_dir=run")[0] == 0

    def full(*arguments: Any, **named: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/suite-verify")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    code, text = suite("verify", "run/result.json", "--trust", "--steps", "2")
    assert code == 2 and "/tmp/suite-verify: the disk is full; make room" in text and "Traceback" not in text


@pytest.mark.parametrize(
    "error, words",
    [
        (OSError(errno.EROFS, "Read-only file system"), "read-only"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "the disk is full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "quota is used up"),
        (OSError(errno.ELOOP, "Too many levels of symbolic links"), "Too many levels"),
    ],
)
def test_each_cause_says_what_to_do(error: Exception, words: str) -> None:
    assert words in disk.explain_error(error)
