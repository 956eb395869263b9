"""Parallel text: real, written by the tests, and damaged."""

import gzip
import tracemalloc
import unicodedata
from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suite.contract import UserError
from suite.settings import configure
from suite.tasks.transformer import Translation, preparation
from suite.tasks.transformer.architecture import BOS, EOS, PAD, SPECIAL, UNKNOWN, Architecture
from suite.tasks.transformer.corpus import Corpus, check, manifest_of
from suite.tasks.transformer.grammar import Grammar
from suite.tasks.transformer.metric import bleu
from suite.verbs import plan


def task(pairs: Corpus, **options: Any) -> Translation:
    shape = Architecture(pairs.vocabulary, depth=1, width=16, heads=2, feed_forward=24)
    defaults = {"batch_size": 8, "eval_batch_size": 4, "targets": [90], "extra": 2}
    return Translation(pairs, architecture=shape, **(defaults | options))


OPTIONS = {"vocabulary": 300, "longest": 250, "ratio": 3.0}


def write(folder: Path, *, lines: int = 400) -> Path:
    """Write the generated languages as the text files that a user would have."""
    folder.mkdir(exist_ok=True)
    for split, rows in (("train", lines), ("valid", 12), ("test", 9)):
        pairs = Grammar(valid=12)
        sides = pairs.read("train" if split == "train" else "valid", np.arange(rows))
        for language, side in zip(("en", "fr"), sides, strict=True):
            (folder / f"{split}.{language}").write_text("".join(f"{line.capitalize()}.\n" for line in pairs.text(side)))
    return folder


def opened(folder: Path, **changes: Any) -> Corpus:
    return Corpus(str(folder), **({"languages": ("en", "fr"), "length": 60, "held_out": "valid"} | changes))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    text = write(tmp_path_factory.mktemp("text"))
    target = tmp_path_factory.mktemp("corpus")
    preparation.prepare(text, target, **OPTIONS)
    return text, target


def test_prepared_text_comes_back_as_it_was(corpus: tuple[Path, Path]) -> None:
    text, target = corpus
    pairs = opened(target)
    assert pairs.vocabulary <= 300 and pairs.data.samples == {"train": 400, "valid": 12}
    for split, rows in (("train", 400), ("valid", 12)):
        files = [(text / f"{split}.{language}").read_text().splitlines() for language in ("en", "fr")]
        source, back = (pairs.text(side) for side in pairs.read(split, np.arange(rows)))
        assert sorted(zip(source, back, strict=True)) == sorted(zip(*files, strict=True))
    assert pairs.references("valid", np.array([3, 0])) == [files[1][3], files[1][0]]
    assert len(opened(target, held_out="test").references("valid", np.arange(9))) == 9
    turned = opened(target, languages=("fr", "en"))
    assert turned.text(turned.read("valid", np.arange(2))[0]) == files[1][:2]


def test_preparing_twice_gives_the_same_identity_and_damage_is_found(corpus: tuple[Path, Path], tmp_path: Path) -> None:
    text, target = corpus
    preparation.prepare(text, tmp_path, **OPTIONS)
    assert opened(tmp_path).data.identity == opened(target).data.identity and check(str(tmp_path)) == []
    path = tmp_path / "train.fr.words"
    values = bytearray(path.read_bytes())
    values[10] ^= 1
    path.write_bytes(values)
    (tmp_path / "test.en.txt").unlink()
    assert sorted(line.split(":")[0] for line in check(str(tmp_path))) == ["test.en.txt", "train.fr.words"]


def test_length_limits_take_a_beginning_of_the_rows(corpus: tuple[Path, Path]) -> None:
    """Training pairs lie shortest first; nothing is left out of what is scored."""
    pairs, short = opened(corpus[1]), opened(corpus[1], length=30)
    words = [int((side != PAD).sum(1).max()) for side in short.read("train", np.arange(short.data.samples["train"]))]
    kept = short.data.samples["train"]
    assert 0 < kept < 400 and max(words) <= 30
    following = [int((side != PAD).sum()) for side in pairs.read("train", np.array([kept]))]
    assert max(following) > 30 and f"{400 - kept} training pairs longer than 30" in short.data.note
    assert short.data.samples["valid"] == 12 and short.lengths("valid") == pairs.lengths("valid")
    with pytest.raises(UserError, match="length=2: every training pair"):
        opened(corpus[1], length=2)


EXTRA = {  # empty on one side, too long, too unequal, and well
    "en": ["", "One.", "le", "One two three."],
    "fr": ["Rien.", "Un " * 90, "les " * 8, "Un deux trois."],
}


def test_published_filters_are_applied_to_training_pairs_alone(tmp_path: Path) -> None:
    text = write(tmp_path / "text", lines=50)
    for split in ("train", "valid"):
        for language, extra in EXTRA.items():
            with (text / f"{split}.{language}").open("a") as file:
                file.writelines(f"{line}\n" for line in extra)
    preparation.prepare(text, tmp_path / "out", **(OPTIONS | {"longest": 80}))
    dropped = manifest_of(tmp_path / "out").content["splits"]["train"]["dropped"]
    assert dropped == {"empty": 1, "long": 1, "ratio": 1}
    assert opened(tmp_path / "out").data.samples == {"train": 51, "valid": 16}
    empty = opened(tmp_path / "out").read("valid", np.array([12]))[0]
    assert empty[0, 0] == EOS and not empty[0, 1:].any()


def test_a_run_reads_only_its_rows(corpus: tuple[Path, Path]) -> None:
    """Arrays are mapped, batches follow from their number, and ranks share one out."""
    pairs = opened(corpus[1])
    made = task(pairs)
    assert all(isinstance(array, np.memmap) for array in pairs._arrays["train", "en"])
    late = task(opened(corpus[1])).batch("train", 0, 130)
    whole = made.batch("train", 0, 130)
    shares = [made.batch("train", 0, 130, rank, 2)["target"] for rank in range(2)]
    assert np.array_equal(late["source"], whole["source"]) and np.array_equal(np.concatenate(shares), whole["target"])
    assert whole["source"].shape == (8, 60)
    epoch = np.concatenate([made.batch("train", 0, index)["source"] for index in range(50)])
    everything = pairs.read("train", np.arange(400))[0]
    assert sorted(map(tuple, epoch.tolist())) == sorted(map(tuple, everything.tolist()))


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Opening and 20 batches take about as many bytes from a text as from one twenty times as long."""
    peaks = []
    for lines in (150, 3000):
        preparation.prepare(write(tmp_path / f"text{lines}", lines=lines), tmp_path / f"out{lines}", **OPTIONS)
        tracemalloc.start()
        made = task(opened(tmp_path / f"out{lines}"))
        for index in range(20):
            made.batch("train", 0, index)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0], peaks


def test_gz_parts_and_sgm_are_read_as_their_text(tmp_path: Path) -> None:
    text = write(tmp_path / "text", lines=40)
    for language in ("en", "fr"):
        lines = (text / f"train.{language}").read_text().splitlines(keepends=True)
        (text / f"train.{language}").unlink()
        with gzip.open(text / f"train.a.{language}.gz", "wt") as file:
            file.writelines(lines[:25])
        (text / f"train.b.{language}").write_text("".join(lines[25:]))
        (text / f"test.{language}").unlink()
    body = '<srcset setid="news" srclang="any">\n<doc docid="d">\n<p>\n<seg id="1">L’eau &quot;x&quot; &amp; y.</seg>\n'
    body += '<seg id="2"> Le dego. </seg>\n</p>\n</doc>\n</srcset>\n'
    (text / "news-src.en.sgm").write_text(body)
    (text / "news-ref.fr.sgm").write_text(body)
    preparation.prepare(text, tmp_path / "out", **OPTIONS)
    pairs = opened(tmp_path / "out", held_out="test")
    assert pairs.data.samples == {"train": 40, "valid": 2}
    assert pairs.references("valid", np.arange(2)) == ['L\'eau "x" & y.', "Le dego."]


SAFE = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n"), max_size=30)


def perfect(made: Translation) -> float | None:
    """The BLEU of a model that writes each reference."""
    rows = np.arange(made.data.samples["valid"])
    written = made.pairs.read("valid", rows)[1]
    ones = np.ones(len(rows), np.float32)
    part = {"weight": ones, "index": rows, "loss": ones, "words": ones, "undefined": 0 * ones, "written": written}
    return made.score([part])["bleu"]


def prepare_lines(folder: Path, lines: list[str], train: list[str] | None = None) -> Corpus:
    """Prepare lines as both languages of all splits, or of the held-out ones."""
    text = folder / "text"
    text.mkdir(parents=True)
    for split in ("train", "valid"):
        for language in ("en", "fr"):
            content = lines if train is None or split == "valid" else train
            (text / f"{split}.{language}").write_text("".join(f"{line}\n" for line in content), newline="\n")
    preparation.prepare(text, folder / "made", **OPTIONS)
    return opened(folder / "made")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(SAFE, min_size=1, max_size=6))
def test_a_perfect_model_scores_100_or_the_data_says_what_it_cannot_write(
    lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = [line.rstrip("\r") for line in lines] + ["It was a long day, and all of them went home."] * 3
    made = task(prepare_lines(tmp_path_factory.mktemp("lines"), lines))
    lost = "of the references" in made.data.note
    assert lost == any("\u2581" in line for line in lines)  # the vocabulary's mark of a space
    assert lost or perfect(made) == pytest.approx(100.0, abs=1e-9), (lines, made.data.note)


@pytest.mark.quick
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKD"])
def test_composed_and_decomposed_references_score_alike(form: str, tmp_path: Path) -> None:
    lines = [unicodedata.normalize(form, f"Caf\u00e9 numéro {n} à la carte, très élégant ({n}).") for n in range(60)]
    made = task(prepare_lines(tmp_path, lines))
    assert perfect(made) == pytest.approx(100.0) and "references" not in made.data.note


@pytest.mark.quick
@pytest.mark.parametrize("word", SPECIAL)
def test_a_control_word_in_a_sentence_is_text(word: str, tmp_path: Path) -> None:
    lines = [f"The tag {word} stands here, and {n} words follow it{word}." for n in range(40)]
    made = task(prepare_lines(tmp_path, lines))
    assert perfect(made) == pytest.approx(100.0)
    assert made.pairs.text(made.pairs.read("valid", np.arange(40))[1]) == lines
    assert not np.isin(made.pairs.read("train", np.arange(40))[0][:, :-1][:, :5], [BOS, UNKNOWN]).any()


def test_words_that_an_earlier_version_took_for_the_end_are_refused(tmp_path: Path) -> None:
    pairs = prepare_lines(tmp_path, ["One two three four five six."] * 3)
    words = np.memmap(tmp_path / "made" / "valid.fr.words", "<u2", "r+")
    words[1] = EOS
    words.flush()
    with pytest.raises(UserError, match="row 0 of valid in fr has a word such as </s> in its text"):
        pairs.read("valid", np.arange(1))


@pytest.mark.quick
def test_references_that_no_model_can_write_are_counted(tmp_path: Path) -> None:
    """Longer than a translation may become, and characters that are in no training sentence."""
    plain = ["one two three four five six seven"] * 20
    lines = ["one two three four", "\u4e00\u4e8c one two three", "one " * 30]
    for language, content in (("en", ["one"] * 3), ("fr", lines)):
        (tmp_path / "text").mkdir(exist_ok=True)
        (tmp_path / "text" / f"train.{language}").write_text("\n".join(plain) + "\n")
        (tmp_path / "text" / f"valid.{language}").write_text("\n".join(content) + "\n")
    preparation.prepare(tmp_path / "text", tmp_path / "made", **OPTIONS)
    made = task(opened(tmp_path / "made"), extra=10)
    assert made.longest == 12
    expected = "1 are longer than 12 words with their end, 1 are with characters that the vocabulary lacks"
    assert made.data.note.endswith(f"of the references, {expected}")


SEGMENTS = [f'<seg id="{n}">{word} is here.</seg>' for n, word in enumerate(("One", "Two", "Three", "Four"), start=1)]


def read_sgm(folder: Path, source: str, reference: str, skipped: list[str] | None = None) -> list[tuple[str, str]]:
    files = {}
    for name, body in (("src.en", source), ("ref.fr", reference)):
        files[name] = folder / f"news-{name}.sgm"
        files[name].write_bytes(f'<srcset setid="a">\n<doc docid="d">\n{body}\n</doc>\n</srcset>\n'.encode())
    return list(preparation.read_pairs({name: [path] for name, path in files.items()}, skipped))


@pytest.mark.quick
@pytest.mark.parametrize(
    "reference",
    [
        "\n".join(reversed(SEGMENTS)),  # in another order
        " ".join(SEGMENTS),  # on one line
        "<p>" + "</p><p>".join(SEGMENTS) + "</p>",
        "\n".join(SEGMENTS).replace(" is", "\n is"),  # over several lines
        "\n".join(SEGMENTS).replace("seg", "SEG").replace('"', "'"),
    ],
)
def test_segments_are_matched_by_their_id(reference: str, tmp_path: Path) -> None:
    expected = [(f"{word} is here.",) * 2 for word in ("One", "Two", "Three", "Four")]
    assert read_sgm(tmp_path, "\n".join(SEGMENTS), reference) == expected
    assert read_sgm(tmp_path, reference, "\n".join(SEGMENTS)) in (expected, expected[::-1])


@pytest.mark.quick
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    "broken, says",
    [
        ("", r"segment {n} of document 'd' is not in"),
        ("{s}\n{s}", r"line \d: segment {n} of document 'd' is there twice"),
        ('<seg id="{n}">cut off', r"segment {n} of document 'd' has no </seg>"),
        ("<seg>{n}</seg>", "line {line}: <seg> without an id"),
        ('<sag id="{n}">text</sag>', "line {line}: 'text' is outside of <seg>"),
        ("{s} left over", "line {line}: 'left' is outside of <seg>"),
        ("{s}</seg>", "line {line}: </seg> without a <seg>"),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_a_segment_that_is_lost_doubled_or_broken_is_named(
    place: int, broken: str, says: str, side: int, tmp_path: Path
) -> None:
    damaged = list(SEGMENTS)
    damaged[place] = broken.format(s=SEGMENTS[place], n=place + 1)
    bodies = ["\n".join(SEGMENTS)] * 2
    bodies[side] = "\n".join(damaged)
    with pytest.raises(UserError, match=says.format(n=place + 1, line=place + 3)):
        read_sgm(tmp_path, *bodies)


def test_a_segment_that_is_not_utf_8_is_skipped_with_its_pair(tmp_path: Path) -> None:
    read_sgm(tmp_path, "\n".join(SEGMENTS), "\n".join(SEGMENTS))
    path = tmp_path / "news-ref.fr.sgm"
    path.write_bytes(path.read_bytes().replace(b"Three", b"Thr\xe9e"))
    files = {"en": [tmp_path / "news-src.en.sgm"], "fr": [path]}
    with pytest.raises(UserError, match=r"ref\.fr\.sgm, line 5: not UTF-8 at byte \d+; repair it, or skip"):
        list(preparation.read_pairs(files, None))
    skipped: list[str] = []
    assert [pair[0].split()[0] for pair in preparation.read_pairs(files, skipped)] == ["One", "Two", "Four"]
    assert len(skipped) == 1 and "line 5" in skipped[0]
    path.write_bytes(path.read_bytes().replace(b"</doc>", b"</d\xe9oc>"))
    with pytest.raises(UserError, match=r"line 7: not UTF-8"):
        list(preparation.read_pairs(files, skipped))


def test_a_file_beside_a_compressed_copy_is_not_read_twice(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        for language in ("en", "fr"):
            (tmp_path / f"{name}.{language}").write_text("a b\n")
    for language in ("en", "fr"):
        (tmp_path / f"valid.{language}.gz").write_bytes(gzip.compress(b"a b\n"))
    with pytest.raises(UserError, match=r"contains both valid\.en and valid\.en\.gz; leave one of them"):
        preparation.find_files(tmp_path)


def test_damaged_text_is_named_by_file_and_line(tmp_path: Path) -> None:
    text = write(tmp_path / "text", lines=30)
    french = text / "train.fr"
    good = french.read_bytes()
    french.write_bytes(good.rsplit(b"\n", 2)[0] + b"\n")
    with pytest.raises(UserError, match=r"train\.fr ends after line 29, .*train\.en has more lines"):
        preparation.prepare(text, tmp_path / "out", **OPTIONS)
    lines = good.split(b"\n")
    french.write_bytes(b"\n".join([*lines[:6], b"Caf\xe9.", *lines[7:]]))
    with pytest.raises(UserError, match=r"train\.fr, line 7: not UTF-8 at byte 4.*on_error=skip"):
        preparation.prepare(text, tmp_path / "out", **OPTIONS)
    with pytest.raises(UserError, match="no prepared corpus"):
        opened(tmp_path / "out")  # what is not whole cannot be opened
    preparation.prepare(text, tmp_path / "out", **OPTIONS, on_error="skip")
    data = opened(tmp_path / "out").data
    assert data.samples["train"] == 29 and [line.rpartition("/")[2] for line in data.skipped] == [
        "train.fr, line 7: not UTF-8 at byte 4"
    ]
    french.unlink()
    whole = gzip.compress(good)
    (text / "train.fr.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"train\.fr\.gz, after line \d+: .*check whether the file is complete"):
        preparation.prepare(text, tmp_path / "out", **OPTIONS)


def test_the_command_prepares_checks_and_counts(tmp_path: Path, suite_command: Any) -> None:
    text, out = write(tmp_path / "text", lines=60), tmp_path / "out"
    words = ["--from", str(text), "--to", str(out), "--check", "task.sources.corpus.prepare.vocabulary=200"]
    done = suite_command("data", "transformer", *words, "task.sources.corpus.prepare.ratio=3.0")
    assert done.returncode == 0, done.stderr
    assert "60 train, 12 valid" in done.stdout and "0 damaged files" in done.stdout and "words of fr" in done.stdout
    (out / "valid.fr.txt").write_text("x\n")
    done = suite_command("data", "transformer", "--from", str(out), "--check")
    assert done.returncode == 1 and "cannot read valid.fr.txt: not as it was prepared" in done.stdout


def test_the_plan_knows_the_published_sizes_without_data() -> None:
    """Vaswani et al.'s base and big share one matrix of words; the others are Anil et al.'s base and T2T's big_enfr."""
    for words, parameters in (
        (["scale=gpu"], 60_522_496),
        (["scale=gpu", "task.tying=none"], 93_290_496),
        (["scale=paper"], 209_125_376),
        (["scale=paper", "task.variant=big_enfr"], 342_605_824),
    ):
        found = plan.describe_plan(configure.resolve(["task=transformer", *words]))
        assert found["parameters"] == parameters and any("data_dir" in line for line in found["missing"])


def test_a_directory_of_something_else_is_refused(tmp_path: Path, corpus: tuple[Path, Path]) -> None:
    (tmp_path / "train.en").write_text("One.\n")
    with pytest.raises(UserError, match=r"train files of en, not of two languages\. Expected train"):
        preparation.prepare(tmp_path, tmp_path / "out", **OPTIONS)
    (tmp_path / "train.fr").write_text("Un.\n")
    with pytest.raises(UserError, match="files of valid are \\[\\]"):
        preparation.prepare(tmp_path, tmp_path / "out", **OPTIONS)
    with pytest.raises(UserError, match="contains en and fr, not en and de"):
        opened(corpus[1], languages=("en", "de"))


def test_tatoeba_becomes_a_task(shared_data: Path, tmp_path: Path) -> None:
    """Real sentences; the first 3,000 of the training text, so that the test stays short."""
    folder = shared_data / "tatoeba_eng_fra" / "prepared"
    (tmp_path / "text").mkdir()
    for path in folder.glob("*.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = [line for line, _ in zip(file, range(3000), strict=False)]
        with gzip.open(tmp_path / "text" / path.name, "wt", encoding="utf-8") as file:
            file.writelines(lines)
    preparation.prepare(tmp_path / "text", tmp_path / "out", **(OPTIONS | {"vocabulary": 2000}))
    pairs = opened(tmp_path / "out")
    assert pairs.data.samples["valid"] == 980 and pairs.vocabulary == 2000
    for split in ("train", "valid"):
        source, target = pairs.read(split, np.arange(64))
        assert source.min() == PAD and (source == EOS).any(1).all() and (target == EOS).any(1).all()
    rows = np.arange(200)
    assert bleu(pairs.text(pairs.read("valid", rows)[1]), pairs.references("valid", rows)) > 99.0
    made = task(pairs, extra=0)
    settings = engines.change(
        engines.config("adamw", "torch", precision="float32"), {"task": {"module": "suite.tasks.transformer"}}
    )
    one = engines.engine(settings, made)
    losses = engines.advance(one, range(10))
    assert losses[-1] < losses[0]


def test_the_first_words_are_the_special_ones(corpus: tuple[Path, Path]) -> None:
    assert [opened(corpus[1])._tokenizer.token_to_id(word) for word in SPECIAL] == [PAD, BOS, EOS, UNKNOWN]
    assert Grammar().words[:4] == SPECIAL
