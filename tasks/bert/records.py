"""Pre-training records that `suite data bert --from TEXT --to DIR` made, read through memory maps."""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import Data, UserError
from suite.tasks.bert.preparation import FORMAT, MANIFEST, SPLITS, VOCABULARY
from suite.tasks.bert.sample import Hiding, record

HOW = "Make them from text: suite data bert --from TEXT --to DIR, then type data_dir=DIR"
MAPS = 64  # shards open at once; each holds a file descriptor


class Source:
    """Records in shards; nothing is kept in memory but the system's cache of pages."""

    def __init__(
        self, hiding: Hiding, *, sequence: int, next_sentence: bool, data_dir: str | None, on_error: str = "stop"
    ):
        """Read the manifest and look at every shard's size; none is opened.

        Args:
            hiding: as the records were made with.
            sequence: likewise.
            next_sentence: likewise.
            data_dir: the directory.
            on_error: at a shard that is missing or cut short `stop`, or `skip` it: its name joins `data.skipped`.

        Raises:
            UserError: no manifest, records of another form, or a damaged shard.
        """
        self.root, manifest = open_manifest(data_dir)
        self.type = record(sequence, hiding.predictions)
        made, asked = manifest["made"], {"sequence": sequence, "next_sentence": next_sentence, **vars(hiding)}
        for name, value in ({**made["packing"], **made["hiding"]}).items():
            if name in asked and asked[name] != value:
                raise UserError(
                    f"{self.root}: made with {name}={value}, and the run asks for {asked[name]}; "
                    f"type task.{name}={str(value).lower()}, or prepare others"
                )
        faults = {shard["file"]: fault for shard in _shards(manifest) if (fault := _size(self.root, shard))}
        if faults and on_error != "skip":
            raise UserError(f"{next(iter(faults.values()))}. To leave such shards out: type task.on_error=skip")
        whole = {split: [s for s in manifest["splits"][split] if s["file"] not in faults] for split in SPLITS}
        if empty := [split for split in SPLITS if not whole[split]]:
            raise UserError(f"{self.root}: no whole shard of {empty[0]} is left. {HOW}")
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
        )

    def read(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Records of some rows, in any order, repetition allowed."""
        shards = np.searchsorted(self.ends[split], rows, side="right")
        found = np.empty(len(rows), self.type)
        for shard in np.unique(shards):
            here = shards == shard
            begin = int(self.ends[split][shard - 1]) if shard else 0
            found[here] = _mapped(self.paths[split][shard])[rows[here] - begin]
        return found


make = Source


@functools.lru_cache(maxsize=MAPS)
def _mapped(path: str) -> np.ndarray:
    return np.load(path, mmap_mode="r")


def open_manifest(data_dir: str | Path | None) -> tuple[Path, dict[str, Any]]:
    """The directory of records and what its manifest says.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    if data_dir is None:
        raise UserError(f"pre-training records are a directory, and none is given. {HOW}")
    root = Path(data_dir).expanduser()
    path = root / MANIFEST
    if not path.is_file():
        raise UserError(f"no pre-training records at {root}: {path} is missing. {HOW}")
    try:
        manifest = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}). {HOW}") from error
    if manifest.get("format") != FORMAT:
        raise UserError(f"{path}: format {manifest.get('format')}, and this version reads {FORMAT}. {HOW}")
    return root, manifest


def verify(data_dir: str | Path) -> list[str]:
    """Read everything: one line for each file whose contents are not what the manifest says."""
    root, manifest = open_manifest(data_dir)
    faults = []
    for shard in _shards(manifest):
        fault = _size(root, shard) or _contents(root / shard["file"], shard["sha256"])
        faults += [fault] if fault else _tokens(root / shard["file"], manifest["vocabulary"]["pieces"])
    fault = _contents(root / VOCABULARY, manifest["vocabulary"]["sha256"])
    return [*faults, fault] if fault else faults


def _shards(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [shard for split in SPLITS for shard in manifest["splits"][split]]


def _size(root: Path, shard: dict[str, Any]) -> str:
    path = root / shard["file"]
    if not path.is_file():
        return f"{path}: missing"
    size = path.stat().st_size
    return "" if size == shard["bytes"] else f"{path}: {size:,} bytes, and the manifest says {shard['bytes']:,}"


def _contents(path: Path, expected: str) -> str:
    if not path.is_file():
        return f"{path}: missing"
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    return "" if found == expected else f"{path}: sha256 {found[:12]}…, and the manifest says {expected[:12]}…"


def _tokens(path: Path, pieces: int) -> list[str]:
    """A record whose token is no piece of the vocabulary would make the loss NaN, or another word of it."""
    rows = np.load(path, mmap_mode="r")
    largest = int(max(rows["tokens"].max(), rows["label"].max()))
    return [f"{path}: holds piece {largest:,} of a vocabulary of {pieces:,}"] if largest >= pieces else []
