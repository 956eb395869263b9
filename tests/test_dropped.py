"""Losses of the data: what was dropped, and why, is said wherever the data is."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click_lines import make_line, write_logs
from tiny_runs import Call

from suite.contract import DAMAGED, Data, UserError
from suite.launch.job import make_task
from suite.record import record
from suite.record.facts import DataUsed
from suite.settings import configure
from suite.tasks.bert import packing, text, wordpiece
from suite.tasks.bert import preparation as bert
from suite.tasks.dlrm import criteo
from suite.tasks.transformer import corpus, preparation
from suite.track import console
from suite.track.console import MUCH

FEW = Data("real", "a", "0", {"train": 990, "valid": 0}, unit="pairs", dropped={"beyond prepare.ratio": 10})


def test_dropped_samples_are_said_with_their_reason():
    assert FEW.losses() == "10 of 1,000 pairs dropped, 1.0% (beyond prepare.ratio 10)"
    assert FEW.dropped_share <= MUCH < replace(FEW, dropped={"a": 11}).dropped_share
    assert replace(FEW, dropped={}).losses() == ""


def test_a_result_holds_what_was_dropped_and_an_old_one_needs_not():
    assert record.describe_data(FEW)["dropped"] == {"beyond prepare.ratio": 10}
    assert "dropped" not in record.describe_data(replace(FEW, dropped={}))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    pytest.importorskip("tokenizers")
    source, target = tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("made")
    for split in ("train", "valid"):
        lines = [f"a b c {number}" for number in range(40)] + ["one", ""]
        others = [f"d e f {number}" for number in range(40)] + ["w " * 60, "x"]
        (source / f"{split}.en").write_text("\n".join(lines) + "\n")
        (source / f"{split}.fr").write_text("\n".join(others) + "\n")
    preparation.prepare(source, target, vocabulary=100, longest=250, ratio=1.5, on_error="stop")
    return target


def test_pairs_that_the_preparation_left_out_are_counted_by_reason(prepared):
    data = corpus.Corpus(str(prepared), languages=("en", "fr"), length=64, held_out="valid").data
    assert data.dropped["beyond prepare.ratio"] >= 1 and data.dropped["without words on a side"] == 1
    assert sum(data.dropped.values()) + data.samples["train"] == 42
    short = corpus.Corpus(str(prepared), languages=("en", "fr"), length=5, held_out="valid").data
    assert sum(short.dropped.values()) + short.samples["train"] == 42


def test_a_byte_order_mark_is_not_text(tmp_path):
    block = '<doc id="1" title="A">\nA\nFirst sentence. Second one.\n</doc>\n'
    for name, mark in (("plain", b""), ("marked", b"\xef\xbb\xbf")):
        (tmp_path / f"{name}.txt").write_bytes(mark + block.encode())
    plain, marked = (list(text.read_documents(tmp_path / f"{name}.txt")) for name in ("plain", "marked"))
    assert plain == marked == [["First sentence.", "Second one."]]


# ------------------------------------------------------------------------------------------- BERT's text
SENTENCES = (
    "東京は日本の首都であり、世界でもっとも人口の多い都市のひとつである。",
    "駅まで歩いて十分ほどかかりますか？",
    "「はい。」彼女は図書館で古い本を読んでいた。",
)
SHORT = {"sequence": 64, "predictions": 6, "vocabulary": 300, "duplicates": 2, "valid": 0.2}


def written(folder: Path, documents: list[str]) -> Path:
    folder.mkdir()
    (folder / "all.txt").write_text("\n\n".join(documents), encoding="utf-8")
    return folder


def japanese(count: int) -> list[str]:
    """Documents of two paragraphs of 20 sentences each, without a space."""
    draws = np.random.default_rng(0)
    return ["\n".join("".join(draws.choice(SENTENCES, 20)) for _ in range(2)) for _ in range(count)]


def pieces_in(target: Path, special: int) -> int:
    """Word pieces of all records, without special ones."""
    rows = [np.load(path) for path in target.glob("*.npy")]
    return sum(int(part["length"].sum()) - special * len(part) for part in rows)


def test_full_stops_without_a_space_end_a_sentence():
    assert text.split_sentences("".join(SENTENCES)) == [
        SENTENCES[0],
        SENTENCES[1],
        "「はい。」",
        SENTENCES[2].partition("」")[2],
    ]
    assert text.split_sentences("Tokyo. 3 stops.") == ["Tokyo.", "3 stops."]


@pytest.mark.parametrize("stop", ["", "。"], ids=["without full stops", "with full stops"])
def test_text_without_spaces_is_kept_and_what_is_cut_off_is_counted(tmp_path, stop):
    documents = [document.replace("。", stop) for document in japanese(12)]
    source = written(tmp_path / "text", documents)
    manifest = bert.prepare(source, tmp_path / "made", next_sentence=False, **SHORT)
    lost = sum(manifest["dropped"].values())
    assert manifest["tokens"] - lost == pieces_in(tmp_path / "made", special=2)
    assert 0 < lost < 0.3 * manifest["tokens"], "paragraphs are not cut off after their first sequence"
    bert.prepare(source, tmp_path / "pairs", **SHORT)
    made = json.loads((tmp_path / "pairs" / "manifest.json").read_text())
    assert set(made["dropped"]) == {packing.CUT_OFF}
    assert sum(made["dropped"].values()) < 0.4 * made["tokens"]


def test_a_word_that_the_vocabulary_cannot_spell_is_counted_once(tmp_path):
    documents = [f"known word {other} . known word . " * 4 for other in ["known", "日本"] * 20]
    source = written(tmp_path / "text", documents)
    (source / "vocab.txt").write_text("\n".join([*wordpiece.SPECIAL, "known", "word", "."]))
    manifest = bert.prepare(source, tmp_path / "made", next_sentence=False, **SHORT)
    rows = np.concatenate([np.load(path) for path in (tmp_path / "made").glob("*.npy")])
    assert manifest["dropped"][bert.UNKNOWN] >= 2 * 4 * 20  # two characters, 4 times in each of 20 documents
    assert sum(manifest["dropped"].values()) <= manifest["tokens"] and len(rows)


def test_pieces_that_leave_a_document_are_counted_exactly():
    losses = packing.Losses(unknown=1)
    losses.add("a", [np.array([1, 7, 8]), np.array([9])], [np.array([7])])
    losses.add("b", [np.array([1])])
    assert losses.counts == {"a": 2}


def test_one_long_document_makes_pairs_of_its_own_and_loses_little():
    document = [np.full(9, number) for number in range(200)]
    losses = packing.Losses()
    pairs = list(packing.Packing(64, True, 0.1).cut([document], np.random.default_rng(0), losses))
    kept = sum(len(pair.first) + len(pair.second) for pair in pairs)
    assert not any(pair.random_next for pair in pairs)
    assert kept + losses.counts.total() == 1800 and losses.counts.total() < 0.2 * 1800


def test_a_sentence_that_no_record_has_room_for_is_cut_into_parts():
    sentence = np.arange(130)
    for pairs, sizes in ((False, [62, 62, 6]), (True, [31, 31, 31, 31, 6])):
        parts = packing.Packing(64, pairs, 0.1).fitted(sentence)
        assert [len(part) for part in parts] == sizes and np.array_equal(np.concatenate(parts), sentence)
        assert len(packing.Packing(64, pairs, 0.1).fitted(sentence[:61])) == 1


# ------------------------------------------------------------------- result, first line, suite data
def losses_of(held: Mapping[str, Any]) -> str:
    return record.read_data(DataUsed.model_validate_json(json.dumps(held))).losses()


def said_everywhere(suite: Call, folder: Path, *overrides: str) -> Mapping[str, Any]:
    """Return the record of a task's data in a directory: first line, last lines and `suite data` have the same one."""
    config = configure.resolve([*overrides, f"data_dir={folder}", "seed=0"])
    task = make_task(config)
    losses = task.data.losses()
    assert losses and task.data.dropped_share > MUCH
    assert losses in console.describe_run(config, task)
    held = json.loads(json.dumps(record.describe_data(task.data)))
    assert losses_of(held) == losses
    name, *options = (override for override in overrides if not override.startswith("task.data="))
    name = name.removeprefix("task=")
    code, printed = suite("data", name, "--from", str(folder), "--json", *options)
    (source,) = json.loads(printed, parse_constant=pytest.fail).values()
    assert code == 0 and source["left_out"] == losses and source["data"] == held
    assert source["dropped_share"] == task.data.dropped_share and source["next"].startswith(f"suite +task={name}")
    return held


def test_bert_says_what_was_cut_off(tmp_path, suite):
    bert.prepare(written(tmp_path / "text", japanese(12)), tmp_path / "made", **(SHORT | {"next_sentence": False}))
    held = said_everywhere(suite, tmp_path / "made", "task=bert", "task.data=records", "task.predictions=6")
    assert held["dropped_unit"] == "word pieces"
    options = (f"data_dir={tmp_path / 'made'}", "task.predictions=6")
    code, printed = suite("data", "bert", *options)
    assert code == 0 and f"left out: {losses_of(held)}" in printed
    code, printed = suite("data", "bert", "--json", *options[1:])
    found = json.loads(printed, parse_constant=pytest.fail)
    assert code == 0 and found["records"]["data"] is None and "use --from DIR" in found["records"]["missing"]
    assert found["hmm"]["data"]["kind"] == "generated" and found["hmm"]["left_out"] == ""


def test_dlrm_counts_damaged_lines_and_the_rows_of_criteos_test(tmp_path, suite):
    rows = [make_line(str(number % 2)) for number in range(140)]
    logs = write_logs(tmp_path / "raw", [*rows[:3], "1\t2", *rows[4:]])
    criteo.prepare(logs, tmp_path / "made", on_error="skip")
    held = said_everywhere(suite, tmp_path / "made", "task=dlrm", "task.data=criteo")
    assert held["dropped"] == {DAMAGED: 1, criteo.HELD_BACK: 10} and held["samples"] == {"train": 119, "valid": 10}


def test_frnn_counts_shots_that_cannot_be_used(tmp_path, suite):
    from written import write_shots

    from suite.tasks.frnn import simulated

    source = simulated.make(machines=["near"], shots=12, radii=16, train_share=0.75)
    write_shots(tmp_path / "shots", "near", source.shots("near"), source.channels, dt=0.005)
    (tmp_path / "shots" / "signal_data" / "near" / "lm" / "3.txt").write_text("")
    options = [f"task.sources.archive.options.{value}" for value in ("radii=16", "dt=0.005", "shortest=0")]
    options += [f"task.sources.archive.options.cache_dir={tmp_path / 'cache'}", "task.on_error=skip"]
    held = said_everywhere(suite, tmp_path / "shots", "task=frnn", "task.data=archive", *options)
    assert held["dropped"] == {DAMAGED: 1} and held["dropped_of"] == 12 and len(held["skipped"]) == 1


def test_tatoebas_pairs_beyond_the_ratio_are_counted_everywhere(shared_data, tmp_path, suite):
    """Real sentences, each 16th of the training text; with all of it and 4,000 words, 24,876 pairs."""
    pytest.importorskip("tokenizers")
    (tmp_path / "text").mkdir()
    for path in (shared_data / "tatoeba_eng_fra" / "prepared").glob("*.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = file.readlines()[:: 16 if "train" in path.name else 1]
        (tmp_path / "text" / path.name.removesuffix(".gz")).write_text("".join(lines), encoding="utf-8")
    preparation.prepare(tmp_path / "text", tmp_path / "made", vocabulary=2000, longest=250, ratio=1.5)
    held = said_everywhere(suite, tmp_path / "made", "task=transformer", "task.data=corpus")
    code, printed = suite("data", "transformer", "--from", str(tmp_path / "made"))
    assert code == 0 and f"left out  {losses_of(held)}" in printed
    assert held["dropped_of"] == 10_270 and held["dropped"]["beyond prepare.ratio"] > 0.1 * 10_270


def test_data_of_which_nothing_is_usable_end_with_one_line(shared_data, suite):
    """One real shot whose signals lie elsewhere; a run on it went on for ever."""
    folder = shared_data / "vest_shot"
    code, printed = suite("data", "frnn", "--from", str(folder))
    assert code == 1 and "too few usable sequences" in printed and "next:" not in printed
    config = configure.resolve(["task=frnn", "task.data=archive", f"data_dir={folder}", "task.on_error=skip"])
    with pytest.raises(
        UserError, match="no usable sequences in the split train and valid; for details, run suite data frnn"
    ):
        make_task(config)
