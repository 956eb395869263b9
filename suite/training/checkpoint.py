"""Checkpoints: each rank writes and reads its own file, and an index makes the files valid together.

    checkpoint/index.json                  step, clock, log, the files with their sizes and checksums, and a checksum of
                                           the index; replaced last, by rank 0
    checkpoint/20/replicated.safetensors   the arrays that are equal on all ranks, written by rank 0
    checkpoint/20/rank-0003.safetensors    the other arrays of rank 3: residuals, delayed gradients, carry, rows of
                                           tables, slices of optimizer state; absent if it has none

No array is gathered. The previous checkpoint's folder is deleted after the index names the new one, so that a crash at
any time leaves one complete checkpoint. The suite uses this format instead of torch.distributed.checkpoint or orbax so
that both backends have one format and one rule of validity. Also, the former takes plain tensors of one name to be
equal on all ranks, and the latter saves global jax arrays only.
"""

import json
import shutil
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from suite import disk
from suite.contract import Skeleton, Snapshot, UserError
from suite.load import Plain
from suite.record import record
from suite.training.clock import ClockState
from suite.training.tensors import CHECKSUM, hash_tensors, open_tensors, write_tensors

NAME = "checkpoint"
SCHEMA = 4  # 3: without the order of axes and the types that NumPy lacks; 2: without checksums
BEFORE = "checkpoint.safetensors"  # schema 1: one file
REPLICATED = "replicated.safetensors"

Arrays = dict[str, np.ndarray]
Written = tuple[int, str]  # size of a file in bytes, and checksum of its arrays
Report = tuple[dict[str, Written], str]  # files that a process has written, and its fault


class Score(TypedDict):
    """A score on the validation split; larger is better."""

    step: int
    score: float


class Past(TypedDict):
    """A policy's decision, with the scores that are new since the one before."""

    step: int
    mode: str | Mapping[str, str]
    steps: int | None
    points: list[Score]


class State(TypedDict):
    """State of the training loop after `step` updates."""

    step: int
    clock: ClockState
    decisions: list[Past]
    best: float | None  # with save=best, of the last target's metric
    met: int  # evaluations in a row that met every target
    spent: dict[str, Plain]  # bytes and memory, for the result


class Meta(State):
    """State of the loop, the run that it is of, and the state of the log."""

    config_hash: str
    world: int
    log: dict[str, int]


class Index(Meta):
    """Part of index.json that a run needs to continue."""

    skeleton: Skeleton


class RanksFailed(disk.WriteError):
    """Some rank could not write its part of a checkpoint. Every rank raises it, and only one has to print it."""


def save_checkpoint(
    directory: Path,
    snapshot: Snapshot,
    meta: Callable[[], Meta],
    *,
    step: int,
    ranks: Sequence[int] = (0,),
    gather: Callable[[Report], list[Report]] = lambda value: [value],
) -> Path:
    """Write a checkpoint. It replaces the previous one only when all ranks' files are complete on disk.

    Every process of a run calls this function.

    Args:
        directory: the run's directory.
        snapshot: (arrays, skeleton) from `Engine.snapshot`. The arrays named in `skeleton["own"]` differ between ranks;
            their leading axis concatenates the `ranks` of this process. Those that one rank alone has are named in
            `skeleton["rank"]`, with its number.
        meta: returns further entries of the index, including `config_hash` and `world`; rank 0 calls it when all files
            are written.
        step: updates made.
        ranks: the ranks of this process, in order.
        gather: gathers every process's value on all processes.

    Returns:
        The path of the checkpoint.

    Raises:
        RanksFailed: some rank could not write. Every rank raises it, and the previous checkpoint is unchanged.
    """
    arrays, skeleton = snapshot
    folder, first = directory / NAME / str(step), ranks[0] == 0
    written: dict[str, Written] = {}
    try:
        with disk.report_errors(folder):
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)
        for name, part in _parts(arrays, skeleton, ranks).items():
            written[name] = _write(folder / name, part, step)
        with disk.report_errors(folder):
            disk.sync_folder(folder)
        fault = ""
    except disk.WriteError as error:
        fault = str(error)
    gathered = gather((written, fault))
    who = f"process {{}} of {len(gathered)}: " if len(gathered) > 1 else ""
    fault = next((who.format(number) + fault for number, (_, fault) in enumerate(gathered) if fault), "")
    if first and not fault:
        files = {name: file for files, _ in gathered for name, file in files.items()}
        try:
            _present(folder, files)
            index = {"schema": SCHEMA, "step": step, **record.drop_infinities(meta()), "files": files}
            kinds = sorted(set(skeleton.get("own", {}).values()))
            whole = {**index, "own": kinds, "skeleton": {"tree": skeleton["tree"]}}
            disk.replace_file(folder.parent / "index.json", seal_index(whole))
        except UserError as error:
            fault = str(error)
    _, fault = gather(({}, fault))[0]
    if fault:
        if find_latest(directory) != step:  # if only the fsync of its directory failed, the new index is in place
            _discard(
                folder, list(folder.iterdir()) if first and folder.exists() else [folder / name for name in written]
            )
        raise RanksFailed(fault)
    for other in folder.parent.iterdir() if first else ():
        if other.is_dir() and other != folder:
            shutil.rmtree(other, ignore_errors=True)  # if this fails, the next checkpoint tries again
    return folder.parent


def _parts(arrays: Mapping[str, np.ndarray], skeleton: Skeleton, ranks: Sequence[int]) -> dict[str, Arrays]:
    """Arrays by the name of the file that contains them."""
    own, owner = skeleton.get("own", {}), skeleton.get("rank", {})
    parts: dict[str, Arrays] = {}
    if ranks[0] == 0:
        parts[REPLICATED] = {name: value for name, value in arrays.items() if name not in own}
    if not own:
        return parts
    shared = [name for name in own if name not in owner]
    shares = {name: np.split(arrays[name], len(ranks)) if len(ranks) > 1 else [arrays[name]] for name in shared}
    for number, rank in enumerate(ranks):
        parts[_file(rank)] = {name: rows[number] for name, rows in shares.items()}
        parts[_file(rank)] |= {name: arrays[name] for name, number in owner.items() if number == rank}
    return parts


def _file(rank: int) -> str:
    return f"rank-{rank:04}.safetensors"


def seal_index(index: Mapping[str, Any]) -> str:
    """Return an index as JSON, with its own checksum."""
    # numbers of the state must be read back exactly; `tree.pack_tree` has written infinities and NaN as text
    return json.dumps({**index, CHECKSUM: _checksum(index)}, allow_nan=False) + "\n"


def _checksum(index: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(index).encode()):08x}"


def _write(path: Path, arrays: Arrays, step: int) -> Written:
    """Write one file durably, and return its size and checksum."""
    from safetensors import SafetensorError

    with disk.report_errors(path, SafetensorError):
        checksum = write_tensors(path, arrays, {"step": str(step)})
        disk.sync_folder(path)
        return path.stat().st_size, checksum


def _discard(folder: Path, files: Sequence[Path]) -> None:
    """Delete the files of a failed checkpoint, if the disk allows; the next checkpoint overwrites what remains."""
    try:
        for path in files:
            path.unlink(missing_ok=True)
        folder.rmdir()
    except OSError:
        return


def remove_checkpoint(directory: Path) -> None:
    """Delete the checkpoint of a run that has a result; print its path if that fails, which is harmless."""
    folder = directory / NAME
    try:
        (folder / "index.json").unlink(missing_ok=True)
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        print(f"suite: {folder}: {disk.explain_error(error)}; not needed any more, delete it", file=sys.stderr)


def advise_resumption(directory: Path) -> str:
    """Return the end of an error message: from where the run in a directory will continue."""
    step = find_latest(directory)
    if step is None:
        return "no checkpoint was written yet, so the same command starts again; checkpoint_every=N writes them"
    return f"the same command continues from step {step:,}"


def find_latest(directory: Path) -> int | None:
    """Return the step of a directory's checkpoint; None if there is no readable one."""
    return _look_up(directory, "step")


def list_own_arrays(directory: Path) -> list[str]:
    """Return the kinds of arrays that differ between ranks in a directory's checkpoint, in words."""
    return _look_up(directory, "own") or []


def _look_up(directory: Path, name: str) -> Any:
    """Return an entry of a directory's index; None if there is no index, or a damaged one."""
    try:
        return _parse(directory / NAME / "index.json")[name]
    except (OSError, KeyError, TypeError, ValueError, RecursionError):
        return None


def _parse(path: Path) -> Any:
    """Read an index.

    Raises:
        ValueError: it was changed; KeyError, TypeError, RecursionError: it is no index.
    """
    index = json.loads(path.read_text())
    if index["schema"] == SCHEMA and index.pop(CHECKSUM) != _checksum(index):
        raise ValueError("its checksum differs")
    return index


def load_checkpoint(
    directory: Path, config_hash: str, *, ranks: Sequence[int] = (0,), world: int = 1
) -> tuple[Arrays, Index] | None:
    """Read a directory's checkpoint.

    Args:
        directory: the run's directory.
        config_hash: of this run's configuration.
        ranks: the ranks of this process, in order.
        world: number of ranks of the run.

    Returns:
        The arrays of these ranks and the index; None if there is no checkpoint.

    Raises:
        UserError: for a missing or damaged file, another schema, another configuration or another number of ranks.
    """
    path = directory / NAME / "index.json"
    again = f"delete {directory / NAME} to start the run again"
    if not path.exists():
        if (directory / BEFORE).exists():
            raise UserError(f"{directory / BEFORE}: {_other_schema(1)}, or delete it to start the run again")
        return None
    try:
        index = _parse(path)
        if index["schema"] == SCHEMA:
            files, saved_world, saved_hash = dict(index["files"]), int(index["world"]), str(index["config_hash"])
        else:
            raise UserError(f"{path}: {_other_schema(index['schema'])}, or {again}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged checkpoint ({error}); {again}") from error
    if saved_hash != config_hash:
        raise UserError(
            f"{path}: checkpoint of another configuration ({saved_hash}, not {config_hash}); "
            f"choose another run_dir=, or {again}"
        )
    if saved_world != world:
        raise UserError(f"{path}: {another_world(directory, saved_world, world)}")
    folder = path.parent / str(index["step"])
    names = [name for name in (REPLICATED, *map(_file, ranks)) if name in files]
    _present(folder, files if ranks[0] == 0 else {name: files[name] for name in names}, again)
    replicated, *parts = [_read(folder / name, index["step"], files[name][1], again) for name in names]
    return replicated | _joined(parts), index


def _joined(parts: Sequence[Arrays]) -> Arrays:
    """Return the arrays of some ranks: those of one name are concatenated, in the order of the ranks."""
    values: dict[str, list[np.ndarray]] = {}
    for name, value in (item for part in parts for item in part.items()):
        values.setdefault(name, []).append(value)
    return {name: np.concatenate(rows) if len(rows) > 1 else rows[0] for name, rows in values.items()}


def _other_schema(schema: int) -> str:
    return f"checkpoint schema {schema}, this suite reads {SCHEMA}; go on with the version of the suite that wrote it"


def another_world(directory: Path, there: int, here: int) -> str:
    """Return why a run with `here` ranks cannot continue from a checkpoint of `there` ranks."""
    kinds = list_own_arrays(directory)
    lost = f"{', '.join(kinds)} of each rank cannot be mapped to {here}" if kinds else "a result is of one world"
    both = f"checkpoint of world={there}, this run has world={here}"
    return f"{both}: {lost}; set world={there}, or choose another run_dir="


def _present(folder: Path, files: Mapping[str, Written], again: str = "") -> None:
    """Check that files exist and have the sizes with which they were written.

    Raises:
        UserError: naming the first that does not.
    """
    shared = "choose a run_dir= on a file system that all hosts share"
    hint = f"put it back, or {again}" if again else shared
    for name, (size, _) in files.items():
        path = folder / name
        try:
            actual = path.stat().st_size
        except OSError as error:
            raise UserError(f"{path}: this host cannot see this part of the checkpoint; {hint}") from error
        if actual != size:
            raise UserError(f"{path}: truncated checkpoint ({actual:,} of {size:,} bytes); {hint}")


def _read(path: Path, step: int, checksum: str, again: str) -> Arrays:
    """Read one file's arrays.

    Raises:
        UserError: the file is damaged, was written at another step, or holds other values than were written.
    """
    from safetensors import SafetensorError

    try:
        with open_tensors(path) as file:
            metadata = file.metadata() or {}
            if metadata.get("step") != str(step):
                raise UserError(f"{path}: not of step {step}, which the index names; put it back, or {again}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise UserError(f"{path}: damaged checkpoint ({error}); put it back, or {again}") from error
    if {metadata.get(CHECKSUM), hash_tensors(arrays, arrays.__getitem__)} != {checksum}:
        raise UserError(f"{path}: damaged checkpoint (its checksum differs); put it back, or {again}")
    return arrays
