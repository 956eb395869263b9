"""DLRM: published sizes, Criteo's format and what may be wrong with it, and clicks whose best score is known."""

import gzip
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from abstract import check_torch, count_parameters, trace_jax
from click_lines import draw_lines, make_line, read_plainly, write_logs

from suite.contract import UserError
from suite.launch.job import make_task
from suite.settings import configure
from suite.tasks.dlrm import clicks, criteo
from suite.tasks.dlrm.architecture import Architecture

KAGGLE = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10)
KAGGLE += (5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)  # distinct words in the Kaggle file
SMALL = ["task.sources.clicks.options.train=2000", "task.sources.clicks.options.valid=500"]


def linear(*widths: int) -> int:
    return sum(inputs * outputs + outputs for inputs, outputs in itertools.pairwise(widths))


def absent(*overrides: str) -> Any:
    config = configure.resolve(["task=dlrm", "scale=paper", *overrides])
    return make_task(config, absent=True)


def test_parameters_of_the_kaggle_network() -> None:
    assert sum(KAGGLE) == 33_762_577
    network = Architecture(KAGGLE, (1,) * 26, 16, (512, 256, 64), (512, 256))
    assert len(network.pairs) == 351
    bottom, top = linear(13, 512, 256, 64, 16), linear(367, 512, 256, 1)
    assert count_parameters(network.shapes()) == 16 * 33_762_577 + bottom + top


def test_parameters_of_mlperfs_networks_without_allocating() -> None:
    """187,767,399 rows of 128 in the first benchmark; the second's cross network sees 27 · 128 numbers."""
    from suite.tasks.dlrm.torch import Model

    first, second = absent().architecture, absent("task.variant=v2").architecture
    bottom, top = linear(13, 512, 256, 128), linear(479, 1024, 1024, 512, 256, 1)
    assert sum(first.rows) == 187_767_399
    assert count_parameters(first.shapes()) == 128 * 187_767_399 + bottom + top
    crossed = 27 * 128
    over = 3 * (2 * crossed * 512 + crossed) + linear(crossed, 1024, 1024, 512, 256, 1)
    assert sum(second.hots) == 214
    assert count_parameters(second.shapes()) == 128 * sum(second.rows) + bottom + over
    check_torch(lambda: Model(first), first.shapes())
    check_torch(lambda: Model(second), second.shapes())


@pytest.mark.parametrize("variant", ["v1", "v2"])
def test_jax_takes_mlperfs_parameters(variant: str) -> None:
    from suite.tasks.dlrm.jax import Model

    at = absent(f"task.variant={variant}").architecture
    batch = {"dense": np.zeros((4, 13), np.float32), "label": np.zeros(4, np.float32)}
    outputs, _ = trace_jax(Model(at), at.shapes(), batch | {"ids": np.zeros((4, sum(at.hots)), np.int32)})
    assert outputs["logit"].shape == (4,)


def test_first_rows_stay_within_their_tables_bound() -> None:
    task = make_task(configure.resolve(["task=dlrm", *SMALL]))
    table, at = task.init(0, "tables.weight"), task.architecture
    for field, (start, rows) in enumerate(zip(at.offsets, at.rows, strict=True)):
        part = table[start : start + rows]
        assert np.abs(part).max() <= rows**-0.5, field
        assert np.abs(part).max() > 0.8 * rows**-0.5, field
    assert np.array_equal(task.init(0, "tables.weight", slice(100, 900)), table[100:900])


@pytest.mark.quick
def test_the_interaction_is_the_strict_lower_triangle_after_the_dense_vector() -> None:
    import torch

    from suite.tasks.dlrm.torch import Model

    at = Architecture((5, 7), (1, 1), 3, (4,), (6,))
    model = Model(at)
    batch = {"dense": torch.rand(2, 13), "ids": torch.tensor([[0, 6], [4, 11]]), "label": torch.zeros(2)}
    seen: list[Any] = []
    model.top[0].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model(batch)
    dense, rows = model.bottom(batch["dense"]), model.tables(batch["ids"])
    expected = torch.stack([(rows[:, 0] * dense).sum(1), (rows[:, 1] * dense).sum(1), (rows[:, 1] * rows[:, 0]).sum(1)])
    assert torch.allclose(seen[0], torch.cat([dense, expected.T], 1), atol=1e-6)
    assert (dense >= 0).all(), "ReLU also ends the bottom network"


@pytest.mark.quick
def test_auc_counts_ties_half_and_the_whole_split_at_once() -> None:
    task = absent()
    parts = [
        {"logit": np.array([0.0, 1.0, 1.0]), "label": np.array([0.0, 0.0, 1.0]), "weight": np.ones(3)},
        {"logit": np.array([2.0, 9.0]), "label": np.array([1.0, 0.0]), "weight": np.array([1.0, 0.0])},
    ]
    assert task.score(parts)["auc"] == pytest.approx((2 + 1.5) / 4)


# ------------------------------------------------------------------------------------------------- the format
def test_rules_of_the_published_preparation(tmp_path: Path) -> None:
    train = [make_line(integer="-2", word="ff"), make_line("0", "", ""), make_line(integer="7", word="FF")]
    valid = [make_line(word="ff"), make_line(word="dead")]
    criteo.prepare(write_logs(tmp_path / "raw", train, valid), tmp_path / "made")
    records = criteo.Records(tmp_path / "made")
    seen = records.read("train", np.arange(3))
    assert seen["dense"][:, 0].tolist() == [0.0, 0.0, pytest.approx(np.log(8))], "negative and unknown are 0"
    assert seen["ids"][:, 5].tolist() == [1, 2, 3], "in order of appearance; unknown is a word, and so is another case"
    assert records.read("valid", np.arange(2))["ids"][:, 5].tolist() == [1, 0], "0: not seen in training"
    assert set(records.rows) == {4} and seen["label"].tolist() == [1.0, 0.0, 1.0]


def test_hashed_words_need_no_dictionary(tmp_path: Path) -> None:
    source = write_logs(tmp_path / "raw", [make_line(word="ff"), make_line(word="")], [make_line(word="dead")])
    criteo.prepare(source, tmp_path / "made", hash_rows=100)
    records = criteo.Records(tmp_path / "made")
    assert records.read("train", np.arange(2))["ids"][:, 0].tolist() == [1 + 0xFF % 100, 1]
    assert records.read("valid", np.arange(1))["ids"][0, 0] == 1 + 0xDEAD % 100 and set(records.rows) == {101}


@pytest.mark.parametrize("hash_rows", [0, 1000])
def test_lines_are_read_as_a_plain_reader_reads_them(
    hash_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criteo, "CHUNK", 300)
    lines = draw_lines(1000, 50)
    (tmp_path / "raw").mkdir()
    for name in ("train", "valid"):
        (tmp_path / "raw" / f"{name}.txt").write_bytes("\r\n".join([*lines, ""]).encode())
    criteo.prepare(tmp_path / "raw", tmp_path / "made", hash_rows=hash_rows)
    words: list[dict[str, int]] = [{} for _ in range(26)]
    expected = read_plainly(lines, words, hash_rows)
    records = criteo.Records(tmp_path / "made")
    for split in ("train", "valid"):
        for name, array in records.arrays[split].items():
            assert array.tobytes() == expected[name].tobytes(), (split, name)
    assert records.rows == tuple(hash_rows + 1 if hash_rows else len(known) + 1 for known in words)


def test_one_file_is_cut_as_seven_days_and_days_keep_their_last(tmp_path: Path) -> None:
    criteo.prepare(write_logs(tmp_path / "one", [make_line(integer=str(n)) for n in range(140)]), tmp_path / "made")
    records = criteo.Records(tmp_path / "made")
    assert records.data.samples == {"train": 120, "valid": 10}
    assert np.expm1(records.read("valid", np.arange(10))["dense"][:, 0]).round().tolist() == list(range(130, 140))
    days = tmp_path / "days"
    days.mkdir()
    for day in range(11):
        (days / f"day_{day}").write_text("".join(make_line(integer=str(100 * day + n)) + "\n" for n in range(4)))
    criteo.prepare(days, tmp_path / "made2")
    records = criteo.Records(tmp_path / "made2")
    assert np.expm1(records.read("valid", np.arange(2))["dense"][:, 0]).round().tolist() == [1002, 1003]
    assert records.data.samples["train"] == 40
    (days / "day_3.gz").touch()
    with pytest.raises(UserError, match=r"contains both day_3 and day_3\.gz; leave one"):
        criteo.prepare(days, tmp_path / "made3")
    (days / "day_3.gz").unlink()
    for day in (3, 0):
        (days / f"day_{day}").unlink()
        with pytest.raises(UserError, match=f"day_{day} is missing before day_10; add it"):
            criteo.prepare(days, tmp_path / "made3")


@pytest.mark.parametrize(
    "line, said",
    [
        ("1\t2", "2 columns instead of 40"),
        (make_line(label="2"), "column 1 is '2', not 0 or 1"),
        (make_line(integer="1.5"), "column 2 is '1.5', not an integer"),
        (make_line(word="xyz"), "column 15 is 'xyz', not a hexadecimal word"),
        (make_line(word="é"), "column 15 is"),
        (make_line(word="12\0"), "column 15 is"),
        (make_line(word="123456789"), "column 15 is"),
        (make_line(integer="-"), "column 2 is '-'"),
        (make_line(integer="--1"), "column 2 is '--1'"),
        (make_line(integer="12:"), "column 2 is '12:'"),
        (make_line(integer="1234567890x"), "column 2 is"),
        (make_line(label=""), "column 1 is ''"),
        (make_line() + "\t", "41 columns"),
    ],
)
def test_a_damaged_line_is_named_or_counted(line: str, said: str, tmp_path: Path) -> None:
    source = write_logs(tmp_path / "raw", [make_line(), line, make_line()], [make_line()])
    with pytest.raises(UserError, match=r"train\.txt, line 2: ") as error:
        criteo.prepare(source, tmp_path / "stopped")
    assert said in str(error.value)
    criteo.prepare(source, tmp_path / "made", on_error="skip")
    data = criteo.Records(tmp_path / "made").data
    assert data.samples["train"] == 2 and len(data.skipped) == 1 and "line 2" in data.skipped[0]


@pytest.mark.quick
@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("name", ["train", "valid", "test"])
def test_a_record_that_is_removed_doubled_or_broken_is_counted_or_named(name: str, place: int, tmp_path: Path) -> None:
    """Equal lines are legal clicks: one that is gone or there twice is seen by the number of rows alone."""
    whole = [make_line(integer=str(number)) for number in range(3)]
    for number, lines in enumerate(([whole[place]], [whole[place]] * 3)):  # one fewer, one more
        changed = [*whole[:place], *lines[1:], *whole[place + 1 :]]
        other = "train" if name != "train" else "valid"
        source = tmp_path / f"raw{number}"
        source.mkdir()
        for file, content in ((name, changed), (other, whole)):
            (source / f"{file}.txt").write_text("".join(f"{line}\n" for line in content))
        criteo.prepare(source, tmp_path / f"made{number}")
        kept = criteo.manifest_of(tmp_path / f"made{number}").content["kept"]
        assert kept == {f"{name}.txt": len(changed), f"{other}.txt": 3}
        assert criteo.Records(tmp_path / f"made{number}").data.samples["train" if name == "train" else "valid"] in (
            2,
            4,
        )
    for number, broken in enumerate(("", whole[place].partition("\t")[2], whole[place] + "\t1", "1\t2")):
        changed = [*whole[:place], broken, *whole[place + 1 :]]
        (source / f"{name}.txt").write_text("".join(f"{line}\n" for line in changed))
        with pytest.raises(UserError, match=rf"{name}\.txt, line {place + 1}: (\d+ columns|has no label)"):
            criteo.prepare(source, tmp_path / f"stopped{number}")


@pytest.mark.quick
def test_a_last_line_that_is_cut_off_is_named_or_counted(tmp_path: Path) -> None:
    """Its last word would be another one."""
    source = write_logs(tmp_path / "raw", [make_line()] * 3, [make_line()])
    (source / "train.txt").write_text((source / "train.txt").read_text()[:-4])
    with pytest.raises(UserError, match=r"train\.txt, line 3: the file ends within this line"):
        criteo.prepare(source, tmp_path / "stopped")
    criteo.prepare(source, tmp_path / "made", on_error="skip")
    data = criteo.Records(tmp_path / "made").data
    assert data.samples["train"] == 2 and data.dropped == {"damaged, left out by task.on_error=skip": 1}


@pytest.mark.quick
def test_files_that_would_not_be_read_are_refused_or_counted(tmp_path: Path) -> None:
    source = write_logs(tmp_path / "raw", [make_line()] * 28)
    (source / "test.txt").write_text(f"{make_line()[2:]}\n" * 5)  # as Kaggle's
    criteo.prepare(source, tmp_path / "made")
    data = criteo.Records(tmp_path / "made").data
    assert data.samples == {"train": 24, "valid": 2}
    assert data.dropped == {"Criteo's test rows": 2, "without labels, in test.txt": 5}
    (source / "valid.txt").write_text(f"{make_line()}\n")
    with pytest.raises(UserError, match=r"test\.txt would not be read beside valid\.txt; leave one"):
        criteo.prepare(source, tmp_path / "other")
    (source / "test.txt").unlink()
    (source / "day_0").write_text(f"{make_line()}\n" * 2)
    with pytest.raises(UserError, match=r"train\.txt would not be read beside day_0; leave one"):
        criteo.prepare(source, tmp_path / "other")


def test_damaged_files(tmp_path: Path) -> None:
    source = write_logs(tmp_path / "raw", [make_line()] * 2000, [make_line()] * 10)
    packed = gzip.compress((source / "train.txt").read_bytes())
    (source / "train.txt").unlink()
    (source / "train.txt.gz").write_bytes(packed[:-20])
    with pytest.raises(UserError, match=r"train\.txt\.gz: damaged after line \d+"):
        criteo.prepare(source, tmp_path / "cut")
    (source / "train.txt.gz").write_bytes(packed)
    criteo.prepare(source, tmp_path / "made")
    assert criteo.check(str(tmp_path / "made")) == []
    ids = tmp_path / "made" / "train.ids.bin"
    content = bytearray(ids.read_bytes())
    content[100] ^= 1
    ids.write_bytes(content)
    assert "train.ids.bin: its sha256" in criteo.check(str(tmp_path / "made"))[0]
    ids.write_bytes(content[:-4])
    with pytest.raises(UserError, match=r"train\.ids\.bin: 207,996 bytes instead of 208,000"):
        criteo.Records(tmp_path / "made")
    with pytest.raises(UserError, match="not prepared"):
        criteo.Records(source)
    with pytest.raises(UserError, match="contains neither"):
        criteo.prepare(tmp_path / "made", tmp_path / "other")


def test_census_data_in_criteos_format(shared_data: Path, tmp_path: Path) -> None:
    """Real rows (UCI Adult): their numbers, and an AUC that counting alone does not give."""
    criteo.prepare(shared_data / "census_adult" / "criteo_format", tmp_path / "made")
    counts = criteo.census(str(tmp_path / "made"))
    assert counts["train"] == {"clicked": 7841, "not clicked": 24720}
    assert counts["valid"] == {"clicked": 3846, "not clicked": 12435}
    settings = ["task=dlrm", "task.data=criteo", f"data_dir={tmp_path / 'made'}", "optimizer.lr=0.003", "seed=0"]
    from engines import advance, engine

    config = configure.resolve([*settings, "task.eval_batch_size=16281"])
    made = engine(config, make_task(config))
    advance(made, range(60))
    assert made.task.score(made.evaluate([made.task.batch("valid", 0, 0)]))["auc"] > 0.88


# ------------------------------------------------------------------------------------------------- generated clicks
def test_the_file_says_what_was_drawn(tmp_path: Path) -> None:
    """Through the text and back: labels and counts are equal, and words and categories correspond one to one."""
    (tmp_path / "raw").mkdir()
    clicks.write_splits(tmp_path / "raw", train=3000, valid=500)
    criteo.prepare(tmp_path / "raw", tmp_path / "made")
    seen = criteo.Records(tmp_path / "made").read("train", np.arange(3000))
    dense, ids, _, click = (part[:3000] for part in clicks.draw_chunk("train", 0))
    assert np.array_equal(seen["label"], click) and np.allclose(np.expm1(seen["dense"]), dense, rtol=1e-5, atol=0.0)
    for field in range(26):
        pairs = set(zip(ids[:, field].tolist(), seen["ids"][:, field].tolist(), strict=True))
        assert len(pairs) == len(set(ids[:, field])) == len(set(seen["ids"][:, field])), field


def test_best_attainable_score_of_the_card() -> None:
    from sklearn.metrics import log_loss, roc_auc_score

    parts = [clicks.draw_chunk("valid", chunk)[2:] for chunk in range(-(-30_000 // clicks.CHUNK))]
    probability, click = (np.concatenate(values)[:30_000] for values in zip(*parts, strict=True))
    card = (Path(clicks.__file__).parent / "CARD.md").read_text()
    assert f"{roc_auc_score(click, probability):.4f}" in card and f"{log_loss(click, probability):.4f}" in card
    assert f"{100 * click.mean():.1f} %" in card


@pytest.mark.quick
@pytest.mark.parametrize("variant", [[], ["task.variant=v2", "task.limit=50"]], ids=["one id", "several ids"])
def test_each_feature_reads_its_own_rows(variant: list[str]) -> None:
    made = make_task(configure.resolve(["task=dlrm", *SMALL, *variant]))
    network, ids = made.architecture, made.batch("train", 0, 0)["ids"]
    first = network.offsets[network.segments]
    assert ((first <= ids) & (ids < first + np.asarray(network.rows)[network.segments])).all()


def test_tables_by_rows_give_the_same_run() -> None:
    """Two jax devices with the table split train the whole network like one torch device with all of it."""
    from engines import advance, engine, gap, weights

    small = [*SMALL, "task.batch_size=64", "optimizer.lr=0.1", "precision=float64"]
    plain = ["optimizer=sgd", "optimizer.momentum=0.0", "optimizer.weight_decay=0.0"]
    ends = []
    for backend, placement, world in (("torch", "replicated", 1), ("torch", "rows", 1), ("jax", "rows", 2)):
        chosen = [f"backend={backend}", f"task.placement={placement}", f"world={world}"]
        config = configure.resolve(["task=dlrm", *small, *plain, *chosen])
        made = engine(config, make_task(config))
        advance(made, range(4))
        found = weights(made)
        rows = sum(made.task.architecture.rows)
        ends.append(found | {"tables.weight": found["tables.weight"][:rows]})
    assert gap(ends[0], ends[1]) <= 1e-10 and gap(ends[0], ends[2]) <= 1e-10
