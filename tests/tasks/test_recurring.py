"""Validation samples that are training samples, too, are counted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click_lines import make_line, write_logs
from PIL import Image
from written import generate_documents, write_documents, write_shots

from suite.tasks import autoencoder, bert, cifar10, dlrm, frnn, resnet50, transformer
from suite.tasks._data import count_recurring
from suite.tasks._data.order import draw_permutation
from suite.tasks.bert import preparation as bert_preparation
from suite.tasks.cifar10 import binary
from suite.tasks.frnn import simulated
from suite.tasks.frnn.shots import SPLIT_SEED
from suite.tasks.transformer import preparation
from suite.verbs import data

pytestmark = pytest.mark.quick


def test_each_validation_sample_counts_once() -> None:
    assert count_recurring([b"a", b"b", b"a"], [b"a", b"a", b"c", b"b"]) == 3
    assert count_recurring([b"a"], []) == count_recurring([], [b"a"]) == 0


def test_image_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 3)):
        for name in ("cats", "dogs"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{number}.png")
    assert resnet50.count_recurring(str(tmp_path)) == 0
    for number in (0, 2):  # under another name, and in another class
        content = (tmp_path / "train" / "cats" / f"{number}.png").read_bytes()
        (tmp_path / "val" / "dogs" / f"{number}.png").write_bytes(content)
    assert resnet50.count_recurring(str(tmp_path)) == 2
    assert data.main(["resnet50", "task.data=folder", "--from", str(tmp_path), "--check"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if "recur" in line] == ["recur     2 of 6 validation images are in training, too"]


def test_images_in_arrays(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 3, 32, 32), np.uint8)
    labels = np.arange(20) % 10
    binary.write_split(tmp_path, "train", images[:15], labels[:15])
    binary.write_split(tmp_path, "valid", images[12:], labels[12:] * 0)  # whatever the label
    assert cifar10.count_recurring(str(tmp_path)) == 3
    for name, part in (("train", images[:15, 0]), ("t10k", images[12:, 0])):
        head = np.array([2051, *part.shape], ">u4").tobytes()
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(head + part.tobytes())
    assert autoencoder.count_recurring(str(tmp_path)) == 3


def test_rows_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [make_line(str(number % 2), word=f"{number:x}") for number in range(25)]
    dlrm.prepare(write_logs(tmp_path / "raw", lines[:20], lines[17:]), tmp_path / "made")
    assert dlrm.count_recurring(str(tmp_path / "made")) == 3
    monkeypatch.setattr(dlrm.criteo, "MOST_COMPARED", 20)
    assert dlrm.count_recurring(str(tmp_path / "made")) is None
    assert data.main(["dlrm", "task.data=criteo", "--from", str(tmp_path / "made"), "--check"]) == 0
    assert "recur     not counted: 28 " in capsys.readouterr().out


def test_pairs_of_sentences(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for language in ("en", "fr"):
        for split, numbers in (("train", range(40)), ("valid", range(37, 45))):
            lines = [f"{language} {number} and {number % 5}.\n" for number in numbers]
            (tmp_path / "text" / f"{split}.{language}").write_text("".join(lines))
    (tmp_path / "text" / "valid.fr").write_text("another.\n" + "".join(lines[1:]))  # one side only
    preparation.prepare(tmp_path / "text", tmp_path / "made", vocabulary=120, longest=50, ratio=3.0)
    options = {"languages": ["en", "fr"], "length": 40, "held_out": "valid"}
    assert transformer.count_recurring(str(tmp_path / "made"), **options) == 2


def test_sequences_of_words(tmp_path: Path) -> None:
    """A record equals another one whatever words are masked."""
    (tmp_path / "text").mkdir()
    write_documents(tmp_path / "text" / "wiki_00", generate_documents(40))
    options = {"sequence": 32, "predictions": 6, "vocabulary": 300, "duplicates": 2, "valid": 0.2}
    manifest = bert_preparation.prepare(tmp_path / "text", tmp_path / "made", **options)
    assert bert.count_recurring(str(tmp_path / "made")) == 0
    paths = [tmp_path / "made" / manifest["splits"][split][0]["file"] for split in ("train", "valid")]
    train, valid = map(np.load, paths)
    for number in range(3):
        record = train[number + 5].copy()
        assert record["count"] > 1 and (record["tokens"][record["position"]] != record["label"]).any()
        record["tokens"][record["position"][0]] = record["label"][0]  # masked elsewhere
        for name in ("position", "label"):
            record[name] = np.append(record[name][1:], 0)
        record["count"] -= 1
        valid[number] = record
    np.save(paths[1], valid)
    assert bert.count_recurring(str(tmp_path / "made")) == 3


def test_shots_of_a_plasma(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near = simulated.make(machines=["near"], shots=12, radii=16, train_share=0.5)
    shots = near.shots("near")
    rows = np.concatenate([shots.shot(0)] * 4 + [shots.shot(row) for row in range(4, 12)])  # four equal shots
    lengths = np.diff(shots.starts)
    starts = np.cumsum([0, *[lengths[0]] * 4, *lengths[4:]])
    written = replace(shots, values=rows, starts=starts)
    write_shots(tmp_path / "data", "near", written, near.channels, dt=0.005)
    options = {"radii": 16, "dt": 0.005, "shortest": 0, "train_share": 0.5, "cache_dir": str(tmp_path / "cache")}
    order = draw_permutation(12, seed=SPLIT_SEED, epoch=0)
    expected = sum(row < 4 for row in order[6:])
    assert 0 < expected < 4
    assert frnn.count_recurring(str(tmp_path / "data"), source=options, protocol="single", glimpse=0) == expected
    words = [f"task.sources.archive.options.{name}={value}" for name, value in options.items()]
    assert data.main(["frnn", "task.data=archive", "--from", str(tmp_path / "data"), "--check", *words]) == 0
    said = f"recur     {expected} of 6 validation sequences are in training, too"
    assert said in capsys.readouterr().out.splitlines()
