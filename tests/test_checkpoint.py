"""Checkpoints of several ranks: complete on all or not there, and each thing that may be wrong with one is one line."""

import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite import disk
from suite.contract import Started, UserError
from suite.record.log import Log
from suite.training import checkpoint

pytestmark = pytest.mark.quick

WORLD = 3


def snapshot(rank: int, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return what `rank` holds after `step` updates; the weights are everywhere the same."""
    arrays = {"weights": np.full(5, step, np.float32), "residual": np.full((2, 3), 100 * step + rank, np.float32)}
    return (arrays if rank == 0 else {"residual": arrays["residual"]}), {
        "own": {"residual": "residuals"},
        "tree": [step],
    }


def together(body: Callable[[int, Callable[[Any], list[Any]]], Any]) -> list[Any]:
    """Run `body(rank, gather)` on several ranks, which are threads, and return what each returns or raises."""
    barrier, slots = threading.Barrier(WORLD), [None] * WORLD

    def one(rank: int) -> Any:
        def gather(value: Any) -> list[Any]:
            slots[rank] = value
            barrier.wait(3)
            found = list(slots)
            barrier.wait(3)
            return found

        try:
            return body(rank, gather)
        except UserError as error:
            return error

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(one, range(WORLD)))


def save(folder: Path, step: int, meta: Callable[[], dict[str, Any]] | None = None) -> list[Any]:
    how = meta or (lambda: {"config_hash": "c", "world": WORLD, "of": step})
    return together(
        lambda rank, gather: checkpoint.save_checkpoint(
            folder, snapshot(rank, step), how, step=step, ranks=(rank,), gather=gather
        )
    )


def load(folder: Path, rank: int = 0, **changed: Any) -> Any:
    return checkpoint.load_checkpoint(
        folder, changed.get("config_hash", "c"), ranks=(rank,), world=changed.get("world", WORLD)
    )


def whole(folder: Path, step: int) -> None:
    """Check that the directory holds the checkpoint of this step, and every rank its own part of it."""
    for rank in range(WORLD):
        arrays, index = load(folder, rank)
        assert index["of"] == index["step"] == step and index["skeleton"]["tree"] == [step]
        assert (arrays["weights"] == step).all() and (arrays["residual"] == 100 * step + rank).all()


def test_each_rank_has_a_file_of_its_own_and_the_step_before_is_deleted(tmp_path: Path) -> None:
    save(tmp_path, 10)
    save(tmp_path, 20)
    whole(tmp_path, 20)
    files = {str(path.relative_to(tmp_path / "checkpoint")) for path in tmp_path.glob("checkpoint/**/*.*")}
    assert files == {
        "index.json",
        "20/replicated.safetensors",
        *(f"20/rank-000{rank}.safetensors" for rank in range(3)),
    }
    from safetensors import safe_open

    with safe_open(tmp_path / "checkpoint/20/rank-0002.safetensors", framework="numpy") as file:
        assert list(file.keys()) == ["residual"], "what all ranks hold alike is written once"


@pytest.mark.parametrize("lost", range(WORLD))
def test_a_rank_that_cannot_write_fails_all_and_keeps_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    save(tmp_path, 10)
    real = checkpoint._write

    def write(path: Path, arrays: Any, step: int) -> int:
        if path.name == f"rank-000{lost}.safetensors":
            raise disk.WriteError(f"{path}: the disk is full; make room")
        return real(path, arrays, step)

    monkeypatch.setattr(checkpoint, "_write", write)
    raised = save(tmp_path, 20)
    assert all(isinstance(error, checkpoint.RanksFailed) for error in raised)
    assert {str(error) for error in raised} == {
        f"process {lost} of 3: {tmp_path}/checkpoint/20/rank-000{lost}.safetensors: the disk is full; make room"
    }
    whole(tmp_path, 10)
    assert not (tmp_path / "checkpoint" / "20").exists()


def test_a_crash_before_the_index_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """All ranks' files are there then, and mean nothing; the next checkpoint takes them away."""
    save(tmp_path, 10)

    def crash() -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, threading.BrokenBarrierError)):
        save(tmp_path, 20, crash)
    assert len(list((tmp_path / "checkpoint" / "20").iterdir())) == 1 + WORLD
    whole(tmp_path, 10)
    save(tmp_path, 30)
    whole(tmp_path, 30)
    assert not (tmp_path / "checkpoint" / "20").exists()


def test_files_that_another_host_wrote_elsewhere_are_no_checkpoint(tmp_path: Path) -> None:
    """Rank 2 has a directory of its own, as without a shared file system."""
    for name in "ab":
        (tmp_path / name).mkdir()
    meta = lambda: {"config_hash": "c", "world": WORLD, "of": 20}  # noqa: E731
    raised = together(
        lambda rank, gather: checkpoint.save_checkpoint(
            tmp_path / ("b" if rank == 2 else "a"), snapshot(rank, 20), meta, step=20, ranks=(rank,), gather=gather
        )
    )
    assert all("rank-0002.safetensors: this host cannot see this part of the checkpoint" in str(e) for e in raised)
    assert all("on a file system that all hosts share" in str(error) for error in raised)
    assert checkpoint.find_latest(tmp_path / "b") is None


@pytest.mark.parametrize("name", ["replicated", "rank-0001"])
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path, 10)
    path = tmp_path / "checkpoint" / "10" / f"{name}.safetensors"
    whole_file, how = path.read_bytes(), f"put it back, or delete {tmp_path}/checkpoint to start the run again"
    other = path.with_name("rank-0002.safetensors")
    for change, words in (
        (lambda: path.write_bytes(whole_file[:-1]), "truncated checkpoint"),
        (lambda: path.write_bytes(b"?" * len(whole_file)), "damaged checkpoint"),
        (lambda: path.write_bytes(whole_file.replace(b'"step":"10"', b'"step":"20"')), "not of step 10"),
        (path.unlink, "this host cannot see this part"),
    ):
        change()
        with pytest.raises(UserError) as raised:
            load(tmp_path, 1)
        assert f"{path}: " in str(raised.value) and words in str(raised.value) and str(raised.value).endswith(how)
        path.write_bytes(whole_file)
    path.unlink()
    with pytest.raises(UserError, match="cannot see"):
        load(tmp_path, 0)  # rank 0 looks after all
    assert other.exists()


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"schema": 3}, "checkpoint schema 3, this suite reads 4; go on with the version of the suite that wrote it"),
        ({"config_hash": "d"}, r"checkpoint of another configuration \(d, not c\); choose another run_dir="),
        ({"world": 2}, "world=2, this run has world=3: residuals of each rank cannot be mapped to 3; set world=2"),
        ({"files": None}, "damaged checkpoint"),
    ],
)
def test_an_index_that_does_not_fit_is_rejected(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    save(tmp_path, 10)
    path = tmp_path / "checkpoint" / "index.json"
    whole = json.loads(path.read_text())
    del whole["crc32"]
    path.write_text(checkpoint.seal_index(whole | changed))
    with pytest.raises(UserError, match=words):
        load(tmp_path)
    path.write_text("{")
    with pytest.raises(UserError, match="damaged checkpoint"):
        load(tmp_path)
    path.unlink()
    assert load(tmp_path) is None
    (tmp_path / "checkpoint.safetensors").touch()
    with pytest.raises(UserError, match="checkpoint schema 1, this suite reads 4; go on with the version"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["index.json", "10/replicated.safetensors", "10/rank-0001.safetensors"])
def test_a_flipped_bit_is_found(tmp_path: Path, name: str) -> None:
    """One bit anywhere, or the file of another rank at the same step."""
    save(tmp_path, 10)
    path, draw = tmp_path / "checkpoint" / name, random.Random(0)
    whole_file = path.read_bytes()
    other = path.with_name("rank-0002.safetensors")
    damaged = [other.read_bytes()] if "rank" in name else []
    for bit in draw.sample(range(8 * len(whole_file)), 60):
        flipped = bytearray(whole_file)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        try:
            whole(tmp_path, 10)
        except UserError as error:
            assert str(error).startswith(f"{path}: ") and f"delete {tmp_path}/checkpoint" in str(error)
            assert "\n" not in str(error)
        else:
            raise AssertionError(f"accepted: {content!r}")


def test_a_process_with_several_ranks_writes_a_file_for_each(tmp_path: Path) -> None:
    """As jax's does; how many ranks a process has may change from one segment to the next."""
    arrays = {"weights": np.ones(3), "residual": np.arange(6.0).reshape(3, 2)}
    meta = lambda: {"config_hash": "c", "world": WORLD}  # noqa: E731
    checkpoint.save_checkpoint(
        tmp_path, (arrays, {"own": {"residual": "r"}, "tree": None}), meta, step=1, ranks=(0, 1, 2)
    )
    for ranks in ((0,), (1, 2), (0, 1, 2)):
        found = checkpoint.load_checkpoint(tmp_path, "c", ranks=ranks, world=WORLD)
        assert found and np.array_equal(found[0]["residual"], arrays["residual"][list(ranks)])
        assert np.array_equal(found[0]["weights"], arrays["weights"])


def test_a_log_goes_on_where_its_checkpoint_was_written(tmp_path: Path) -> None:
    """Longer, it is cut back; shorter or with other events, it is not that run's."""
    path = tmp_path / "events.jsonl"
    log = Log(path)
    log(Started(0))
    kept = log.state()
    before = path.read_bytes()
    log(Started(1, resumed=True))
    log.close()
    path.write_bytes(path.read_bytes() + b'{"cut')
    log = Log(path, kept)
    assert path.read_bytes() == before and log.state() == kept
    log(Started(2))
    assert log.state()["bytes"] == len(path.read_bytes())
    log.close()
    for changed, words in ((before[:-1], f"has {len(before) - 1} bytes"), (b"[" + before[1:], "has other events")):
        path.write_bytes(changed)
        with pytest.raises(
            UserError,
            match=f"{words}, but its checkpoint was written after {len(before)} bytes; restore the log, or del",
        ):
            Log(path, kept)


def test_a_directory_that_was_removed_ends_the_run_and_is_not_written_again(tmp_path: Path) -> None:
    """Nor is another run's that took its place."""
    path = tmp_path / "run" / "events.jsonl"
    path.parent.mkdir()
    log = Log(path)
    log(Started(0))
    path.parent.rename(tmp_path / "gone")
    with pytest.raises(disk.WriteError, match="removed by another process"):
        log.state()
    path.parent.mkdir()
    path.touch()
    with pytest.raises(disk.WriteError, match="removed by another process"):
        log.state()
    raised = save(tmp_path / "nowhere", 10)
    assert all("removed by another process" in str(error) for error in raised)
    assert not (tmp_path / "nowhere").exists()
