"""Reads the pre-training records that `suite data bert --from TEXT --to DIR` has written, memory-mapped."""

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import Data, UserError
from suite.tasks import _data
from suite.tasks._data import stamp_files
from suite.tasks._data.prepared import Manifest, hash_file, read_manifest, report_damage
from suite.tasks.bert.preparation import FORMAT, MANIFEST, SPLITS, VOCABULARY
from suite.tasks.bert.sample import Hiding, make_record_type

PREPARE = "suite data bert --from TEXT --to DIR scale=SCALE"
HOW = f"Make them from text, at the run's scale: {PREPARE}, then set data_dir=DIR"
AGAIN = f"prepare the text again, at the run's scale: {PREPARE}"
MAPS = 64  # shards that are open at once; each uses a file descriptor


class Source:
    """Records in shards, memory-mapped."""

    def __init__(
        self, hiding: Hiding, *, sequence: int, next_sentence: bool, data_dir: str | None, on_error: str = "stop"
    ):
        """Read the manifest, and check the size and a sample of every shard.

        Args:
            hiding: must equal the setting that the records were made with.
            sequence: likewise.
            next_sentence: likewise.
            data_dir: the directory.
            on_error: `stop` at a shard that is missing or changed, or `skip` it: its name is added to `data.skipped`.

        Raises:
            UserError: if the manifest is missing, the records were made with other settings, or a shard is damaged.
        """
        prepared = open_manifest(data_dir)
        self.root = prepared.root
        self.type = make_record_type(sequence, hiding.predictions)
        with report_damage(self.root / MANIFEST, AGAIN):
            self._open(prepared, hiding, sequence=sequence, next_sentence=next_sentence, on_error=on_error)

    def _open(self, prepared: Manifest, hiding: Hiding, *, sequence: int, next_sentence: bool, on_error: str) -> None:
        """Find the shards that a manifest describes, and check them."""
        manifest = prepared.content
        made, required = manifest["made"], {"sequence": sequence, "next_sentence": next_sentence, **vars(hiding)}
        for name, value in ({**made["packing"], **made["hiding"]}).items():
            if name in required and required[name] != value:
                raise UserError(
                    f"{self.root}: the records were made with {name}={value}, but the run has {required[name]}; "
                    f"set task.{name}={str(value).lower()}, or make other records, at the run's scale: {PREPARE}"
                )
        names = [shard["file"] for shard in _shards(manifest)]
        if doubled := next((name for number, name in enumerate(names) if name in names[:number]), None):
            places = ", ".join(str(number) for number, name in enumerate(names, start=1) if name == doubled)
            raise ValueError(f"the shard {doubled} is there several times, as numbers {places}")
        faults = {shard["file"]: fault for shard in _shards(manifest) if (fault := _change(prepared, shard))}
        if faults and on_error != "skip":
            raise UserError(f"{next(iter(faults.values()))}. To skip such shards, set task.on_error=skip")
        whole = {split: [s for s in manifest["splits"][split] if s["file"] not in faults] for split in SPLITS}
        if empty := [split for split in SPLITS if not whole[split]]:
            raise UserError(f"{self.root}: no complete shard of {empty[0]} is left. {HOW}")
        self.paths = {split: [str(self.root / s["file"]) for s in shards] for split, shards in whole.items()}
        self.ends = {split: np.cumsum([s["records"] for s in shards]) for split, shards in whole.items()}
        self.vocabulary = manifest["vocabulary"]["pieces"]
        self.hidden_each = sum(s["hidden"] for s in whole["train"]) / int(self.ends["train"][-1])
        self.data = Data(
            kind="real",
            name=self.root.resolve().name,
            identity=hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest(),
            samples={split: int(ends[-1]) for split, ends in self.ends.items()},
            unit="sequences",
            note="the identity covers the checksums of the text, the vocabulary and every shard",
            skipped=(*faults, *manifest["skipped"]),
            dropped=manifest.get("dropped", {}),  # older records lack it
            dropped_unit="word pieces" if manifest.get("dropped") else "",
            dropped_of=manifest["tokens"] if manifest.get("dropped") else 0,
            stamp=stamp_files(Path(path) for split in SPLITS for path in self.paths[split]),
        )

    def read(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Records of some rows, in any order, repetition allowed.

        Raises:
            UserError: if a shard has another number of records than the manifest says.
        """
        shards = np.searchsorted(self.ends[split], rows, side="right")
        records = np.empty(len(rows), self.type)
        for shard in np.unique(shards):
            in_shard = shards == shard
            begin, end = int(self.ends[split][shard - 1]) if shard else 0, int(self.ends[split][shard])
            path = self.paths[split][shard]
            if len(mapped := _mapped(path)) != end - begin:
                raise UserError(f"{path}: {len(mapped):,} records, but {end - begin:,} in the manifest; {AGAIN}")
            records[in_shard] = mapped[rows[in_shard] - begin]
        return records


make = Source


@functools.lru_cache(maxsize=MAPS)
def _mapped(path: str) -> np.ndarray:
    return np.load(path, mmap_mode="r")


def open_manifest(data_dir: str | Path | None) -> Manifest:
    """Read the manifest of a directory of records.

    Raises:
        UserError: if there is no manifest, or it cannot be read.
    """
    if data_dir is None:
        raise UserError(f"no directory of pre-training records is given. {HOW}")
    root = Path(data_dir).expanduser()
    path = root / MANIFEST
    if not path.is_file():
        raise UserError(f"no pre-training records at {root}: {path} is missing. {HOW}")
    manifest = read_manifest(path, AGAIN)
    if (form := manifest.content.get("format")) != FORMAT:
        raise UserError(f"{path}: its format is {form}, but this version reads {FORMAT}. {HOW}")
    return manifest


def check(data_dir: str | Path, **_: Any) -> list[str]:
    """Read all files; return one line for each file whose contents differ from the manifest."""
    prepared = open_manifest(data_dir)
    root, manifest, faults = prepared.root, prepared.content, list[str]()
    with report_damage(root / MANIFEST, AGAIN):
        for shard in _shards(manifest):
            fault = _size(root, shard) or _contents(root / shard["file"], shard["sha256"])
            faults += [fault] if fault else _tokens(root / shard["file"], manifest["vocabulary"]["pieces"])
        fault = _contents(root / VOCABULARY, manifest["vocabulary"]["sha256"])
    return [*faults, fault] if fault else faults


def census(data_dir: str, **_: Any) -> dict[str, dict[str, int]]:
    """Return the number of records of each shard in each split of a directory."""
    splits = open_manifest(data_dir).content["splits"]
    return {split: {shard["file"]: shard["records"] for shard in shards} for split, shards in splits.items()}


def count_recurring(data_dir: str | Path, **_: Any) -> int:
    """Return how many validation sequences equal a training sequence before words are masked.

    A document of both splits is cut alike, unless a record is made short or of two segments: the count is a minimum.
    """
    prepared = open_manifest(data_dir)
    with report_damage(prepared.root / MANIFEST, AGAIN):
        parts = prepared.content["splits"]
        train, valid = (_sequences(prepared.root / shard["file"] for shard in parts[split]) for split in SPLITS)
        return _data.count_recurring(train, valid)


def _sequences(paths: Iterable[Path]) -> Iterator[bytes]:
    """Tokens of each record, with those that were masked."""
    for path in paths:
        for record in np.load(path, mmap_mode="r"):
            tokens, count = record["tokens"].copy(), record["count"]
            tokens[record["position"][:count]] = record["label"][:count]
            yield tokens.tobytes()


def _shards(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [shard for split in SPLITS for shard in manifest["splits"][split]]


def _size(root: Path, shard: dict[str, Any]) -> str:
    path = root / shard["file"]
    if not path.is_file():
        return f"{path}: missing"
    size = path.stat().st_size
    return "" if size == shard["bytes"] else f"{path}: {size:,} bytes instead of {shard['bytes']:,}, as in the manifest"


def _change(prepared: Manifest, shard: dict[str, Any]) -> str:
    return _size(prepared.root, shard) or prepared.find_change(shard["file"])


def _contents(path: Path, expected: str) -> str:
    if not path.is_file():
        return f"{path}: missing"
    checksum = hash_file(path)
    return "" if checksum == expected else f"{path}: its sha256 is {checksum[:12]}… instead of {expected[:12]}…"


def _tokens(path: Path, pieces: int) -> list[str]:
    """Find tokens outside the vocabulary, which would make the loss NaN or be read as another word."""
    rows = np.load(path, mmap_mode="r")
    largest = int(max(rows["tokens"].max(), rows["label"].max()))
    return (
        [f"{path}: contains piece {largest:,}, but the vocabulary has {pieces:,} pieces"] if largest >= pieces else []
    )
