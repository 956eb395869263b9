"""From text to pre-training records on disk: shards of one NumPy array each, a vocabulary, and a manifest.

Text is read as a stream and dealt with group by group: a group's documents are cut, hidden and shuffled together, and
become one shard. So memory does not grow with the text, and random second segments come from the same group.
Hiding is done here, once for each duplicate, as in BERT's and MLPerf's preparation: the records are then the same
for every framework and run, a batch is a slice of a memory map, and the number of hidden words is known beforehand.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from suite import stream
from suite.contract import UserError
from suite.tasks.bert import text
from suite.tasks.bert.packing import Packing
from suite.tasks.bert.sample import Hiding, Pieces, fill, record
from suite.tasks.bert.wordpiece import WordPiece, read, train

MANIFEST, VOCABULARY = "manifest.json", "vocab.txt"
FORMAT = 1  # the version of what is written
GROUP = 4_000_000  # tokens of one group; with ten duplicates a shard of 128 tokens is about 110 MB
SPLITS = ("train", "valid")

Group = list[list[np.ndarray]]


def prepare(
    source: Path,
    target: Path,
    *,
    sequence: int = 128,
    predictions: int = 20,
    probability: float = 0.15,
    whole_word: bool = False,
    next_sentence: bool = True,
    vocabulary: int = 30_522,
    duplicates: int = 10,
    short: float = 0.1,
    valid: float = 0.01,
    seed: int = 12_345,
    on_error: str = "stop",
    group: int = GROUP,
) -> dict[str, Any]:
    """Make records from text.

    Args:
        source: a directory or file of text, see `text`; its `vocab.txt`, where there is one, is the vocabulary.
        target: an empty or new directory.
        sequence: tokens of a record.
        predictions: hidden words of a record, at most.
        probability: share of tokens that are hidden.
        whole_word: hide words with all their pieces.
        next_sentence: two segments a record.
        vocabulary: word pieces to be trained where none are given.
        duplicates: how often the training text is cut and hidden; the held-out text once.
        short: probability of a shorter record.
        valid: probability of a document to be held out; one that is held out is held out whole.
        seed: of every draw.
        on_error: at an unreadable file `stop`, or `skip` it; its name stands in the manifest.
        group: tokens dealt with together.

    Returns:
        The manifest.

    Raises:
        UserError: no text, an unreadable file, a target in use, or a split without a record.
    """
    if (target / MANIFEST).exists():
        raise UserError(f"{target}: holds prepared records; name another directory with --to DIR, or remove it")
    whole, faults = text.survey(source)
    if faults and on_error != "skip":
        raise UserError(f"{faults[0]}. To leave such files out, each one named in the result: type task.on_error=skip")
    held_out = _held_out(sum(file.documents for file in whole), valid, seed)
    if len(set(held_out.tolist())) < 2:
        raise UserError(
            f"{source}: {held_out.sum():,} of {len(held_out):,} documents would be held out, which leaves one split "
            "empty; type task.sources.records.prepare.valid=0.1"
        )
    root = source if source.is_dir() else source.parent
    paths = [root / file.path for file in whole]
    given = root / VOCABULARY

    def texts() -> Iterator[str]:
        return ("\n".join(document) for path in paths for document in text.documents(path))

    pieces = read(given) if given.exists() else train(texts, vocabulary)
    target.mkdir(parents=True, exist_ok=True)
    (target / VOCABULARY).write_text("".join(f"{piece}\n" for piece in pieces.vocabulary), encoding="utf-8")

    packing, hiding = Packing(sequence, next_sentence, short), Hiding(probability, predictions, whole_word)
    shards: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for split, documents in _groups(paths, pieces, held_out, size=group):
        number, before = len(shards[split]), sum(shard["records"] for shard in shards[split])
        key, times = [seed, SPLITS.index(split), number], duplicates if split == "train" else 1
        rows = _records(documents, packing, hiding, pieces.pieces, key=key, times=times, before=before)
        if len(rows):
            shards[split].append(_write(target / f"{split}-{number:05d}.npy", rows))
    if empty := [split for split in SPLITS if not shards[split]]:
        raise UserError(f"{source}: too little text for {empty[0]}; type task.sources.records.prepare.valid=0.1")
    manifest = {
        "format": FORMAT,
        "made": {"packing": asdict(packing), "hiding": asdict(hiding), "seed": seed, "duplicates": duplicates},
        "vocabulary": {"pieces": pieces.pieces.size, "sha256": _sha256(target / VOCABULARY)},
        "text": [asdict(file) for file in whole],
        "skipped": faults,
        "splits": shards,
    }
    (target / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")  # last: without it nothing counts as made
    return manifest


def _held_out(documents: int, share: float, seed: int) -> np.ndarray:
    """Whether each document is held out, (documents,) bool."""
    return stream.uniform(np, (seed, 0), "held out", np.arange(documents)) < share


def _groups(paths: list[Path], pieces: WordPiece, held_out: np.ndarray, *, size: int) -> Iterator[tuple[str, Group]]:
    """Tokenised documents of one split, about `size` tokens at a time."""
    groups: dict[str, Group] = {split: [] for split in SPLITS}
    tokens = dict.fromkeys(SPLITS, 0)
    number = 0
    for path in paths:
        for document in text.documents(path):
            split = "valid" if held_out[number] else "train"
            number += 1
            sentences = [sentence for sentence in pieces.encode(document) if len(sentence)]
            if not sentences:
                continue
            groups[split].append(sentences)
            tokens[split] += sum(map(len, sentences))
            if tokens[split] >= size:
                yield split, groups[split]
                groups[split], tokens[split] = [], 0
    yield from ((split, documents) for split, documents in groups.items() if documents)


def _records(
    documents: Group, packing: Packing, hiding: Hiding, pieces: Pieces, *, key: list[int], times: int, before: int
) -> np.ndarray:
    """One group's records, cut and hidden `times` over and shuffled; `before` records of the split came earlier."""
    draws = (np.random.default_rng([*key, again]) for again in range(times))
    pairs = [pair for one in draws for pair in packing.cut(documents, one)]
    rows = np.zeros(len(pairs), record(packing.sequence, hiding.predictions))
    places = np.random.default_rng([*key, times]).permutation(len(pairs))
    seed = key[0] * len(SPLITS) + key[1]
    for count, (place, pair) in enumerate(zip(places, pairs, strict=True)):
        row: Any = rows[place]
        fill(row, pair.first, pair.second, pieces, hiding, seed=seed, number=before + count)
        row["random_next"] = pair.random_next
    return rows


def _write(path: Path, rows: np.ndarray) -> dict[str, Any]:
    """Write one shard; what the manifest says of it."""
    np.save(path, rows)
    hidden = int(rows["count"].sum())
    size = path.stat().st_size
    return {"file": path.name, "records": len(rows), "hidden": hidden, "bytes": size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
