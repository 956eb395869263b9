"""Converts text to pre-training records on disk: shards of one NumPy array each, a vocabulary, and a manifest.

Text is read as a stream and processed in groups: the documents of a group are cut, masked and shuffled together, and
become one shard. Memory therefore does not grow with the text; random second segments come from the same group.
Words are masked here, once for each duplicate, as in BERT's and MLPerf's preparation. The records are then the same for
every framework and run, a batch is a slice of a memory map, and the number of masked words is known in advance.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from suite import stream
from suite.contract import UserError
from suite.tasks._data.prepared import hash_file, write_manifest
from suite.tasks.bert import text
from suite.tasks.bert.packing import Losses, Packing
from suite.tasks.bert.sample import Hiding, Pieces, fill_record, make_record_type
from suite.tasks.bert.wordpiece import WordPiece, learn_vocabulary, read_vocabulary

MANIFEST, VOCABULARY = "manifest.json", "vocab.txt"
FORMAT = 1  # version of the format
GROUP = 4_000_000  # tokens of one group; with ten duplicates a shard of 128 tokens is about 110 MB
SPLITS = ("train", "valid")
UNKNOWN = "words that the vocabulary cannot spell, [UNK]"  # a reason for which pieces are lost

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
        source: a directory or file of text, see `text`; if it contains `vocab.txt`, this is the vocabulary.
        target: an empty or new directory.
        sequence: tokens of a record.
        predictions: largest number of masked words in a record.
        probability: share of tokens that are masked.
        whole_word: mask all pieces of a word together.
        next_sentence: use two segments per record.
        vocabulary: number of word pieces to learn if there is no `vocab.txt`.
        duplicates: how often the training text is cut and masked; the held-out text is processed once.
        short: probability of a shorter record.
        valid: probability that a document is held out, as a whole.
        seed: of every draw.
        on_error: `stop` at an unreadable file, or `skip` it; the manifest lists it.
        group: number of tokens that are processed together.

    Returns:
        The manifest.

    Raises:
        UserError: if there is no text, a file cannot be read, the target is in use, or a split has no record.
    """
    if (target / MANIFEST).exists():
        raise UserError(f"{target}: contains prepared records already; name another directory, --to DIR, or delete it")
    whole, faults = text.survey_files(source)
    if faults and on_error != "skip":
        raise UserError(f"{faults[0]}. To skip such files, set task.on_error=skip; the result will list them")
    draws = _draws(sum(file.documents for file in whole), seed)
    held_out = _held_out(source, draws, valid)
    root = source if source.is_dir() else source.parent
    paths = [root / file.path for file in whole]
    vocabulary_path = root / VOCABULARY

    def texts() -> Iterator[str]:
        return ("\n".join(document) for path in paths for document in text.read_documents(path))

    pieces = read_vocabulary(vocabulary_path) if vocabulary_path.exists() else learn_vocabulary(texts, vocabulary)
    target.mkdir(parents=True, exist_ok=True)
    (target / VOCABULARY).write_text("".join(f"{piece}\n" for piece in pieces.vocabulary), encoding="utf-8")

    packing, hiding = Packing(sequence, next_sentence, short), Hiding(probability, predictions, whole_word)
    shards: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    losses, tokens = Losses(pieces.unknown), 0
    for split, documents in _groups(paths, pieces, held_out, packing, size=group):
        number, before = len(shards[split]), sum(shard["records"] for shard in shards[split])
        key, times = [seed, SPLITS.index(split), number], duplicates if split == "train" else 1
        rows = _records(documents, packing, hiding, pieces.pieces, losses, key=key, times=times, before=before)
        sentences = [sentence for document in documents for sentence in document]
        losses.counts[UNKNOWN] += times * sum(int((sentence == pieces.unknown).sum()) for sentence in sentences)
        tokens += times * sum(map(len, sentences))
        if len(rows):
            shards[split].append(_write(target / f"{split}-{number:05d}.npy", rows))
    if empty := [split for split in SPLITS if not shards[split]]:
        more = 1 if empty[0] == "valid" else -1
        raise UserError(f"{source}: too little text for {empty[0]}; {_hold_out(draws, int(held_out.sum()) + more)}")
    manifest = {
        "format": FORMAT,
        "made": {"packing": asdict(packing), "hiding": asdict(hiding), "seed": seed, "duplicates": duplicates},
        "vocabulary": {"pieces": pieces.pieces.size, "sha256": hash_file(target / VOCABULARY)},
        "text": [asdict(file) for file in whole],
        "skipped": faults,
        "dropped": {reason: count for reason, count in sorted(losses.counts.items()) if count},
        "tokens": tokens,  # pieces of the text times duplicates; `dropped` is a part of them
        "splits": shards,
    }
    names = [VOCABULARY, *(shard["file"] for split in SPLITS for shard in shards[split])]
    write_manifest(target / MANIFEST, manifest, names)  # last: a directory without it is incomplete
    return manifest


def _draws(documents: int, seed: int) -> np.ndarray:
    """A number in [0, 1) for each document; those below the share `valid` are held out."""
    return stream.uniform(np, (seed, 0), "held out", np.arange(documents))


def _held_out(source: Path, draws: np.ndarray, share: float) -> np.ndarray:
    """Return whether each document is held out, (documents,) bool.

    Raises:
        UserError: for a single document, which cannot be divided, or a share that leaves one split empty.
    """
    if len(draws) < 2:
        raise UserError(
            f"{source}: {len(draws)} document, but {' and '.join(SPLITS)} need one each; separate documents by a blank "
            "line, or add files"
        )
    held_out = draws < share
    if len(set(held_out.tolist())) < 2:
        raise UserError(
            f"{source}: {held_out.sum():,} of {len(draws):,} documents would be held out, which leaves one split "
            f"empty; {_hold_out(draws, 1 if not held_out.any() else len(draws) - 1)}"
        )
    return held_out


def _hold_out(draws: np.ndarray, count: int) -> str:
    """Advise how to hold out `count` documents; if that leaves a split without documents, more text is needed."""
    if not 0 < count < len(draws):
        return "add documents"
    low, high = np.sort(draws)[count - 1 : count + 1].tolist()
    share = next(value for digits in range(1, 18) if low < (value := round((low + high) / 2, digits)) <= high)
    return f"set task.sources.records.prepare.valid={share}"


def _groups(
    paths: list[Path], pieces: WordPiece, held_out: np.ndarray, packing: Packing, *, size: int
) -> Iterator[tuple[str, Group]]:
    """Tokenised documents of one split, about `size` tokens at a time."""
    groups: dict[str, Group] = {split: [] for split in SPLITS}
    tokens = dict.fromkeys(SPLITS, 0)
    number = 0
    for path in paths:
        for document in text.read_documents(path):
            split = "valid" if held_out[number] else "train"
            number += 1
            encoded = [sentence for sentence in pieces.encode(document) if len(sentence)]
            sentences = [part for sentence in encoded for part in packing.fitted(sentence)]
            if not sentences:
                continue
            groups[split].append(sentences)
            tokens[split] += sum(map(len, sentences))
            if tokens[split] >= size:
                yield split, groups[split]
                groups[split], tokens[split] = [], 0
    yield from ((split, documents) for split, documents in groups.items() if documents)


def _records(
    documents: Group,
    packing: Packing,
    hiding: Hiding,
    pieces: Pieces,
    losses: Losses,
    *,
    key: list[int],
    times: int,
    before: int,
) -> np.ndarray:
    """Make one group's records, cut and masked `times` times, and shuffled; `before` records of the split precede."""
    draws = (np.random.default_rng([*key, again]) for again in range(times))
    pairs = [pair for generator in draws for pair in packing.cut(documents, generator, losses)]
    rows = np.zeros(len(pairs), make_record_type(packing.sequence, hiding.predictions))
    places = np.random.default_rng([*key, times]).permutation(len(pairs))
    seed = key[0] * len(SPLITS) + key[1]
    for count, (place, pair) in enumerate(zip(places, pairs, strict=True)):
        row: Any = rows[place]
        fill_record(row, pair.first, pair.second, pieces, hiding, seed=seed, number=before + count)
        row["random_next"] = pair.random_next
    return rows


def _write(path: Path, rows: np.ndarray) -> dict[str, Any]:
    """Write one shard; return its entry in the manifest."""
    np.save(path, rows)
    hidden = int(rows["count"].sum())
    size = path.stat().st_size
    return {"file": path.name, "records": len(rows), "hidden": hidden, "bytes": size, "sha256": hash_file(path)}
