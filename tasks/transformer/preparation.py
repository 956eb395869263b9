"""Converts line-aligned parallel text to arrays of words on disk; `corpus` memory-maps them.

The source directory contains, with any two language suffixes (`en` and `fr` here):

    train.en  train.fr            one sentence a line; .gz as well; several parts as train.<part>.en, in sorted order
    valid.en  valid.fr
    test.en   test.fr             or WMT's SGM files, <name>-src.en.sgm and <name>-ref.fr.sgm, see `sgm`

The text is not lower-cased, and no Moses tokeniser is used. The words are joint byte-pair subwords (Sennrich et al.
2016) of text with marked spaces, as in SentencePiece: joining them restores the sentence, without a detokeniser.
"""

import gzip
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from suite.contract import UserError
from suite.tasks._data import reject_copies
from suite.tasks._data.prepared import hash_file, write_manifest
from suite.tasks.transformer import sgm
from suite.tasks.transformer.architecture import SPECIAL, UNKNOWN

MANIFEST, VOCABULARY = "manifest.json", "vocabulary.json"
SPLITS = ("train", "valid", "test")
CHUNK = 10_000  # pairs in memory at a time
LAYOUT = (
    "Expected train, valid and perhaps test, each as <split>.<language> twice, line-aligned; also .gz, test as .sgm"
)


class Line(NamedTuple):
    """One line, and the reason why it cannot be read."""

    text: str
    fault: str = ""


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of one file, which may be compressed (.gz).

    Raises:
        UserError: if the file is truncated, or not in the format of its name.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    yield Line(raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n"))
                except UnicodeDecodeError as error:
                    fault = f"{path}, line {number}: not UTF-8 at byte {error.start + 1}"
                    yield Line(raw.decode("utf-8", "replace").rstrip("\r\n"), fault)
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        raise UserError(f"{path}, after line {number}: {error}; check whether the file is complete") from error


def read_pairs(files: dict[str, list[Path]], skipped: list[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs of one split.

    Args:
        files: the files of each of the two languages.
        skipped: receives a note for each line that cannot be read; None raises an error at the first one.

    Raises:
        UserError: for such a line, or for two files with different numbers of lines.
    """
    for one, other in zip(*files.values(), strict=True):
        if ".sgm" in one.suffixes:
            yield from sgm.read_pairs((one, read_lines(one)), (other, read_lines(other)), skipped)
            continue
        for number, (first, second) in enumerate(zip_longest(read_lines(one), read_lines(other)), start=1):
            if first is None or second is None:
                short, long = (one, other) if first is None else (other, one)
                raise UserError(
                    f"{short} ends after line {number - 1}, but {long} has more lines; their lines must correspond"
                )
            if fault := first.fault or second.fault:
                if skipped is None:
                    raise UserError(f"{fault}; repair it, or skip such pairs with task.on_error=skip")
                skipped.append(fault)
                continue
            yield first.text, second.text


def find_files(source: Path) -> dict[str, dict[str, list[Path]]]:
    """Find the files of each split and language.

    Raises:
        UserError: if the directory is not laid out as described above, or holds a file also as .gz.
    """
    if not source.is_dir():
        raise UserError(f"no directory {source}. {LAYOUT}")
    names = {path: path.name.removesuffix(".gz").removesuffix(".sgm").split(".") for path in sorted(source.iterdir())}
    languages = sorted({parts[-1] for parts in names.values() if parts[0] == "train" and len(parts) > 1})
    if len(languages) != 2:
        raise UserError(
            f"{source}: contains train files of {', '.join(languages) or 'no language'}, not of two languages. {LAYOUT}"
        )
    files_by_split: dict[str, dict[str, list[Path]]] = {}
    for split in SPLITS:
        files = {
            lang: [p for p, parts in names.items() if parts[0] == split and parts[-1] == lang] for lang in languages
        }
        if split == "test" and not any(files.values()):
            files = {lang: [p for p in names if f".{lang}.sgm" in p.name] for lang in languages}
        if len(counts := {len(paths) for paths in files.values()}) > 1 or (split != "test" and counts == {0}):
            raise UserError(
                f"{source}: the files of {split} are {[p.name for paths in files.values() for p in paths]}. {LAYOUT}"
            )
        if counts != {0}:
            files_by_split[split] = files
            reject_copies(path for paths in files.values() for path in paths)
    return files_by_split


def prepare(
    source: str | Path,
    target: str | Path,
    *,
    vocabulary: int,
    longest: int,
    ratio: float,
    on_error: str = "stop",
) -> None:
    """Prepare a corpus; memory grows with the number of different words, and by about 40 bytes per pair.

    Args:
        source: directory of text files.
        target: directory to write to; it is created if necessary.
        vocabulary: number of words to learn, at most 65,536.
        longest: largest number of words on either side of a training pair; each side has at least one.
        ratio: largest ratio of the numbers of words on the two sides of a training pair.
        on_error: `stop` at a line that is not UTF-8, or `skip` its pair and note it.

    Raises:
        UserError: if a file cannot be read, or the lines do not correspond.
    """
    source, target = Path(source), Path(target)
    if vocabulary > 2**16:
        raise UserError(f"vocabulary={vocabulary}: must be at most 65,536, because words are stored in 16 bits")
    files, skip = find_files(source), on_error == "skip"
    skipped: list[str] | None = [] if skip else None
    target.mkdir(parents=True, exist_ok=True)
    (target / MANIFEST).unlink(missing_ok=True)  # written last: a directory without it is incomplete
    tokenizer = learn_vocabulary(
        (text for pair in read_pairs(files["train"], [] if skip else None) for text in pair), vocabulary
    )
    tokenizer.save(str(target / VOCABULARY))
    languages = list(files["train"])
    manifest: dict[str, Any] = {"languages": languages, "vocabulary": tokenizer.get_vocab_size(), "splits": {}}
    for split in files:
        limits = {"longest": longest, "ratio": ratio} if split == "train" else None
        paths = [target / f"{split}.{language}" for language in languages]
        part = _write(read_pairs(files[split], skipped), tokenizer, paths, limits)
        by_language = {
            name: dict(zip(languages, part.pop(name).tolist(), strict=True)) for name in ("words", "longest")
        }
        manifest["splits"][split] = part | by_language
    written = sorted(path for path in target.iterdir() if path.is_file())
    manifest |= {"skipped": skipped or [], "files": {path.name: hash_file(path) for path in written}}
    write_manifest(target / MANIFEST, manifest, manifest["files"])


def learn_vocabulary(texts: Iterable[str], vocabulary: int) -> Any:
    """Learn a byte-pair vocabulary (a `tokenizers.Tokenizer`) from texts; the same texts give the same vocabulary."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), limit_alphabet=2000, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.encode_special_tokens = True  # </s> in a sentence is text, not its end; a saved vocabulary loses this
    return tokenizer


def _write(
    sentences: Iterator[tuple[str, str]], tokenizer: Any, paths: list[Path], limits: dict[str, float] | None
) -> dict[str, Any]:
    """Write the arrays of one split; return its entry in the manifest.

    With `limits`, for training, pairs are filtered, and sorted by the number of words on their longer side: a run with
    at most 64 words uses the first rows, in random order. Without `limits`, the text is written as well.
    """
    dropped, lengths = {"empty": 0, "long": 0, "ratio": 0}, []
    sentences = sentences if limits else _copied(sentences, paths)
    with _raw(paths[0]).open("wb") as first, _raw(paths[1]).open("wb") as second:
        while chunk := list(islice(sentences, CHUNK)):
            encoded = [[sentence.ids for sentence in tokenizer.encode_batch(side)] for side in zip(*chunk, strict=True)]
            words = np.array([[len(ids) for ids in side] for side in encoded], np.int32).T  # (pairs, 2)
            keep = _filtered(words, dropped, **limits) if limits else np.ones(len(words), bool)
            for file, side in zip((first, second), encoded, strict=True):
                np.array([word for row in np.flatnonzero(keep) for word in side[row]], "<u2").tofile(file)
            lengths.append(words[keep])
    words = np.concatenate(lengths) if lengths else np.zeros((0, 2), np.int32)
    if not len(words):
        raise UserError(f"{paths[0].name} and {paths[1].name}: no sentence pair is left; the filters dropped {dropped}")
    order = np.argsort(words.max(1), kind="stable") if limits else np.arange(len(words))
    for path, count in zip(paths, words.T, strict=True):
        _store(path, count, order)
    up_to = np.cumsum(np.bincount(words.max(1)))  # number of pairs with at most 0, 1, 2, … words on either side
    summary = {"pairs": len(words), "dropped": dropped, "up_to": up_to.tolist()}
    return summary | {"words": words.sum(0, dtype=np.int64), "longest": words.max(0)}


def _raw(path: Path) -> Path:
    return path.with_name(f"{path.name}.unsorted")


def _copied(sentences: Iterable[tuple[str, str]], paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield the sentences, and write them to text files."""
    first, second = (path.with_name(f"{path.name}.txt") for path in paths)
    with first.open("w", encoding="utf-8") as first_file, second.open("w", encoding="utf-8") as second_file:
        for pair in sentences:
            first_file.write(f"{pair[0]}\n")
            second_file.write(f"{pair[1]}\n")
            yield pair


def _filtered(words: np.ndarray, dropped: dict[str, int], *, longest: float, ratio: float) -> np.ndarray:
    """Which pairs pass the filters, (pairs,) bool; `dropped` counts the others by the first filter that they fail."""
    short, long, keep = words.min(1), words.max(1), np.ones(len(words), bool)
    for name, fault in {"empty": short < 1, "long": long > longest, "ratio": long > ratio * short}.items():
        dropped[name] += int((fault & keep).sum())
        keep &= ~fault
    return keep


def _store(path: Path, count: np.ndarray, order: np.ndarray) -> None:
    """Write one side's words in `order`, and the start of each sentence; `count` words per sentence of the raw file."""
    starts = np.concatenate([[0], np.cumsum(count, dtype=np.int64)])
    values = np.memmap(_raw(path), "<u2", "r") if starts[-1] else np.zeros(0, "<u2")
    with path.with_name(f"{path.name}.words").open("wb") as file:
        for rows in np.array_split(order, -(-len(order) // CHUNK)):
            np.concatenate([values[starts[row] : starts[row + 1]] for row in rows]).tofile(file)
    starts = np.concatenate([[0], np.cumsum(count[order], dtype=np.int64)])
    starts.astype("<i8").tofile(path.with_name(f"{path.name}.starts"))
    _raw(path).unlink()
