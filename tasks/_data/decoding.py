"""Decodes a directory of photographs once, into shards of pixels.

Each file gets its name when it is whole, and its checksum is noted, so that an interrupted preparation continues at the
first shard that is missing or was changed.
"""

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from suite.contract import UserError
from suite.tasks._data.folder import Folder
from suite.tasks._data.prepared import hash_file, report_damage, write_manifest
from suite.tasks._data.preprocessing import THREADS, resize_shorter_side, resize_to_square
from suite.tasks._data.shards import (
    FORMAT,
    MANIFEST,
    PLAN,
    RECORD,
    SHARD,
    SPLITS,
    check_finished,
    holds_shards,
    name_shards,
)

AT_ONCE = 64  # images in memory


def prepare(
    folder: str | Path,
    target: str | Path,
    *,
    warp: int | None = None,
    side: int | None = None,
    classes: list[str] | None = None,
    on_error: str = "stop",
) -> None:
    """Decode the images of one directory into another.

    Args:
        folder: the directory of the images; see `layout.read_layout`.
        target: a new or empty directory, or one with the unfinished preparation of the same images.
        warp: resize every image to warp × warp; None keeps its size. Batches are equal to those of the files.
        side: reduce images so that the shorter side has so many pixels; None keeps them. Training crops differ.
        classes: class directories to use; None uses all.
        on_error: what to do with a file that cannot be read, stop or skip; see `Folder`.

    Raises:
        UserError: for a directory that is in use, or a file that cannot be read.
    """
    check_finished(folder)
    if holds_shards(folder):
        raise UserError(f"{folder}: contains prepared images; train from them with data_dir={folder}")
    source, target = Folder(folder, on_error=on_error, classes=classes), Path(target)
    data = source.data
    described = {"name": data.name, "identity": data.identity, "classes": source.names, "warp": warp, "side": side}
    plan = described | {"stamp": data.stamp}
    files = _begin(target, plan)

    def decode(split: str, row: int) -> tuple[np.ndarray, int]:
        image, readable_row, _ = source.open_image(split, row)
        if warp:
            return resize_to_square(image, warp), readable_row
        if side and min(image.size) > side:
            image = resize_shorter_side(image, side)
        return np.asarray(image), readable_row

    skipped: list[str] = []
    for split in SPLITS:
        labels = source.labels[split]
        for number, name in enumerate(name_shards(split, len(labels))):
            rows = range(number * SHARD, min((number + 1) * SHARD, len(labels)))
            if not _is_finished(target, name, files):
                _write_shard(target / name, labels, rows, lambda row, split=split: decode(split, row))
                files |= {file: hash_file(target / file) for file in _name_files(name)}
                _write_plan(target, plan, files)
            index = np.load(target / f"{name}.npy")
            skipped += [source.paths[split][row] for row in np.array(rows)[index["row"] != rows]]
    content = {**described, "format": FORMAT, "samples": dict(data.samples), "skipped": sorted(skipped)}
    write_manifest(target / MANIFEST, {**content, "files": files}, files)
    (target / PLAN).unlink()


def _begin(target: Path, plan: Mapping[str, object]) -> dict[str, str]:
    """Create the directory, or check that it contains the unfinished preparation of the same images.

    Returns:
        The checksum of each finished file.

    Raises:
        UserError: if it contains anything else.
    """
    target.mkdir(parents=True, exist_ok=True)
    if (target / MANIFEST).exists():
        raise UserError(f"{target}: contains prepared images already; name another directory, --to DIR, or delete it")
    if not any(target.iterdir()):
        _write_plan(target, plan, {})
    if not (target / PLAN).exists():
        raise UserError(f"{target}: is not empty; name another directory, --to DIR")
    with report_damage(target / PLAN, "delete the directory, and prepare the images again"):
        earlier = json.loads((target / PLAN).read_text())
        files = dict(earlier.pop("files"))
    if earlier != json.loads(json.dumps(dict(plan))):
        raise UserError(
            f"{target}: contains an unfinished preparation of other images or with other settings; "
            "name another directory, --to DIR, or delete it"
        )
    return files


def _write_plan(target: Path, plan: Mapping[str, object], files: dict[str, str]) -> None:
    _write_whole(target / PLAN, lambda path: path.write_text(json.dumps({**plan, "files": files})))


def _name_files(shard: str) -> list[str]:
    return [f"{shard}.bin", f"{shard}.npy"]


def _is_finished(target: Path, shard: str, files: dict[str, str]) -> bool:
    """Return whether an earlier call finished a shard, and its files have not changed since."""
    known = [(target / name, files.get(name)) for name in _name_files(shard)]
    return all(checksum and path.is_file() and hash_file(path) == checksum for path, checksum in known)


def _write_shard(stem: Path, labels: np.ndarray, rows: range, decode: Callable[[int], tuple[np.ndarray, int]]) -> None:
    """Write the pixels of some rows, and then their index."""
    index = np.zeros(len(rows), RECORD)

    def write_pixels(path: Path) -> None:
        end = 0
        with path.open("wb") as file, ThreadPoolExecutor(THREADS) as pool:
            for first in range(0, len(rows), AT_ONCE):
                decoded = pool.map(decode, rows[first : first + AT_ONCE])
                for place, (pixels, row) in enumerate(decoded, start=first):
                    index[place] = (end, *pixels.shape[:2], labels[row], row)
                    file.write(np.ascontiguousarray(pixels).data)
                    end += pixels.nbytes

    _write_whole(stem.with_suffix(".bin"), write_pixels)
    _write_whole(stem.with_suffix(".npy"), lambda path: np.save(path, index))


def _write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name, and rename it when it is whole and on the disk."""
    partial = path.with_name(f"partial{path.suffix}")
    write(partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)
