"""Criteo's click logs: 40 columns of text, prepared once into arrays that are memory-mapped.

A line contains a label, 13 integers and 26 hexadecimal words, separated by tabs; an empty field is unknown. Each line
ends with a newline; without it, the last one may be cut off. The format has no other redundancy: equal lines are legal,
and a line that is gone is seen by the number of rows alone, which the manifest states for each file.

The preparation follows the script of facebookresearch/dlrm: an unknown or negative integer is 0, an integer x becomes
log(1 + x), and an unknown word is treated like any other word. Ids number the words in the order of their first
appearance in the *training* rows; 0 is a word that does not appear there. (The published script also numbers the words
of the test rows, so that its test rows have no new words.) With `hash_rows`, ids are 1 + word mod hash_rows, and no
dictionary is stored.
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import DAMAGED, Data, UserError
from suite.tasks import _data
from suite.tasks._data import stamp_files
from suite.tasks._data.prepared import Manifest, hash_file, read_manifest, report_damage, write_manifest
from suite.tasks.dlrm.architecture import DENSE, FEATURES
from suite.tasks.dlrm.lines import MalformedError, Rows

MANIFEST = "manifest.json"
FORMAT = 1
AGAIN = "prepare it again"
SPLITS = ("train", "valid")
COLUMNS = {"dense": (np.float32, DENSE), "ids": (np.int32, FEATURES), "label": (np.uint8, 1)}
LABEL, INTEGER, WORD = rb"[01]", rb"-?\d+|", rb"[0-9a-fA-F]{0,8}"
LINE = re.compile(LABEL + DENSE * (rb"\t(?:" + INTEGER + rb")") + FEATURES * (rb"\t" + WORD))
RAW = re.compile(r"(train|valid|test|day_\d+)(?:\.txt|\.tsv)?(?:\.gz)?")
MOST_COMPARED = 100_000_000  # rows whose splits are compared
CHUNK = 65_536  # lines encoded together
HELD_BACK = "Criteo's test rows"  # half a day before the validation rows
UNLABELLED = "without labels, in test.txt"
SHARES = 14  # a single file counts as 7 days; the second half of the last is for validation (facebookresearch/dlrm)


@dataclass
class Part:
    """Lines [start, stop) of one raw file, for one split."""

    path: Path
    split: str
    start: int = 0
    stop: int | None = None
    held_back: int = 0  # lines before `start` that no split reads
    unlabelled: int = 0  # lines of the folder's `test` file, if it has no labels


def find_parts(folder: Path) -> list[Part]:
    """Assign the lines of a raw directory to the splits.

    The directory contains `train` and `valid` or `test` (all labelled), or `day_0` … `day_23` (the second half of the
    last day is for validation), or a single `train` (the second half of its last seventh is for validation). File names
    end in `.txt`, `.tsv` or nothing, and in `.gz` if compressed. The halves before the validation rows are Criteo's
    test rows and are left out, as is a `test` without labels beside a single `train`.

    Raises:
        UserError: if the directory contains none of these, one of them twice, others besides, or not every day up to
            the last; also for a `valid` without labels.
    """
    named = {path: RAW.fullmatch(path.name) for path in sorted(folder.iterdir()) if path.is_file()}
    files: dict[str, Path] = {}
    for path, match in named.items():
        if match and files.setdefault(match[1], path) != path:
            raise UserError(f"{folder}: contains both {files[match[1]].name} and {path.name}; leave one of them")
    days = sorted((name for name in files if name.startswith("day_")), key=lambda name: int(name[4:]))
    held_out = [name for name in ("valid", "test") if name in files]
    if others := held_out[1:] or (days and [name for name in ("train", *held_out) if name in files]):
        kept = files[held_out[0] if held_out[1:] else days[0]].name
        raise UserError(f"{folder}: {files[others[0]].name} would not be read beside {kept}; leave one of them")
    if absent := [f"day_{number}" for number, day in enumerate(days) if day != f"day_{number}"]:
        raise UserError(f"{folder}: {absent[0]} is missing before {days[-1]}; add it, or leave out the later days")
    if days:
        lines = sum(1 for _ in _lines(files[days[-1]]))
        return [Part(files[day], "train") for day in days[:-1]] + [
            Part(files[days[-1]], "valid", lines // 2, held_back=lines // 2)
        ]
    if "train" in files and held_out and (held_out == ["valid"] or _is_labelled(files["test"])):
        return [Part(files["train"], "train"), Part(files[held_out[0]], "valid")]
    if "train" in files:
        unlabelled = sum(1 for _ in _lines(files["test"])) if held_out else 0
        lines = sum(1 for _ in _lines(files["train"]))
        half = lines // SHARES
        cut = lines - half
        return [
            Part(files["train"], "train", 0, cut - half),
            Part(files["train"], "valid", cut, None, half, unlabelled),
        ]
    raise UserError(f"{folder}: contains neither train.txt nor day_0 …; put Criteo's files there, plain or .gz")


def prepare(folder: str | Path, target: str | Path, *, hash_rows: int = 0, on_error: str = "stop", **_: Any) -> None:
    """Encode the raw files of one directory into another: three arrays for each split, and a manifest with checksums.

    Args:
        folder: the directory of the raw files; see `find_parts`.
        target: a new or empty directory; files of an unfinished preparation are replaced.
        hash_rows: rows of each table without a dictionary; 0 uses a dictionary.
        on_error: what to do with a line that cannot be read, stop or skip.

    Raises:
        UserError: for a line that cannot be read, which is named.
    """
    target = Path(target)
    _emptied(target)
    words: list[dict[int, int]] = [{} for _ in range(FEATURES)]
    skipped: list[str] = []
    samples: dict[str, int] = dict.fromkeys(SPLITS, 0)
    kept: dict[str, int] = {}
    parts = sorted(find_parts(Path(folder)), key=lambda part: part.split)
    for part in parts:  # training rows first, because they define the words
        for rows in _chunks(part, skipped if on_error == "skip" else None):
            arrays = _encode(rows, words, hash_rows, learn=part.split == "train")
            samples[part.split] += len(rows.label)
            kept[part.path.name] = kept.get(part.path.name, 0) + len(rows.label)
            for name, array in arrays.items():
                with (target / f"{part.split}.{name}.bin").open("ab") as file:
                    array.tofile(file)
    if not all(samples.values()):
        counts = " and ".join(f"{count:,} {split}" for split, count in samples.items())
        raise UserError(f"{folder}: {counts} rows; each split needs some")
    files = {path.name: hash_file(path) for path in sorted(target.glob("*.bin"))}
    rows_of = [hash_rows + 1 if hash_rows else len(known) + 1 for known in words]
    manifest = {"format": FORMAT, "samples": samples, "rows": rows_of, "files": files, "skipped": skipped}
    manifest["held_back"] = sum(part.held_back for part in parts)
    manifest["unlabelled"] = sum(part.unlabelled for part in parts)
    manifest["kept"] = kept
    write_manifest(target / MANIFEST, manifest, files)


def _emptied(target: Path) -> None:
    """Create the directory, or delete the arrays that an unfinished preparation has left in it.

    Raises:
        UserError: if it contains anything else.
    """
    target.mkdir(parents=True, exist_ok=True)
    leftovers = [target / f"{split}.{name}.bin" for split in SPLITS for name in COLUMNS]
    if set(target.iterdir()) - set(leftovers):
        raise UserError(f"{target}: is not empty; name another directory, --to DIR")
    for path in leftovers:
        path.unlink(missing_ok=True)


def _lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for line in file:
                number += 1
                yield line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged after line {number}: {error}; download it again") from error


def _is_labelled(path: Path) -> bool:
    """Return whether a `test` file has labels; its first two lines tell, so that one that is damaged hides nothing.

    Raises:
        UserError: if only one of them has.
    """
    with_label = [line.count(b"\t") != DENSE + FEATURES - 1 for line in islice(_lines(path), 2)]
    if len(set(with_label)) > 1:
        number = 1 + with_label.index(False)
        raise UserError(f"{path}, line {number}: has no label, unlike line {3 - number}; repair it")
    return any(with_label)


def _chunks(part: Part, skipped: list[str] | None) -> Iterator[Rows]:
    """Rows, CHUNK lines at a time; an unreadable line is added to `skipped`, or raises if that is None."""
    selected = islice(_lines(part.path), part.start, part.stop)
    for start in count(part.start, CHUNK):
        lines = list(islice(selected, CHUNK))
        if not lines:
            return
        try:
            yield Rows([line.rstrip(b"\r\n") for line in lines], whole=lines[-1].endswith(b"\n"))
        except MalformedError:
            if good := list(_select_readable(part.path, start, lines, skipped)):
                yield Rows(good)


def _select_readable(path: Path, start: int, lines: list[bytes], skipped: list[str] | None) -> Iterator[bytes]:
    """Yield the lines without malformed fields; `start` lines precede them in the file.

    Raises:
        UserError: for the first malformed line, if `skipped` is None.
    """
    for number, line in enumerate(lines, start=start + 1):
        stripped = line.rstrip(b"\r\n")
        try:
            _check_fields(stripped)
            if stripped == line:
                raise ValueError("the file ends within this line, or a newline is missing at its end")
        except ValueError as error:
            fault = f"{path}, line {number}: {error}"
            if skipped is None:
                raise UserError(f"{fault}; repair it, or skip such lines with task.on_error=skip") from error
            skipped.append(fault)
        else:
            yield stripped


def _check_fields(line: bytes) -> None:
    """Check the 40 fields of a line.

    Raises:
        ValueError: if a field is malformed.
    """
    if LINE.fullmatch(line):
        return
    fields = line.split(b"\t")
    if len(fields) != 1 + DENSE + FEATURES:
        raise ValueError(f"{len(fields)} columns instead of {1 + DENSE + FEATURES}")
    kinds = (
        [(LABEL, "0 or 1")] + DENSE * [(INTEGER, "an integer")] + FEATURES * [(WORD, "a hexadecimal word of 32 bits")]
    )
    for place, (field, (pattern, kind)) in enumerate(zip(fields, kinds, strict=True)):
        if not re.fullmatch(pattern, field):
            raise ValueError(f"column {place + 1} is {ascii(field)[2:-1]!r}, not {kind}")
    raise AssertionError("a malformed line has a malformed field")


def _encode(rows: Rows, words: list[dict[int, int]], hash_rows: int, *, learn: bool) -> dict[str, np.ndarray]:
    """Return the arrays of some rows; with `learn`, new words are added to the dictionaries."""
    if hash_rows:
        ids = 1 + rows.read_numbers() % hash_rows
    else:
        ids = np.stack(
            [_look_up(column, known, learn=learn) for column, known in zip(rows.words.T, words, strict=True)], 1
        )
    return {"dense": np.log1p(rows.counts).astype(np.float32), "ids": ids.astype(np.int32), "label": rows.label}


def _look_up(column: np.ndarray, known: dict[int, int], *, learn: bool) -> np.ndarray:
    """Return the ids of words; with `learn`, new words are numbered in the order of their appearance."""
    distinct, places = np.unique(column, return_inverse=True)
    ids = np.array([known.get(word, 0) for word in distinct.tolist()])
    new = np.flatnonzero(ids == 0)
    if learn and len(new):
        first = np.empty(len(distinct), np.int64)
        first[places[::-1]] = np.arange(len(column))[::-1]  # of equal words, the first is written last
        new = new[np.argsort(first[new])]
        ids[new] = len(known) + 1 + np.arange(len(new))
        known.update(zip(distinct[new].tolist(), ids[new].tolist(), strict=True))
    return ids[places]


def manifest_of(folder: str | Path) -> Manifest:
    """Read the manifest of a prepared directory, and check the sizes of the files.

    Raises:
        UserError: if the directory was not prepared, the manifest is damaged, or a file has another size.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).exists():
        raise UserError(f"{folder}: not prepared; run suite data dlrm --from {folder} --to DIRECTORY")
    manifest = read_manifest(folder / MANIFEST, AGAIN)
    form = manifest.content.get("format")
    if form != FORMAT:
        raise UserError(f"{folder}: its format is {form}, but this version reads {FORMAT}; {AGAIN}")
    with report_damage(folder / MANIFEST, AGAIN):
        _check_form(manifest.content)
        for split, samples in manifest.content["samples"].items():
            for name, (kind, columns) in COLUMNS.items():
                path, expected = folder / f"{split}.{name}.bin", samples * columns * np.dtype(kind).itemsize
                size = path.stat().st_size if path.exists() else 0
                if size != expected:
                    raise UserError(f"{path}: {size:,} bytes instead of {expected:,}; {AGAIN}")
    return manifest


def _check_form(content: dict[str, Any]) -> None:
    """Check the entries that every manifest has, also an older one without a checksum.

    Raises:
        LookupError, TypeError, ValueError: for the first that is missing or of another kind.
    """
    if set(content["samples"]) != set(SPLITS) or not all(content["samples"].values()):
        raise ValueError(f"samples must be counts of {' and '.join(SPLITS)}")
    if len(content["rows"]) != FEATURES or min(map(int, content["rows"])) < 1:
        raise ValueError(f"rows must be {FEATURES} counts")
    if set(content["files"]) != {f"{split}.{name}.bin" for split in SPLITS for name in COLUMNS}:
        raise ValueError("files must name the arrays")
    list(content["skipped"])


def check(data_dir: str, **_: Any) -> list[str]:
    """One line for each prepared file whose bytes have changed."""
    folder, faults = Path(data_dir), []
    for name, expected in manifest_of(folder).content["files"].items():
        if (checksum := hash_file(folder / name)) != expected:
            faults.append(f"{folder / name}: its sha256 is {checksum[:12]}… instead of {expected[:12]}…")
    return faults


def count_recurring(data_dir: str, **_: Any) -> int | None:
    """Return how many validation rows equal a training row, with their labels; None beyond MOST_COMPARED rows."""
    records = Records(data_dir)
    if sum(records.data.samples.values()) > MOST_COMPARED:
        return None
    arrays = records.arrays
    train, valid = (_rows(list(arrays[split].values())) for split in SPLITS)
    return _data.count_recurring(train, valid)


def _rows(columns: list[np.ndarray]) -> Iterator[bytes]:
    for start in range(0, len(columns[0]), CHUNK):
        parts = [np.ascontiguousarray(array[start : start + CHUNK]).view(np.uint8) for array in columns]
        yield from (row.tobytes() for row in np.concatenate(parts, 1))


def census(data_dir: str, **_: Any) -> dict[str, dict[str, int]]:
    """Return the number of rows with and without a click in each split."""
    records, counts = Records(data_dir), {}
    for split in records.data.samples:
        clicks = int(records.arrays[split]["label"].sum(dtype=np.int64))
        counts[split] = {"clicked": clicks, "not clicked": records.data.samples[split] - clicks}
    return counts


def _dropped(manifest: dict[str, Any]) -> dict[str, int]:
    """Return the number of raw rows that no split contains, by reason; older manifests count only damaged rows."""
    counts = {DAMAGED: len(manifest["skipped"]), HELD_BACK: manifest.get("held_back", 0)}
    counts[UNLABELLED] = manifest.get("unlabelled", 0)
    return {reason: count for reason, count in counts.items() if count}


class Records:
    """Prepared rows, memory-mapped: only the manifest is read at first, and each batch reads its rows.

    Attributes:
        rows: of each categorical feature's table.
        arrays: by split and column, (samples, columns).
    """

    def __init__(self, folder: str | Path, data: Data | None = None):
        folder, prepared = Path(folder), manifest_of(folder)
        prepared.check_files(AGAIN)
        manifest = prepared.content
        self.rows = tuple(manifest["rows"])
        samples = manifest["samples"]
        identity = hashlib.sha256(json.dumps(manifest["files"], sort_keys=True).encode()).hexdigest()
        self.data = data or Data(
            "real",
            folder.name,
            identity,
            samples,
            note="",
            unit="rows",
            skipped=tuple(manifest["skipped"]),
            dropped=_dropped(manifest),
            stamp=stamp_files(folder / name for name in sorted(manifest["files"])),
        )
        self.arrays = {
            split: {
                name: np.memmap(folder / f"{split}.{name}.bin", kind, "r", shape=(samples[split], columns))
                for name, (kind, columns) in COLUMNS.items()
            }
            for split in samples
        }

    def read(self, split: str, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Some rows: dense (n, 13) float32, ids (n, 26) int32, label (n,) float32."""
        part = {name: np.asarray(array[rows]) for name, array in self.arrays[split].items()}
        return {"dense": part["dense"], "ids": part["ids"], "label": part["label"][:, 0].astype(np.float32)}


def make(*, data_dir: str | None, **_: Any) -> Records:
    """Open a prepared directory.

    Raises:
        UserError: if no directory is given, or it was not prepared.
    """
    if data_dir is None:
        raise UserError(
            "Criteo's click logs are not here. Prepare them with suite data dlrm --from LOGS --to DIR, then set "
            "data_dir=DIR"
        )
    return Records(data_dir)
