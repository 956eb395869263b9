"""`suite data`: what it advises works as printed, and what a task does not need is not asked for."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from idxes import write_set
from tiny_runs import Call

from suite import cli
from suite.launch.job import make_task
from suite.settings import configure
from suite.tasks.autoencoder import files
from suite.tasks.dlrm import criteo

SMALL_BERT = "task.sources.records.prepare.vocabulary=120"
ROW = "1" + "\t5" * 13 + "\tab" * 26


def composes(advice: str) -> None:
    """Check that the command in an advice makes its task from the data that is here."""
    words = shlex.split(advice.removeprefix("next: "))
    assert words[0] == "suite"
    overrides = words[1:]
    config = configure.resolve(overrides)
    configure.reject_unread(config, overrides)
    make_task(config)


def test_mnist_needs_no_files_of_curves_or_faces(suite: Call, shared_data: Path) -> None:
    code, text = suite("data", "autoencoder", "--from", str(shared_data / "mnist"), "--check")
    assert code == 0 and "70,000 images; 0 damaged files" in text and "mat" not in text, text
    composes(text.splitlines()[-1])


def test_each_source_is_checked_by_its_own_files(suite: Call, tmp_path: Path) -> None:
    from scipy.io import savemat

    write_set(tmp_path / "both", train=3, valid=2)
    savemat(tmp_path / "both" / files.CURVES, {"bdata": np.zeros((5, 784)), "bdatatest": np.zeros((4, 784))})
    code, text = suite("data", "autoencoder", "--from", "both", "--check")
    assert code == 1 and "md5" in text and f"curves_mat: real, {files.CURVES}, 5 train, 4 valid" in text
    assert "read 9 images; 0 damaged files" in text and "faces_mat" not in text
    code, text = suite("data", "autoencoder", "task.data=curves_mat", "--from", "both", "--check")
    assert code == 0 and "mnist" not in text and text.count("task.data=") == 1
    (tmp_path / "none").mkdir()
    code, text = suite("data", "autoencoder", "--from", "none", "--check")
    assert code == 2 and "mnist: none/" in text.replace(str(tmp_path) + "/", "") and files.FACES in text
    assert text.count("suite: ") == 1


def test_the_columns_of_a_table_are_those_that_were_typed(suite: Call, tmp_path: Path) -> None:
    folder = tmp_path / "shots"
    folder.mkdir()
    lines = [f"{shot},{0.01 * step},{step},{0}" for shot in range(8) for step in range(30)]
    (folder / "cmod.csv").write_text("number,seconds,ip,ends\n" + "\n".join(lines) + "\n")
    options = "task.sources.archive.options"
    words = ["data", "frnn", "--from", "shots", "--check", f"{options}.signals=[ip]", "task.variant=0d"]
    code, text = suite(*words)
    assert code == 2 and f"no column shot; set {options}.columns.NAME=COLUMN" in text
    named = [f"{options}.columns.{name}={own}" for name, own in (("shot", "number"), ("time", "seconds"))]
    few = [f"{options}.shortest=0", f"{options}.dt=0.01", f"{options}.cache_dir={tmp_path / 'cache'}"]
    code, text = suite(*words, *named, f"{options}.columns.label=ends", *few)
    assert code == 0 and "read 8 sequences; 0 damaged files" in text, text
    composes(text.splitlines()[-1])


def test_a_preparation_that_stopped_does_not_block_its_own_advice(
    suite: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at a damaged line nor when it was killed; what is somebody else's is not touched."""
    monkeypatch.setattr(criteo, "CHUNK", 4)
    source = tmp_path / "logs"
    source.mkdir()
    (source / "train.txt").write_text(f"{ROW}\n" * 10 + "broken\n")
    (source / "test.txt").write_text(f"{ROW}\n" * 3)
    words = ["data", "dlrm", "--from", "logs", "--to", "made", "--check"]
    code, text = suite(*words)
    assert code == 2 and "task.on_error=skip" in text and list(Path("made").iterdir())
    code, text = suite(*words, "task.on_error=skip")
    assert code == 0 and "13 rows; 0 damaged files" in text, text
    composes(text.splitlines()[-1])
    code, text = suite(*words)
    assert code == 2 and "is not empty; name another directory, --to DIR" in text
    Path("other").mkdir()
    Path("other/notes").write_text("mine")
    assert "is not empty" in suite("data", "dlrm", "--from", "logs", "--to", "other")[1]
    assert Path("other/notes").exists() and Path("made/manifest.json").exists()


def advised(text: str) -> str:
    return text.strip().rpartition("; set ")[2]


def test_text_of_one_document_is_told_what_helps(suite: Call, tmp_path: Path) -> None:
    sentence = "The cat sat on the mat. The dog did not see it. "
    source = tmp_path / "one.txt"
    source.write_text(sentence * 20)
    words = ["data", "bert", "--from", "one.txt", "--to", "made", SMALL_BERT]
    code, text = suite(*words)
    assert code == 2 and "separate documents by a blank line" in text and "prepare.valid" not in text
    source.write_text((sentence * 20 + "\n\n") * 3)
    code, text = suite(*words)
    assert code == 2 and "0 of 3 documents would be held out" in text
    code, text = suite(*words, advised(text))
    assert code == 0, text
    composes(text.splitlines()[-1])


def test_records_are_prepared_for_the_scale_that_the_error_asks_for(suite: Call, tmp_path: Path) -> None:
    (tmp_path / "three.txt").write_text(("The cat sat on the mat. The dog did not see it. " * 20 + "\n\n") * 3)
    words = ["data", "bert", "--from", "three.txt", SMALL_BERT, "task.sources.records.prepare.valid=0.4"]
    planned = ["plan", "task=bert", "scale=gpu", "device=cpu", "accumulate=256"]
    assert suite(*words, "--to", "small")[0] == 0
    code, text = suite(*planned, "data_dir=small")
    assert code == 1 and "with sequence=64, but the run has 128" in text, text
    assert text.rstrip().endswith("at the run's scale: suite data bert --from TEXT --to DIR scale=SCALE")
    code, text = suite(*words, "--to", "large", "scale=gpu")
    assert code == 0, text
    code, text = suite(*planned, "data_dir=large")
    assert code == 0, text


def test_each_advice_on_the_share_differs_from_the_last(suite: Call, tmp_path: Path) -> None:
    """Documents of one short sentence make no pair by themselves; two that are held out together do."""
    source = tmp_path / "short.txt"
    source.write_text("".join(f"Sentence {number} is short.\n\n" for number in range(12)))
    words = ["data", "bert", "--from", "short.txt", "--to", "made", SMALL_BERT, "task.next_sentence=true"]
    typed: list[str] = []
    code, text = 2, ""
    for _ in range(4):
        code, text = suite(*words, *typed[-1:])
        if code == 0:
            break
        assert advised(text) not in typed, text
        typed.append(advised(text))
    assert code == 0 and len(typed) == 2, (typed, text)
    composes(text.splitlines()[-1])


@pytest.mark.parametrize("count", [0, 3])
def test_where_no_share_helps_more_text_is_asked_for(count: int) -> None:
    from suite.tasks.bert import preparation

    draws = preparation._draws(3, 1)
    assert preparation._hold_out(draws, count) == "add documents"
    for held in (1, 2):
        share = float(preparation._hold_out(draws, held).rpartition("=")[2])
        assert (draws < share).sum() == held
    assert cli.VERBS["data"]


@pytest.mark.parametrize(
    "words",
    [
        ["data", "dlrm", "--from", "logs", "--to", "file"],
        ["data", "bert", "--from", "logs", "--to", "file/below"],
        ["board", "--out", "file", "--without-claims", "--results"],
        ["report", "--out", "file/report.md"],
        ["export", "mlperf", "--out", "file"],
    ],
    ids=" ".join,
)
def test_a_file_where_a_folder_is_needed_is_named(suite: Call, one: Path, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "logs").mkdir()
    runs = [str(one)] if words[0] != "data" else []
    code, text = suite(*words, *runs)
    assert code == 2 and re.search(r"file.*: a (file of this name exists|part of the path is a file)", text), text
