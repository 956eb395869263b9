"""Real parallel text, prepared once by `preparation` and mapped into memory: a run reads only its batches' rows."""

import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import Data, UserError
from suite.tasks.transformer.architecture import EOS, PAD
from suite.tasks.transformer.metric import signature
from suite.tasks.transformer.preparation import MANIFEST, VOCABULARY, sha256


def manifest_of(data_dir: str | Path | None) -> tuple[Path, dict[str, Any]]:
    """A prepared directory and what its manifest says.

    Raises:
        UserError: nothing prepared lies there.
    """
    if data_dir is None:
        raise UserError("parallel text is read from a prepared directory, and none is given. Type data_dir=DIRECTORY")
    root = Path(data_dir).expanduser()
    if not (root / MANIFEST).is_file():
        raise UserError(
            f"no prepared corpus at {root}: {MANIFEST} is missing. Type suite data transformer --from TEXT --to DIR"
        )
    return root, json.loads((root / MANIFEST).read_text())


class Corpus:
    """Prepared sentence pairs; see `suite.tasks.transformer.Pairs`.

    Args:
        data_dir: directory that `prepare` wrote.
        languages: source and target, for example en and fr.
        length: training pairs with more words on either side, the end included, are left out; every batch is padded to
            this length.
        held_out: what the metric is taken from, `valid` or `test`; nothing is left out of it.

    Raises:
        UserError: nothing prepared lies there, or not in these languages.
    """

    def __init__(self, data_dir: str | None, *, languages: tuple[str, str], length: int, held_out: str):
        self.root, manifest = manifest_of(data_dir)
        self.languages, self.length, self.held_out = tuple(languages), length, held_out
        if sorted(self.languages) != sorted(manifest["languages"]):
            raise UserError(f"{self.root} holds {' and '.join(manifest['languages'])}, not {' and '.join(languages)}")
        if held_out not in ("valid", "test") or held_out not in manifest["splits"]:
            raise UserError(f"held_out={held_out}: {self.root} holds {', '.join(manifest['splits'])}")
        self.vocabulary, splits = manifest["vocabulary"], manifest["splits"]
        train, self._valid = splits["train"], splits[held_out]
        rows = train["up_to"][min(max(length - 1, 0), len(train["up_to"]) - 1)]
        if not rows:
            raise UserError(f"length={length}: no training pair of {self.root} is so short")
        self._arrays = {
            (split, language): (_mapped(f"{path}.starts", "<i8"), _mapped(f"{path}.words", "<u2"))
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
            f"by sacreBLEU {signature()}",
            skipped=tuple(manifest["skipped"]),
        )

    def lengths(self, split: str) -> tuple[int, int]:
        """`length` on both sides in training; the longest sentence held out, on each side."""
        if split == "train":
            return self.length, self.length
        source, target = (self._valid["longest"][language] + 1 for language in self.languages)
        return source, target

    def read(self, split: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sources and targets (n, `lengths`) of some rows, closed by EOS and filled up with PAD, int32."""
        source, target = (
            self._side(split, language, rows, length)
            for language, length in zip(self.languages, self.lengths(split), strict=True)
        )
        return source, target

    def _side(self, split: str, language: str, rows: np.ndarray, length: int) -> np.ndarray:
        starts, words = self._arrays[split, language]
        found = np.full((len(rows), length), PAD, np.int32)
        for place, row in enumerate(rows):
            first, last = starts[row], starts[row + 1]
            found[place, : last - first] = words[first:last]
            found[place, last - first] = EOS
        return found

    def references(self, split: str, rows: np.ndarray) -> list[str]:
        """The translations as they stand in the file."""
        return [self._lines[row] for row in rows]

    @functools.cached_property
    def _lines(self) -> list[str]:
        return (self.root / f"{self.held_out}.{self.languages[1]}.txt").read_bytes().decode().split("\n")

    @functools.cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.root / VOCABULARY))

    def text(self, tokens: Iterable[np.ndarray]) -> list[str]:
        """Sentences of rows of words, each up to its end; joining subwords needs no detokeniser."""
        kept = []
        for row in tokens:
            ends = np.flatnonzero(row == EOS)
            kept.append((row[: ends[0]] if len(ends) else row).tolist())
        return self._tokenizer.decode_batch(kept)


def _mapped(path: str, kind: str) -> np.ndarray:
    """A file of numbers, read where it is looked at."""
    return np.memmap(path, kind, "r") if Path(path).stat().st_size else np.zeros(0, kind)


class Absent:
    """WMT'14 English-French without its sentences (Vaswani et al. 2017, §5.1): enough to say what a run would be."""

    vocabulary = 32_000
    data = Data(
        "real", "WMT'14 English-French", "not here", {"train": 36_000_000, "valid": 3_003}, unit="sentence pairs"
    )

    def lengths(self, split: str) -> tuple[int, int]:
        """Of no consequence."""
        return 1, 1

    def read(self, split: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Nothing can be read."""
        raise UserError("WMT's sentences are not here; type data_dir=DIRECTORY")

    def references(self, split: str, rows: np.ndarray) -> list[str]:
        """Nothing can be read."""
        raise UserError("WMT's sentences are not here; type data_dir=DIRECTORY")

    def text(self, tokens: Iterable[np.ndarray]) -> list[str]:
        """Nothing can be said."""
        raise UserError("WMT's vocabulary is not here; type data_dir=DIRECTORY")


def verify(data_dir: str) -> list[str]:
    """One line for each file of a prepared directory whose checksum is not the manifest's; reads them all."""
    root, manifest = manifest_of(data_dir)
    faults = []
    for name, expected in manifest["files"].items():
        if not (root / name).is_file():
            faults.append(f"{name}: missing")
        elif sha256(root / name) != expected:
            faults.append(f"{name}: not as it was prepared (sha256 differs)")
    return faults


make = Corpus
