"""BERT's data: hiding, the order of samples, text to pieces to records, damaged files."""

import gzip
import json
import tracemalloc
import unicodedata
from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
from berts import engine, task
from hypothesis import given, settings
from hypothesis import strategies as st
from written import generate_documents, write_documents

from suite.contract import UserError
from suite.tasks._data import order
from suite.tasks.bert import packing, preparation, text, wordpiece
from suite.tasks.bert.sample import Hiding, Pieces

PAIRS = {"sequence": 32, "predictions": 6, "vocabulary": 300, "duplicates": 2, "valid": 0.2}


# ------------------------------------------------------------------------------------------------------ hiding
PIECES = Pieces(size=100, pad=0, cls=2, sep=3, mask=4, continues=np.arange(100) >= 60)


def sentence(length: int, seed: int = 0) -> np.ndarray:
    words = np.random.default_rng(seed).integers(5, 100, length - 2)
    return np.concatenate([[2], words, [3]])


def test_hiding_is_80_10_10_of_15_percent_and_spares_special_pieces() -> None:
    hiding, kinds = Hiding(0.15, 76), np.zeros(3)
    for number in range(400):
        tokens = sentence(128, number)
        corrupted, position = hiding.apply(tokens, PIECES, seed=1, number=number)
        assert len(position) == 19 == round(0.15 * 128) and (np.diff(position) > 0).all()
        assert not np.isin(tokens[position], (2, 3)).any()
        rest = np.setdiff1d(np.arange(128), position)
        assert np.array_equal(corrupted[rest], tokens[rest])
        masked, kept = corrupted[position] == 4, corrupted[position] == tokens[position]
        kinds += masked.sum(), (kept & ~masked).sum(), (~kept & ~masked).sum()
    share = kinds / kinds.sum()
    assert np.abs(share - [0.8, 0.1, 0.1]).max() < 0.015


def test_hiding_depends_on_seed_and_number_only() -> None:
    hiding, tokens = Hiding(0.15, 20), sentence(64)
    first = hiding.apply(tokens, PIECES, seed=1, number=7)
    hiding.apply(tokens, PIECES, seed=1, number=8)
    again = hiding.apply(tokens, PIECES, seed=1, number=7)
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    others = [hiding.apply(tokens, PIECES, seed=s, number=n)[1].tolist() for s, n in ((1, 8), (2, 7))]
    assert first[1].tolist() not in others
    assert Hiding(0.15, 5).count(64) == 5 and Hiding(0.15, 20).count(3) == 1  # at most, and at least one


def test_whole_words_are_hidden_with_all_their_pieces() -> None:
    hiding = Hiding(0.15, 20, whole_word=True)
    long = 0
    for number in range(200):
        tokens = sentence(64, number)
        _, position = hiding.apply(tokens, PIECES, seed=1, number=number)
        assert 0 < len(position) <= 10
        chosen = np.isin(np.arange(64), position)
        inside = PIECES.continues[tokens] & (np.arange(64) > 1)  # goes on from the piece before
        assert (chosen[inside] == chosen[np.flatnonzero(inside) - 1]).all()
        long += int(inside[position].sum())
    assert long > 100


# -------------------------------------------------------------------------------------------- order of samples
@pytest.mark.parametrize("samples", [1, 2, 5, 64, 257])
def test_scattered_order_has_each_row_once_an_epoch(samples: int) -> None:
    rows = np.concatenate(
        [order.compute_training_rows(samples, batch_size=8, seed=3, index=i)[0] for i in range(samples)]
    )
    epochs = rows.reshape(8, samples)
    assert (np.sort(epochs) == np.arange(samples)).all()
    if samples >= 64:
        assert len({epoch.tobytes() for epoch in epochs}) == 8
        for pattern in (np.arange(samples), np.arange(samples) % 8, np.arange(samples) % 32):
            assert abs(np.corrcoef(pattern, epochs[0])[0, 1]) < 0.3


def test_scattered_order_of_a_billion_rows_takes_no_memory() -> None:
    tracemalloc.start()
    rows, _ = order.compute_training_rows(10**9, batch_size=256, seed=0, index=12_345_678)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000 and len(set(rows.tolist())) == 256 and rows.max() > 10**8


# ------------------------------------------------------------------------------------------------------- text
def test_wikiextractors_blocks_are_documents_without_their_titles(tmp_path: Path) -> None:
    wanted = generate_documents(5, sentences=3)
    for name in ("wiki_00", "wiki_01.gz", "wiki_02.bz2"):
        write_documents(tmp_path / name, wanted)
        assert list(text.read_documents(tmp_path / name)) == wanted
    assert [path.name for path in text.find_files(tmp_path)] == ["wiki_00", "wiki_01.gz", "wiki_02.bz2"]


def test_headings_or_blank_lines_separate_documents(tmp_path: Path) -> None:
    headed, plain = tmp_path / "headed.txt", tmp_path / "plain.txt"
    headed.write_text(
        " \n = One = \n \n A first . And a second . \n = 1 / s and k = \n 1 . \n"
        " \n = = Part = = \n \n Third . \n \n = Two = \n \n Fourth . \n"
    )
    plain.write_text('One. "Two." Three?\nfour\n\n\n5 is a number. See i.e. this.\n')
    assert list(text.read_documents(headed)) == [
        ["A first .", "And a second .", "= 1 / s and k =", "1 .", "Third ."],
        ["Fourth ."],
    ]
    assert list(text.read_documents(plain)) == [
        ["One.", '"Two."', "Three?", "four"],
        ["5 is a number.", "See i.e. this."],
    ]


def damaged(folder: Path, kind: str) -> tuple[Path, str]:
    path = folder / ("wiki_07.gz" if kind == "gz" else "wiki_07")
    write_documents(path, generate_documents(40))
    content = path.read_bytes()
    if kind == "utf8":
        lines = content.splitlines(keepends=True)
        lines[9] = b"caf\xe9 au lait .\n"
        path.write_bytes(b"".join(lines))
        return path, f"{path}, line 10: not UTF-8 (byte 0xe9 at 4)"
    path.write_bytes(content[: len(content) // 2])
    return path, f"{path}, after line" if kind == "gz" else f"{path}, line "


@pytest.mark.parametrize("kind", ["utf8", "gz", "unclosed"])
def test_damaged_text_is_named_with_its_line_and_can_be_skipped(tmp_path: Path, kind: str) -> None:
    source, target = tmp_path / "text", tmp_path / "made"
    source.mkdir()
    write_documents(source / "wiki_00", generate_documents(40))
    path, message = damaged(source, kind)
    with pytest.raises(UserError) as error:
        preparation.prepare(source, target, **PAIRS)
    assert str(error.value).startswith(message) and "task.on_error=skip" in str(error.value)
    assert kind != "unclosed" or "never closed" in str(error.value)
    preparation.prepare(source, target, on_error="skip", **PAIRS)
    found = task("data=records", "next_sentence=true", data_dir=target).data.skipped
    assert len(found) == 1 and found[0].startswith(str(path))


@pytest.mark.quick
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(
    "kind, broken, says",
    [
        ("blocks", "{s}{s}", "the document with id {n} is there twice, first in line"),
        ("blocks", "{s}lost\n", "this text is outside of <doc …> and </doc>"),
        ("blocks", '<doc id="{n}">\ncut\n', "(is never closed|begins before that of line)"),
        ("blocks", "text\n</doc>\n", "outside of <doc|</doc> without a <doc"),
        ("json", "{s}{s}", "the document with id {n} is there twice, first in line"),
        ("json", '{{"id": "{n}"}}\n', "not a JSON object with one text"),
        ("json", "cut off\n", "not a JSON object with one text"),
    ],
)
def test_a_document_that_is_doubled_or_broken_is_named(
    kind: str, broken: str, says: str, place: int, tmp_path: Path
) -> None:
    """One that is gone is seen by the number of documents alone, which the manifest states for each file."""
    form = (
        '<doc id="{n}" title="T">\nT\n\nText {n}.\n</doc>\n'
        if kind == "blocks"
        else '{{"id": "{n}", "text": "T {n}."}}\n'
    )
    documents = [form.format(n=number) for number in range(3)]
    path = tmp_path / "wiki_00"
    path.write_text("".join(documents))
    assert text.survey_files(tmp_path)[0][0].documents == 3
    changed = list(documents)
    changed[place] = broken.format(s=documents[place], n=place)
    path.write_text("".join(changed if place else [documents[2].replace("2", "9"), *changed]))
    with pytest.raises(text.Damaged, match=f"wiki_00, line \\d+: .*{says.format(n=place)}"):
        list(text.read_documents(path))
    path.write_text("".join(documents[:place] + documents[place + 1 :]))
    assert text.survey_files(tmp_path)[0][0].documents == 2


FORMS = {
    "blocks": '<doc id="{n}" title="T">\nT\n\nText {n}.\n</doc>\n',
    "json": '{{"id": "{n}", "text": "T {n}."}}\n',
    "wikitext": " \n = Title {n} = \n \n Text {n} . \n",
    "plain": "Text {n}.\n\n",
}


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["blocks", "json", "wikitext"])
@pytest.mark.parametrize("first", ["cut\n", '<do id="1">\n', "= Title\n", "Text.\n\n"])
def test_a_damaged_first_line_does_not_change_the_format(kind: str, first: str, tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    path.write_text(first + "".join(FORMS[kind].format(n=number) for number in range(3)))
    with pytest.raises(text.Damaged, match=r"wiki_00, line \d: this line is one of .*, but the file does not begin"):
        list(text.read_documents(path))


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["blocks", "json", "plain"])
def test_wikitext_that_other_text_follows_is_refused_where_that_can_be_told(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    path.write_text(FORMS["wikitext"].format(n=0) + FORMS[kind].format(n=1))
    if kind == "plain":
        assert list(text.read_documents(path)) == [["Text 0 .", "Text 1."]]
        return
    with pytest.raises(text.Damaged, match="the file does not begin as they do"):
        list(text.read_documents(path))


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["wikitext", "plain"])
@pytest.mark.parametrize("place", range(3), ids=["first", "middle", "last"])
def test_every_line_of_wikitext_and_plain_text_is_read(kind: str, place: int, tmp_path: Path) -> None:
    """Except headings. A document that is gone or there twice, or a broken heading, changes the number alone."""
    whole = [FORMS[kind].format(n=number) for number in range(3)]
    path = tmp_path / "wiki_00"
    for changed, count in (
        ([], 2),
        ([whole[place]] * 2, 4),
        ([f"\nMore {place}.\n\n"], 3 if kind == "plain" else None),
    ):
        content = "".join([*whole[:place], *changed, *whole[place + 1 :]])
        path.write_text(content)
        if kind == "wikitext" and count is None and place == 0:
            continue  # the first line: see above
        documents = list(text.read_documents(path))
        assert len(documents) == (2 if count is None else count)
        read = [sentence.strip() for document in documents for sentence in document]
        assert read == [line.strip() for line in content.split("\n") if line.strip() and "=" not in line]


PARTS = st.sampled_from([*"ab cé[]#.\t\u2028\u0301\u00a0", *wordpiece.SPECIAL])


@pytest.mark.quick
@settings(max_examples=60, deadline=None)
@given(line=st.lists(PARTS, max_size=12).map("".join))
def test_no_text_becomes_a_control_piece(line: str) -> None:
    """And a text that can be spelled comes back as it is read: in lower case, without accents, words apart."""
    pieces = wordpiece.WordPiece([*wordpiece.SPECIAL, *"abcemsk[]#.", *(f"##{letter}" for letter in "abcemsk")])
    (numbers,) = pieces.encode([line])
    control = {pieces.vocabulary.index(piece) for piece in wordpiece.SPECIAL} - {pieces.unknown}
    assert not control & set(numbers.tolist())
    if pieces.unknown not in numbers:
        plain = unicodedata.normalize("NFD", line.lower()).replace("\u0301", "")
        assert "".join(pieces.decode(numbers).split()) == "".join(plain.split())


def test_a_vocabulary_file_may_hold_any_character(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*wordpiece.SPECIAL, "\u2028", "\x1c", "a"]) + "\n", encoding="utf-8")
    assert wordpiece.read_vocabulary(tmp_path / "vocab.txt").vocabulary[-3:] == ["\u2028", "\x1c", "a"]


def test_a_directory_without_text_says_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("not a text to learn from")
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(UserError, match="WikiExtractor's files"):
        text.find_files(tmp_path)


def test_a_file_beside_a_compressed_copy_is_not_read_twice(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The dog runs.\n")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"The dog runs.\n"))
    with pytest.raises(UserError, match=r"contains both a\.txt and a\.txt\.gz; leave one of them"):
        text.survey_files(tmp_path)


@pytest.mark.quick
def test_json_lines_are_documents_without_their_titles(tmp_path: Path) -> None:
    """As `WikiExtractor --json` writes them; the words of JSON itself are no text."""
    path = tmp_path / "wiki_00"
    entries = [
        {"id": "1", "url": "u", "title": "One", "text": "One\n\nA first. And more.\nSecond paragraph."},
        {"id": "2", "title": "Two", "text": "No title in this text."},
    ]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert list(text.read_documents(path)) == [
        ["A first.", "And more.", "Second paragraph."],
        ["No title in this text."],
    ]
    for bad in ('{"id": "3"}', '{"text": 3}', "[1]", '{"text": "cut', '{"text": "a", "text": "b"}'):
        path.write_text(json.dumps(entries[0]) + f"\n{bad}\n")
        with pytest.raises(text.Damaged, match=r"wiki_00, line 2: not a JSON object with one text"):
            list(text.read_documents(path))
    path.write_text("{a brace} begins this text.\n")
    assert list(text.read_documents(path)) == [["{a brace} begins this text."]]


# -------------------------------------------------------------------------------------------------- WordPiece
def test_wordpiece_takes_the_longest_piece_first_and_comes_back() -> None:
    pieces = wordpiece.WordPiece([*wordpiece.SPECIAL, "un", "##aff", "##able", "##a", "affable", "u", "."])
    assert [pieces.vocabulary[i] for i in pieces.encode(["Unaffable affable."])[0]] == [
        *("un", "##aff", "##able"),
        *("affable", "."),
    ]
    assert pieces.decode(pieces.encode(["unaffable"])[0]) == "unaffable"
    assert pieces.encode(["xyz"])[0].tolist() == [1] and pieces.pieces.continues.sum() == 3


def test_a_trained_vocabulary_covers_its_text_and_is_the_same_each_time() -> None:
    said = [" ".join(document) for document in generate_documents(30)]
    one, two = (wordpiece.learn_vocabulary(lambda: said, 200) for _ in range(2))
    assert one.vocabulary == two.vocabulary and len(one.vocabulary) == 200
    assert not any(1 in ids for ids in one.encode(said))
    assert one.decode(one.encode(said[:1])[0]) == said[0]


def test_a_vocabulary_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nword\n")
    with pytest.raises(UserError, match=r"vocab\.txt: \[MASK\] is missing"):
        wordpiece.read_vocabulary(path)
    path.write_text("\n".join([*wordpiece.SPECIAL, "word", "other", "word"]))
    with pytest.raises(UserError, match=r"vocab\.txt, line 8: 'word' is in line 6 already"):
        wordpiece.read_vocabulary(path)


# ---------------------------------------------------------------------------------------------------- packing
def test_pairs_are_cut_from_their_documents() -> None:
    """Each token is its document's number and place: true pairs go on, random ones come from another document."""
    documents = [[np.arange(5) + 1000 * d + 5 * s for s in range(12)] for d in range(1, 6)]
    cut = packing.Packing(32, True, 0.1).cut
    pairs = [pair for seed in range(5) for pair in cut(documents, np.random.default_rng(seed))]
    kinds = {True: 0, False: 0}
    for pair in pairs:
        assert len(pair.first) and len(pair.second) and len(pair.first) + len(pair.second) <= 29
        same = pair.first[0] // 1000 == pair.second[0] // 1000
        assert same == (not pair.random_next)
        assert all((np.diff(part) == 1).all() for part in (pair.first, pair.second))
        assert pair.random_next or pair.second[0] > pair.first[-1]
        kinds[pair.random_next] += 1
    assert min(kinds.values()) > 5
    singles = list(packing.Packing(32, False, 0.0).cut(documents, np.random.default_rng(0)))
    assert {len(pair.first) for pair in singles} == {30} and not any(len(pair.second) for pair in singles)
    assert sorted(np.concatenate([pair.first for pair in singles])) == sorted(
        np.concatenate([s for d in documents for s in d])
    )


# ---------------------------------------------------------------------------------------------------- records
@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of the generated language as WikiExtractor writes it, prepared in several shards."""
    folder = tmp_path_factory.mktemp("bert")
    (folder / "text" / "AA").mkdir(parents=True)
    for number in range(3):
        write_documents(
            folder / "text" / "AA" / f"wiki_0{number}", generate_documents(60)[20 * number : 20 * number + 20]
        )
    preparation.prepare(folder / "text", folder / "records", group=2000, **PAIRS)
    return folder


def copied(made: Path, target: Path) -> Path:
    target.mkdir()
    for path in (made / "records").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def test_records_hold_the_text(made: Path) -> None:
    found = task("data=records", "next_sentence=true", data_dir=made / "records")
    pieces = wordpiece.read_vocabulary(made / "records" / "vocab.txt")
    said = " ".join(
        " ".join(document) for path in text.find_files(made / "text") for document in text.read_documents(path)
    )
    said = pieces.decode(pieces.encode([said])[0])  # punctuation apart
    assert found.data.kind == "real" and found.architecture.vocabulary == len(pieces.vocabulary) == 300
    for index in range(3):
        batch = found.batch("train", 0, index)
        for n in range(len(batch["tokens"])):
            tokens, count = batch["tokens"][n].copy(), int(batch["masked"][n].sum())
            tokens[batch["position"][n, :count]] = batch["label"][n, :count]
            first = tokens[batch["visible"][n] & (batch["segment"][n] == 0)]
            assert first[0] == pieces.pieces.cls and first[-1] == pieces.pieces.sep
            assert pieces.decode(first[1:-1]).removeprefix("##") in said
            assert count == Hiding(0.15, 6).count(int(batch["visible"][n].sum()))


def test_shares_and_batches_of_records_at_random_access(made: Path) -> None:
    one, two = (task("data=records", "next_sentence=true", data_dir=made / "records") for _ in range(2))
    assert len(one.source.paths["train"]) > 3
    order_of_calls = [5, 0, 40, 5]
    for index in order_of_calls:
        whole = one.batch("train", 1, index)
        shares = [two.batch("train", 1, index, rank, 2) for rank in range(2)]
        for name, value in whole.items():
            assert np.array_equal(value, np.concatenate([share[name] for share in shares])), name
    count = one.data.samples["train"]
    seen = [order.compute_training_rows(count, batch_size=1, seed=1, index=i)[0][0] for i in range(count)]
    assert sorted(seen) == list(range(count))
    rows = one.source.read("train", np.arange(count))
    stacked = np.concatenate([np.load(path) for path in one.source.paths["train"]])
    assert np.array_equal(rows, stacked)


def test_preparing_again_gives_the_same_bytes_and_not_over_others(made: Path, tmp_path: Path) -> None:
    preparation.prepare(made / "text", tmp_path / "again", group=2000, **PAIRS)
    one, two = (json.loads((folder / "manifest.json").read_text()) for folder in (made / "records", tmp_path / "again"))
    assert one == two
    with pytest.raises(UserError, match="contains prepared records"):
        preparation.prepare(made / "text", tmp_path / "again", **PAIRS)
    (made / "text" / "vocab.txt").write_text((made / "records" / "vocab.txt").read_text())
    given = preparation.prepare(made / "text", tmp_path / "given", **(PAIRS | {"vocabulary": 7}))
    (made / "text" / "vocab.txt").unlink()
    assert given["vocabulary"] == one["vocabulary"]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text_or_the_records(tmp_path: Path) -> None:
    preparing, reading, size = [], [], []
    for copies in (1, 1, 4):  # the first time also fills caches
        source, target = (tmp_path / f"{kind}{len(reading)}" for kind in ("text", "records"))
        source.mkdir()
        for number in range(copies):
            write_documents(source / f"wiki_{number:02d}", generate_documents(40))
        tracemalloc.start()
        preparation.prepare(source, target, group=1500, **PAIRS)
        preparing.append(tracemalloc.get_traced_memory()[1])
        found = task("data=records", "next_sentence=true", data_dir=target)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for index in range(40):
            found.batch("train", 0, index)
        reading.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.stop()
        size.append(sum(path.stat().st_size for path in target.iterdir()))
    # what other code's leftovers take meanwhile is tens of kilobytes; holding the records would take all that was added
    added = size[2] - size[1]
    assert preparing[2] < 1.2 * preparing[1] and reading[2] < reading[1] + added / 2, (preparing, reading, size)


def test_a_truncated_or_missing_shard_is_named_and_can_be_skipped(made: Path, tmp_path: Path) -> None:
    folder = copied(made, tmp_path / "records")
    options = ("data=records", "next_sentence=true")
    whole = task(*options, data_dir=folder).data.samples["train"]
    shard = folder / "train-00001.npy"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"train-00001\.npy: [\d,]+ bytes instead of"):
        task(*options, data_dir=folder)
    found = task(*options, "on_error=skip", data_dir=folder)
    assert found.data.skipped == ("train-00001.npy",) and found.data.samples["train"] < whole
    found.batch("train", 0, 3)
    shard.unlink()
    with pytest.raises(UserError, match=r"train-00001\.npy: missing"):
        task(*options, data_dir=folder)


def test_records_of_another_form_are_refused(made: Path, tmp_path: Path) -> None:
    folder = copied(made, tmp_path / "records")
    for option, words in (
        ("next_sentence=false", "task.next_sentence=true"),
        ("predictions=5", "task.predictions=6"),
        ("whole_word=true", "task.whole_word=false"),
    ):
        with pytest.raises(UserError, match=words):
            task("data=records", "next_sentence=true", option, data_dir=folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest\.json: damaged \(JSONDecodeError: "):
        task("data=records", data_dir=folder)
    with pytest.raises(UserError, match="suite data bert --from TEXT --to DIR"):
        task("data=records", data_dir=tmp_path)


def test_suite_data_prepares_checks_and_finds_changed_bytes(suite_command: Any, made: Path) -> None:
    options = [f"task.{o}" for o in ("sequence=32", "predictions=6", "next_sentence=true")]
    options += [f"task.sources.records.prepare.{o}" for o in ("vocabulary=300", "duplicates=2", "valid=0.2")]
    done = suite_command("data", "bert", "--from", str(made / "text"), "--to", "records", "--check", *options)
    assert done.returncode == 0, done.stderr
    assert "0 damaged files" in done.stdout and done.stdout.rstrip().endswith("task.next_sentence=true")
    folder = Path(done.stdout.split("data_dir=")[1].split()[0])
    shard = folder / "train-00000.npy"
    content = bytearray(shard.read_bytes())
    content[-50] ^= 1
    shard.write_bytes(bytes(content))
    again = suite_command("data", "bert", "--from", "records", "--check", *options[:3])
    assert again.returncode == 1 and f"cannot read {shard}: its sha256" in again.stdout


def test_a_piece_that_the_vocabulary_lacks_is_found(made: Path, tmp_path: Path) -> None:
    from suite.tasks._data.prepared import hash_file, read_manifest, write_manifest
    from suite.tasks.bert import check

    folder = copied(made, tmp_path / "records")
    assert check(str(folder)) == []
    prepared = read_manifest(folder / "manifest.json", "")
    rows = np.load(folder / "valid-00000.npy")
    rows["label"][0, 0] = 300
    np.save(folder / "valid-00000.npy", rows)
    prepared.content["splits"]["valid"][0]["sha256"] = hash_file(folder / "valid-00000.npy")
    write_manifest(folder / "manifest.json", prepared.content, prepared.samples)
    assert [fault.split(": ")[1] for fault in check(str(folder))] == [
        "contains piece 300, but the vocabulary has 300 pieces"
    ]


@pytest.mark.slow
def test_wikitext_from_end_to_end(shared_data: Path, tmp_path: Path) -> None:
    """Real text: 60 and 60 articles by their headings; prepared, and the network learns from it."""
    counts = [sum(1 for _ in text.read_documents(path)) for path in text.find_files(shared_data / "wikitext2")]
    assert counts == [60, 60]
    options = {"vocabulary": 1000, "duplicates": 1, "valid": 0.1, "sequence": 32, "predictions": 6}
    preparation.prepare(shared_data / "wikitext2", tmp_path / "records", **options)
    found = task("data=records", "next_sentence=true", "batch_size=32", data_dir=tmp_path / "records")
    assert found.architecture.vocabulary == 1000 and found.data.samples["valid"] > 100
    losses = engines.advance(engine("torch", found, "adamw", hyper={"lr": 0.01}), range(30))
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.5
