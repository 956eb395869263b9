"""Real parallel text, prepared by `preparation` and memory-mapped: a run reads only the rows of its batches."""

import functools
import hashlib
import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import Data, UserError
from suite.tasks import _data
from suite.tasks._data import stamp_files
from suite.tasks._data.prepared import Manifest, hash_file, read_manifest, report_damage
from suite.tasks.transformer.architecture import EOS, PAD, SPECIAL, UNKNOWN
from suite.tasks.transformer.metric import format_signature
from suite.tasks.transformer.preparation import MANIFEST, VOCABULARY

AGAIN = "prepare it again: suite data transformer --from TEXT --to DIR"


def manifest_of(data_dir: str | Path | None) -> Manifest:
    """Read the manifest of a prepared directory.

    Raises:
        UserError: if the directory was not prepared, or its manifest is damaged.
    """
    if data_dir is None:
        raise UserError("no directory of prepared text is given. Set data_dir=DIRECTORY")
    root = Path(data_dir).expanduser()
    if not (root / MANIFEST).is_file():
        raise UserError(
            f"no prepared corpus at {root}: {MANIFEST} is missing. Run suite data transformer --from TEXT --to DIR"
        )
    return read_manifest(root / MANIFEST, AGAIN)


DROPPED = {  # the manifest's reasons, in words
    "empty": "without words on a side",
    "long": "longer than prepare.longest",
    "ratio": "beyond prepare.ratio",
}


class Corpus:
    """Prepared sentence pairs; see `suite.tasks.transformer.Pairs`.

    Args:
        data_dir: directory that `prepare` wrote.
        languages: source and target, for example en and fr.
        length: training pairs with more words on either side, including the end, are left out; every batch is padded
            to this length.
        held_out: the split that the metric uses, `valid` or `test`; none of its pairs are left out.

    Raises:
        UserError: if the directory was not prepared or has changed, or has other languages.
    """

    def __init__(self, data_dir: str | None, *, languages: tuple[str, str], length: int, held_out: str):
        prepared = manifest_of(data_dir)
        self.root = prepared.root
        prepared.check_files(AGAIN)
        with report_damage(self.root / MANIFEST, AGAIN):
            self._open(prepared.content, languages, length, held_out)

    def _open(self, manifest: dict[str, Any], languages: tuple[str, str], length: int, held_out: str) -> None:
        """Map the arrays that a manifest describes."""
        self.languages, self.length, self.held_out = tuple(languages), length, held_out
        if sorted(self.languages) != sorted(manifest["languages"]):
            raise UserError(
                f"{self.root} contains {' and '.join(manifest['languages'])}, not {' and '.join(languages)}"
            )
        if held_out not in manifest["splits"]:
            raise UserError(f"held_out={held_out}: {self.root} contains only {', '.join(manifest['splits'])}")
        self.vocabulary, splits = manifest["vocabulary"], manifest["splits"]
        train, self._valid = splits["train"], splits[held_out]
        rows = train["up_to"][min(max(length - 1, 0), len(train["up_to"]) - 1)]
        if not rows:
            raise UserError(
                f"length={length}: every training pair of {self.root} is longer; set a larger task.source.length="
            )
        dropped = {DROPPED[name]: count for name, count in train["dropped"].items()}
        dropped[f"longer than task.source.length={length}"] = train["pairs"] - rows
        dropped = {name: count for name, count in dropped.items() if count}
        self._arrays = {
            (split, language): (
                _mapped(f"{path}.starts", "<i8", splits[name]["pairs"] + 1),
                _mapped(f"{path}.words", "<u2", splits[name]["words"][language]),
            )
            for split, name in (("train", "train"), ("valid", held_out))
            for language in self.languages
            for path in [self.root / f"{name}.{language}"]
        }
        self.data = Data(
            kind="real",
            name=f"{self.root.resolve().name}-{'-'.join(self.languages)}",
            identity=hashlib.sha256(json.dumps(manifest["files"], sort_keys=True).encode()).hexdigest(),
            samples={"train": rows, "valid": self._valid["pairs"]},
            unit="sentence pairs",
            note=f"{train['pairs'] - rows:,} training pairs longer than {length} words left out; {held_out} scored "
            f"by sacreBLEU {format_signature()}",
            skipped=tuple(manifest["skipped"]),
            dropped=dropped,
            dropped_unit="training pairs" if dropped else "",  # no pair of the held-out split is dropped
            dropped_of=rows + sum(dropped.values()) if dropped else 0,
            stamp=stamp_files(self.root / name for name in sorted(manifest["files"])),
        )

    def lengths(self, split: str) -> tuple[int, int]:
        """`length` on both sides for training; the longest held-out sentence on each side for validation."""
        if split == "train":
            return self.length, self.length
        source, target = (self._valid["longest"][language] + 1 for language in self.languages)
        return source, target

    def read(self, split: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sources and targets (n, `lengths`) of some rows, ended by EOS and padded with PAD, int32."""
        source, target = (
            self._side(split, language, rows, length)
            for language, length in zip(self.languages, self.lengths(split), strict=True)
        )
        return source, target

    def pairs(self, split: str) -> Iterator[bytes]:
        """Yield the words of each pair."""
        sides = [self._arrays[split, language] for language in self.languages]
        for row in range(self.data.samples[split]):
            yield b"\xff\xff".join(words[starts[row] : starts[row + 1]].tobytes() for starts, words in sides)

    def _side(self, split: str, language: str, rows: np.ndarray, length: int) -> np.ndarray:
        starts, words = self._arrays[split, language]
        sentences = np.full((len(rows), length), PAD, np.int32)
        for place, row in enumerate(rows):
            first, last = starts[row], starts[row + 1]
            if not 0 <= first <= last <= len(words) or last - first >= length:
                raise UserError(f"{self.root}: row {row} of {split} in {language} is damaged; {AGAIN}")
            sentences[place, : last - first] = words[first:last]
            if ((words[first:last] < len(SPECIAL)) & (words[first:last] != UNKNOWN)).any():
                raise UserError(
                    f"{self.root}: row {row} of {split} in {language} has a word such as {SPECIAL[EOS]} in its text, "
                    f"which an earlier version of the suite took for the end of the sentence; {AGAIN}"
                )
            sentences[place, last - first] = EOS
        return sentences

    def references(self, split: str, rows: np.ndarray) -> list[str]:
        """Return the translations as in the text file, in NFC as everything that the vocabulary can write."""
        return [unicodedata.normalize("NFC", self._lines[row]) for row in rows]

    def count_unwritable(self, longest: int) -> dict[str, int]:
        """Count the held-out translations that cannot be written in full, by cause."""
        rows = np.arange(self._valid["pairs"])
        starts, _ = self._arrays["valid", self.languages[1]]
        written = self.text(self.read("valid", rows)[1])
        changed = [
            one.split() != other.split() for one, other in zip(written, self.references("valid", rows), strict=True)
        ]
        return {
            f"longer than {longest} words with their end": int((np.diff(starts) >= longest).sum()),
            "with characters that the vocabulary lacks": sum(changed),
        }

    @functools.cached_property
    def _lines(self) -> list[str]:
        path = self.root / f"{self.held_out}.{self.languages[1]}.txt"
        with report_damage(path, AGAIN):
            *lines, last = path.read_bytes().decode().split("\n")
            if last or len(lines) != self._valid["pairs"]:
                raise ValueError(f"{len(lines)} lines instead of {self._valid['pairs']}")
            return lines

    @functools.cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.root / VOCABULARY))

    def text(self, tokens: Iterable[np.ndarray]) -> list[str]:
        """Join the words of each row, up to its end, to a sentence."""
        sentences = []
        for row in tokens:
            ends = np.flatnonzero(row == EOS)
            sentences.append((row[: ends[0]] if len(ends) else row).tolist())
        return self._tokenizer.decode_batch(sentences)


def _mapped(path: str, kind: str, count: int) -> np.ndarray:
    """A file of `count` numbers, memory-mapped.

    Raises:
        UserError: it has another number.
    """
    size, expected = Path(path).stat().st_size, count * np.dtype(kind).itemsize
    if size != expected:
        raise UserError(f"{path}: {size:,} bytes instead of {expected:,}; {AGAIN}")
    return np.memmap(path, kind, "r") if count else np.zeros(0, kind)


class Absent:
    """WMT'14 English-French without its sentences (Vaswani et al. 2017, §5.1), which is enough for a plan."""

    vocabulary = 32_000
    data = Data(
        "real", "WMT'14 English-French", "not here", {"train": 36_000_000, "valid": 3_003}, unit="sentence pairs"
    )

    def __init__(self, length: int):
        self.length = length

    def lengths(self, split: str) -> tuple[int, int]:
        """`length` on both sides in both splits."""
        return self.length, self.length

    def read(self, split: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Raise `UserError`, because the data is absent."""
        raise UserError("WMT's sentences are not here; set data_dir=DIRECTORY")

    def references(self, split: str, rows: np.ndarray) -> list[str]:
        """Raise `UserError`, because the data is absent."""
        raise UserError("WMT's sentences are not here; set data_dir=DIRECTORY")

    def count_unwritable(self, longest: int) -> dict[str, int]:
        """{}: the sentences are not here."""
        return {}

    def text(self, tokens: Iterable[np.ndarray]) -> list[str]:
        """Raise `UserError`, because the data is absent."""
        raise UserError("WMT's vocabulary is not here; set data_dir=DIRECTORY")


def count_recurring(data_dir: str, *, languages: Sequence[str], length: int, held_out: str, **_: Any) -> int:
    """Return how many held-out pairs equal a training pair, on both sides."""
    source, target = languages
    corpus = Corpus(data_dir, languages=(source, target), length=length, held_out=held_out)
    return _data.count_recurring(corpus.pairs("train"), corpus.pairs("valid"))


def check(data_dir: str, **_: Any) -> list[str]:
    """One line for each file of a prepared directory whose checksum is not the manifest's; reads them all."""
    manifest = manifest_of(data_dir)
    root, faults = manifest.root, []
    for name, expected in manifest.content["files"].items():
        if not (root / name).is_file():
            faults.append(f"{name}: missing")
        elif hash_file(root / name) != expected:
            faults.append(f"{name}: not as it was prepared (sha256 differs)")
    return faults


def census(data_dir: str, **_: Any) -> dict[str, dict[str, int]]:
    """Return the number of words of each language in each split of a prepared directory."""
    splits = manifest_of(data_dir).content["splits"]
    return {
        split: {f"words of {side}": count for side, count in part["words"].items()} for split, part in splits.items()
    }


make = Corpus
