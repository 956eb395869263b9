"""Line-aligned parallel text to arrays of words on disk, once; `corpus` maps them into memory.

What lies in the source directory, with any two language suffixes (`en` and `fr` here):

    train.en  train.fr            one sentence a line; .gz as well; several parts as train.<part>.en, in sorted order
    valid.en  valid.fr
    test.en   test.fr             or WMT's SGM files, <name>-src.en.sgm and <name>-ref.fr.sgm

Text is taken as it is: no lower-casing, no Moses tokeniser. The words are joint byte-pair subwords (Sennrich et al.
2016) of text with marked spaces as in SentencePiece: joining them gives the sentence back, without a detokeniser.
"""

import gzip
import hashlib
import html
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from suite.contract import UserError
from suite.tasks.transformer.architecture import SPECIAL, UNKNOWN

MANIFEST, VOCABULARY = "manifest.json", "vocabulary.json"
SPLITS = ("train", "valid", "test")
CHUNK = 10_000  # pairs in memory at a time
SEGMENT = re.compile(r"\s*<seg id=[^>]*>\s*(.*?)\s*</seg>", re.IGNORECASE)
LAYOUT = (
    "Expected train, valid and perhaps test, each as <split>.<language> twice, line-aligned; also .gz, test as .sgm"
)


class Line(NamedTuple):
    """One sentence, or why it cannot be read."""

    text: str
    fault: str = ""


def read_lines(path: Path) -> Iterator[Line]:
    """The sentences of one file: plain text, .gz, or the segments of an .sgm file.

    As fairseq's prepare-wmt14en2fr.sh does, SGM loses its tags and ’ becomes '; entities (&quot;) become characters.

    Raises:
        UserError: the file is cut short or not what its name says.
    """
    sgm = ".sgm" in path.suffixes
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    text = raw.decode().rstrip("\r\n")
                except UnicodeDecodeError as error:
                    yield Line("", f"{path}, line {number}: not UTF-8 at byte {error.start + 1}")
                    continue
                if not sgm:
                    yield Line(text)
                elif found := SEGMENT.match(text):
                    yield Line(html.unescape(found[1]).replace("’", "'"))
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        raise UserError(f"{path}, after line {number}: {error}; is the file whole?") from error


def pairs(files: dict[str, list[Path]], skipped: list[str] | None) -> Iterator[tuple[str, str]]:
    """The sentence pairs of one split.

    Args:
        files: of each of the two languages, its parts.
        skipped: where lines that cannot be read are noted, or None to stop at the first.

    Raises:
        UserError: for such a line, or for two files of unequal length.
    """
    for one, other in zip(*files.values(), strict=True):
        for number, (first, second) in enumerate(zip_longest(read_lines(one), read_lines(other)), start=1):
            if first is None or second is None:
                short, long = (one, other) if first is None else (other, one)
                raise UserError(f"{short} ends after line {number - 1}, {long} does not: their lines must be aligned")
            if fault := first.fault or second.fault:
                if skipped is None:
                    raise UserError(f"{fault}; mend it, or leave such pairs out with task.on_error=skip")
                skipped.append(fault)
                continue
            yield first.text, second.text


def find(source: Path) -> dict[str, dict[str, list[Path]]]:
    """The files of each split and language.

    Raises:
        UserError: the directory is not laid out as this module says.
    """
    if not source.is_dir():
        raise UserError(f"no directory {source}. {LAYOUT}")
    names = {path: path.name.removesuffix(".gz").removesuffix(".sgm").split(".") for path in sorted(source.iterdir())}
    languages = sorted({parts[-1] for parts in names.values() if parts[0] == "train" and len(parts) > 1})
    if len(languages) != 2:
        raise UserError(f"{source}: train files of {', '.join(languages) or 'no language'}. {LAYOUT}")
    found: dict[str, dict[str, list[Path]]] = {}
    for split in SPLITS:
        files = {
            lang: [p for p, parts in names.items() if parts[0] == split and parts[-1] == lang] for lang in languages
        }
        if split == "test" and not any(files.values()):
            files = {lang: [p for p in names if f".{lang}.sgm" in p.name] for lang in languages}
        if len(counts := {len(paths) for paths in files.values()}) > 1 or (split != "test" and counts == {0}):
            raise UserError(f"{source}: {split} has {[p.name for paths in files.values() for p in paths]}. {LAYOUT}")
        if counts != {0}:
            found[split] = files
    return found


def prepare(
    source: str | Path,
    target: str | Path,
    *,
    vocabulary: int,
    longest: int,
    ratio: float,
    on_error: str = "stop",
) -> None:
    """Write `target` from `source`; memory grows with the different words in the text, and by some 40 bytes a pair.

    Args:
        source: directory of text files.
        target: directory to write, made if need be.
        vocabulary: words to learn, at most 65,536.
        longest: of training pairs, most words on either side; each side has at least one.
        ratio: of training pairs, most words on one side for each on the other.
        on_error: `stop` at a line that is not UTF-8, or `skip` its pair and note it.

    Raises:
        UserError: a file cannot be read, or the lines are not aligned.
    """
    source, target = Path(source), Path(target)
    if vocabulary > 2**16:
        raise UserError(f"vocabulary={vocabulary}: words are kept in 16 bits, so 65,536 at most")
    files, skip = find(source), on_error == "skip"
    skipped: list[str] | None = [] if skip else None
    target.mkdir(parents=True, exist_ok=True)
    (target / MANIFEST).unlink(missing_ok=True)  # written last: what has none is not whole
    tokenizer = learn((text for pair in pairs(files["train"], [] if skip else None) for text in pair), vocabulary)
    tokenizer.save(str(target / VOCABULARY))
    languages = list(files["train"])
    manifest: dict[str, Any] = {"languages": languages, "vocabulary": tokenizer.get_vocab_size(), "splits": {}}
    for split in files:
        limits = {"longest": longest, "ratio": ratio} if split == "train" else None
        paths = [target / f"{split}.{language}" for language in languages]
        part = _write(pairs(files[split], skipped), tokenizer, paths, limits)
        each = {name: dict(zip(languages, part.pop(name).tolist(), strict=True)) for name in ("words", "longest")}
        manifest["splits"][split] = part | each
    written = sorted(path for path in target.iterdir() if path.is_file())
    manifest |= {"skipped": skipped or [], "files": {path.name: sha256(path) for path in written}}
    (target / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def learn(texts: Iterable[str], vocabulary: int) -> Any:
    """A byte-pair vocabulary (a `tokenizers.Tokenizer`) of these texts, the same each time."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), limit_alphabet=2000, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _write(
    sentences: Iterator[tuple[str, str]], tokenizer: Any, paths: list[Path], limits: dict[str, float] | None
) -> dict[str, Any]:
    """One split's arrays beside its two `paths`, and what the manifest says of it.

    With `limits`, as in training, pairs are filtered and stored by the number of words in their longer side: a run that
    takes up to 64 words takes the first so many rows, and shuffles them anyway. Without, the text is kept as well.
    """
    dropped, lengths = {"empty": 0, "long": 0, "ratio": 0}, []
    sentences = sentences if limits else _copied(sentences, paths)
    with _raw(paths[0]).open("wb") as first, _raw(paths[1]).open("wb") as second:
        while chunk := list(islice(sentences, CHUNK)):
            encoded = [[each.ids for each in tokenizer.encode_batch(side)] for side in zip(*chunk, strict=True)]
            words = np.array([[len(ids) for ids in side] for side in encoded], np.int32).T  # (pairs, 2)
            keep = _kept(words, dropped, **limits) if limits else np.ones(len(words), bool)
            for file, side in zip((first, second), encoded, strict=True):
                np.array([word for row in np.flatnonzero(keep) for word in side[row]], "<u2").tofile(file)
            lengths.append(words[keep])
    words = np.concatenate(lengths) if lengths else np.zeros((0, 2), np.int32)
    if not len(words):
        raise UserError(f"{paths[0].name} and {paths[1].name}: no sentence pair is left; dropped {dropped}")
    order = np.argsort(words.max(1), kind="stable") if limits else np.arange(len(words))
    for path, count in zip(paths, words.T, strict=True):
        _store(path, count, order)
    up_to = np.cumsum(np.bincount(words.max(1)))  # pairs of at most 0, 1, 2, … words on either side
    summary = {"pairs": len(words), "dropped": dropped, "up_to": up_to.tolist()}
    return summary | {"words": words.sum(0, dtype=np.int64), "longest": words.max(0)}


def _raw(path: Path) -> Path:
    return path.with_name(f"{path.name}.unsorted")


def _copied(sentences: Iterable[tuple[str, str]], paths: list[Path]) -> Iterator[tuple[str, str]]:
    """The same sentences, written to text files as they pass by."""
    first, second = (path.with_name(f"{path.name}.txt") for path in paths)
    with first.open("w", encoding="utf-8") as one, second.open("w", encoding="utf-8") as other:
        for pair in sentences:
            one.write(f"{pair[0]}\n")
            other.write(f"{pair[1]}\n")
            yield pair


def _kept(words: np.ndarray, dropped: dict[str, int], *, longest: float, ratio: float) -> np.ndarray:
    """Which pairs pass the filters; the others are counted under the first filter that they fail."""
    short, long, keep = words.min(1), words.max(1), np.ones(len(words), bool)
    for name, fault in {"empty": short < 1, "long": long > longest, "ratio": long > ratio * short}.items():
        dropped[name] += int((fault & keep).sum())
        keep &= ~fault
    return keep


def _store(path: Path, count: np.ndarray, order: np.ndarray) -> None:
    """One side's words in `order`, and where each sentence starts; `count` is of words, as they lie in the raw file."""
    starts = np.concatenate([[0], np.cumsum(count, dtype=np.int64)])
    values = np.memmap(_raw(path), "<u2", "r") if starts[-1] else np.zeros(0, "<u2")
    with path.with_name(f"{path.name}.words").open("wb") as file:
        for rows in np.array_split(order, -(-len(order) // CHUNK)):
            np.concatenate([values[starts[row] : starts[row + 1]] for row in rows]).tofile(file)
    starts = np.concatenate([[0], np.cumsum(count[order], dtype=np.int64)])
    starts.astype("<i8").tofile(path.with_name(f"{path.name}.starts"))
    _raw(path).unlink()


def sha256(path: Path) -> str:
    """The checksum of one file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
