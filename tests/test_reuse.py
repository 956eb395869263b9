"""A result is shown again, and an interrupted run resumed, only where the code and the data are unchanged."""

import gzip
import json
import shutil
import struct
import types
from pathlib import Path

import conftest
import numpy as np
import pytest

from suite.launch import directories, replay
from suite.record import environment, record
from suite.record.result import Header

TINY = ("--config-dir", str(conftest.OUTSIDE / "conf"), "+task=tiny", "track=none", "threads=1", "max_steps=4")
LAB = ("--config-dir", "conf", "optimizer=mine", *TINY[2:])


def write_lab(folder: Path, decay: float, stop: int = 0) -> None:
    """A package beside the command: an optimizer whose weight decay stands in a sibling module.

    Step number `stop` interrupts the run, as the user would.
    """
    package = folder / "lab" / "mine"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "lab" / "__init__.py").write_text("")
    (folder / "lab" / "scale.py").write_text(f"DECAY = {decay}\n")
    (package / "__init__.py").write_text('SUMMARY, CITATION, NEEDS = "SGD", "", ()\n')
    (package / "torch.py").write_text(
        "import os, signal, torch\n"
        "from lab.scale import DECAY\n\n"
        "class Mine(torch.optim.SGD):\n"
        "    count = 0\n"
        "    def step(self, closure=None):\n"
        "        self.count += 1\n"
        f"        if self.count == {stop}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        return super().step(closure)\n\n"
        "def make(parameters, *, lr):\n"
        "    return Mine(parameters, lr=lr, weight_decay=DECAY)\n"
    )
    (folder / "conf" / "task").mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "optimizer").mkdir(exist_ok=True)
    (folder / "conf" / "optimizer" / "mine.yaml").write_text("{name: mine, module: lab.mine, lr: 0.1}\n")
    shutil.copy(conftest.OUTSIDE / "conf" / "task" / "tiny.yaml", folder / "conf" / "task")


def last_loss(directory: Path) -> float:
    lines = (directory / "events.jsonl").read_text().splitlines()
    return [event["loss"] for event in map(json.loads, lines) if event["event"] == "step"][-1]


def test_an_edited_outside_optimizer_runs_again(tmp_path: Path, suite_command) -> None:
    write_lab(tmp_path, 1.0)
    for _ in range(2):
        done = suite_command(*LAB, "run_dir=run")
        assert done.returncode == 0, done.stdout + done.stderr
    assert "this run has a result already" in done.stdout
    write_lab(tmp_path, 5.0)
    done = suite_command(*LAB, "run_dir=run")
    assert done.returncode == 0 and "this run has a result already" not in done.stdout, done.stdout + done.stderr
    assert last_loss(tmp_path / "run") != last_loss(tmp_path / "run.2")


@pytest.mark.slow
def test_an_interrupted_run_of_an_edited_optimizer_starts_anew_and_says_so(tmp_path: Path, suite_command) -> None:
    write_lab(tmp_path, 1.0)
    assert suite_command(*LAB, "run_dir=run").returncode == 0
    (tmp_path / "run" / "result.json").unlink()  # as an interrupted run leaves its directory
    write_lab(tmp_path, 5.0)
    done = suite_command(*LAB, "run_dir=run")
    assert "run: not resumed, because this has changed: the code of lab. A new run starts in run.2" in done.stdout
    assert "resume=anyway" in done.stdout
    assert (tmp_path / "run.2" / "result.json").exists()


@pytest.mark.slow
def test_an_interrupted_run_goes_on_after_an_edit_where_that_is_asked_for(tmp_path: Path, suite_command) -> None:
    write_lab(tmp_path, 1.0, stop=2)
    assert suite_command(*LAB, "run_dir=run").returncode == 130
    write_lab(tmp_path, 5.0)
    done = suite_command(*LAB, "run_dir=run", "resume=anyway")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "although this has changed: the code of lab" in done.stdout and "continuing from step 2" in done.stdout
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["resumed_anyway"] == [{"step": 2, "changed": ["the code of lab"]}]
    assert [segment["step"] for segment in result["segments"]] == [0, 2]
    again = suite_command(*LAB, "run_dir=run", "resume=anyway")
    assert again.returncode == 0 and "this run has a result already" in again.stdout
    assert not (tmp_path / "run.2").exists()
    clean = suite_command(*LAB, "run_dir=run")  # a mixed run does not stand for this command
    assert clean.returncode == 0 and (tmp_path / "run.2" / "result.json").exists(), clean.stdout + clean.stderr
    mixed = record.read_result(tmp_path / "run" / "result.json")
    exact, why = replay._same(mixed, record.load_run(mixed))
    assert not exact and why == "changed during the run (resume=anyway): the code of lab"


@pytest.mark.slow
def test_an_edited_file_below_optimizer_path_runs_again(tmp_path: Path, suite_command) -> None:
    (tmp_path / "checkout").mkdir()
    module = tmp_path / "checkout" / "rival.py"
    command = (*TINY, "optimizer=external", "optimizer.torch=rival.Rival", "optimizer.path=checkout", "run_dir=run")
    for decay in (1, 1, 5):
        module.write_text(
            "import torch\n\nclass Rival(torch.optim.SGD):\n"
            f"    def __init__(self, params, lr):\n        super().__init__(params, lr=lr, weight_decay={decay})\n"
        )
        done = suite_command(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run", "run.2"]


def write_images(folder: Path, seed: int) -> None:
    """Images in MNIST's files: the same number of bytes whatever the seed."""
    folder.mkdir(exist_ok=True)
    for name, count in (("train", 64), ("t10k", 32)):
        pixels = np.random.default_rng(seed).integers(0, 256, (count, 28, 28), np.uint8)
        header = struct.pack(">4I", 2051, count, 28, 28)
        with gzip.GzipFile(folder / f"{name}-images-idx3-ubyte.gz", "wb", mtime=0) as file:
            file.write(header + pixels.tobytes())


def test_replaced_mnist_files_run_again(tmp_path: Path, suite) -> None:
    command = ("+task=autoencoder", "task.data=mnist", "data_dir=mnist", "track=none", "threads=1", "max_steps=2")
    command += ("task.batch_size=16", "task.eval_batch_size=16", "run_dir=run")
    for seed in (0, 0, 1):
        if seed != 0 or not (tmp_path / "mnist").exists():
            write_images(tmp_path / "mnist", seed)
        code, said = suite(*command)
        assert code == 0, said
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run", "run.2"]


@pytest.mark.parametrize("same_size", [True, False])
def test_a_replaced_image_changes_the_data_version(tmp_path: Path, written: Path, same_size: bool) -> None:
    """A large data set's identity covers names and sizes; a file of the same size is seen by its time."""
    from suite.record.dependencies import hash_data
    from suite.tasks._data.folder import Folder

    root = tmp_path / "images"
    shutil.copytree(written, root)
    before = Folder(root, size=8).data
    assert hash_data(Folder(root, size=8).data) == hash_data(before)
    image = next((root / "train").rglob("*.JPEG"))
    content = image.read_bytes()
    image.write_bytes(content[:-2] + (b"\0\0" if same_size else b"\0\0\0"))
    after = Folder(root, size=8).data
    assert (after.identity == before.identity) is same_size
    assert hash_data(after) != hash_data(before)


@pytest.mark.quick
def test_a_mixed_run_is_not_resumed_silently(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was last continued in this environment, so nothing has changed since, and it is no run of this alone."""
    facts = environment.capture_environment() | {"threads": 1}
    entries = dict.fromkeys(("fingerprint", "hash", "execution_id", "command", "task_version"), "f")
    more = {"environment": facts, "resumed_anyway": [{"step": 2, "changed": ["x"]}]}
    mixed = Header.read(entries | more)
    passed = types.SimpleNamespace(passed=[(tmp_path, mixed)], path=tmp_path / "run.2", header=mixed)
    directories.Directory.print_passed(passed)  # type: ignore[arg-type]
    assert (
        "not resumed, because it was continued with resume=anyway after a change. A new run starts in"
        in capsys.readouterr().out
    )
