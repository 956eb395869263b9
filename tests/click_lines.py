"""Lines of Criteo's logs, and a plain reading of them, field by field."""

import random
from pathlib import Path

import numpy as np

INTEGERS = ("", "0", "7", "-1", "-0", "007", "12345678", "123456789", "-12345678", "-123456789", "98765432109876543210")
WORDS = ("", "0", "ff", "FF", "0ff", "a", "dead", "DEADbeef", "ffffffff", "00000000", "12345678")


def make_line(label: str = "1", integer: str = "3", word: str = "0a1b2c3d") -> str:
    """A line whose fields of one kind are all the same."""
    return "\t".join([label, *[integer] * 13, *[word] * 26])


def write_logs(folder: Path, train: list[str], valid: list[str] | None = None) -> Path:
    """Make a folder of logs, and return it."""
    folder.mkdir()
    (folder / "train.txt").write_text("\n".join(train) + "\n")
    if valid is not None:
        (folder / "valid.txt").write_text("\n".join(valid) + "\n")
    return folder


def draw_lines(count: int, words: int, seed: int = 0) -> list[str]:
    """Lines with every kind of field; of `words` different words in a column besides."""
    draw = random.Random(seed)

    def word() -> str:
        return draw.choice(WORDS) if draw.random() < 0.2 else f"{draw.randrange(words) * 2654435761 % 2**32:08x}"

    def integer() -> str:
        return draw.choice(INTEGERS) if draw.random() < 0.2 else str(draw.randrange(2000))

    return [
        "\t".join([draw.choice("01"), *(integer() for _ in range(13)), *(word() for _ in range(26))])
        for _ in range(count)
    ]


def read_plainly(lines: list[str], words: list[dict[str, int]], hash_rows: int) -> dict[str, np.ndarray]:
    """Return the arrays of some training lines; new words are added to the dictionaries."""
    label, *columns = zip(*(line.split("\t") for line in lines), strict=True)
    counts = np.array([[int(field or 0) for field in column] for column in columns[:13]], np.float64).T
    ids = np.empty((len(lines), 26), np.int32)
    for place, (column, known) in enumerate(zip(columns[13:], words, strict=True)):
        if hash_rows:
            ids[:, place] = [1 + int(word or "0", 16) % hash_rows for word in column]
        else:
            ids[:, place] = [known.setdefault(word, len(known) + 1) for word in column]
    return {
        "dense": np.log1p(counts.clip(0)).astype(np.float32),
        "ids": ids,
        "label": np.array(label)[:, None].astype(np.uint8),
    }
