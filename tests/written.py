"""Generated data in the formats of real files: images, documents and shots."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from suite.tasks._data.shapes import NAMES, paint_images
from suite.tasks.bert.hmm import draw_uniform, make_language
from suite.tasks.bert.text import OPEN, Document
from suite.tasks.frnn.shots import Channels, Shots
from suite.tasks.frnn.signals import find_machine
from suite.tasks.frnn.text import LISTS, SIGNALS


def write_jpeg(directory: Path, *, train: int, valid: int, size: int = 48) -> None:
    """Write the first images of each split in ImageNet's layout: `train/<class>/<row>.JPEG`, `val/<class>/<row>.JPEG`.

    Values are clipped to 0…1 and rounded to bytes; quality 95 and full colour resolution keep the textures.
    """
    for split, folder, samples in (("train", "train", train), ("valid", "val", valid)):
        for name in NAMES:
            (directory / folder / name).mkdir(parents=True, exist_ok=True)
        for row in range(samples):
            images, labels = paint_images(split, np.array([row]), size=size)
            pixels = np.rint(255 * images[0].clip(0, 1)).astype(np.uint8).transpose(1, 2, 0)
            path = directory / folder / NAMES[labels[0]] / f"{row:06d}.JPEG"
            Image.fromarray(pixels).save(path, quality=95, subsampling=0)


def generate_documents(count: int, *, sentences: int = 12) -> list[list[str]]:
    """Training chains as documents of sentences, for a file of text: each 4 to 15 words and a full stop."""
    longest, names, found = 15, np.array(make_language().words), []
    words = sentences * longest
    for row in range(count):
        draws = draw_uniform("train", row, 2 * words + sentences)
        restart = np.arange(words)[None] == 0
        chain = make_language().chains(draws[: 2 * words].reshape(2, 1, -1), restart).reshape(sentences, longest)
        lengths = 4 + (draws[2 * words :] * (longest - 3)).astype(np.int64)
        found.append([" ".join(names[w[:n]]) + " ." for w, n in zip(chain, lengths, strict=True)])
    return found


def write_documents(path: Path, documents: Iterable[Document]) -> None:
    """Write documents in WikiExtractor's format, one sentence per line; compressed if the name ends in .gz or .bz2."""
    with OPEN.get(path.suffix, open)(path, "wt", encoding="utf-8") as opened:
        for number, document in enumerate(documents):
            title = f"Article {number}"
            body = "\n".join([title, "", *document])
            opened.write(f'<doc id="{number}" url="?curid={number}" title="{title}">\n{body}\n\n</doc>\n')


def write_shots(root: Path, name: str, shots: Shots, channels: Channels, *, dt: float) -> None:
    """Write shots in this layout, as the list `name`; reading them gives the same numbers.

    Each signal has a further sample at the end of the last step, which is the time of a disruption.
    """
    place = name.partition("_")[0]
    lines: Mapping[bool, list[str]] = {True: [], False: []}
    radii = np.linspace(0, 1, channels.radii)
    for row, number in enumerate(shots.numbers):
        values = shots.shot(row)
        time = dt * np.arange(len(values) + 1)
        values = np.concatenate([values, values[-1:]])
        for signal, part in channels.parts().items():
            path = root / SIGNALS / place / find_machine(place).paths.get(signal, signal) / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w") as file:
                if signal in channels.profiles:
                    np.savetxt(file, np.column_stack([time, np.tile(radii, (len(time), 1))]), fmt="%.17g")
                np.savetxt(file, np.column_stack([time, values[:, part]]), fmt="%.9g")
        disrupted = bool(shots.disrupted[row])
        lines[disrupted].append(f"{number} {time[-1] if disrupted else -1:.6f}\n")
    (root / LISTS).mkdir(exist_ok=True)
    for disrupted, kind in ((False, "clear"), (True, "disrupt")):
        (root / LISTS / f"{name}_{kind}.txt").write_text("".join(lines[disrupted]))
