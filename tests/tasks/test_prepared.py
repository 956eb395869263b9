"""Prepared data is read as it was written, or refused with the file's name."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from click_lines import make_line, write_logs

from suite.contract import UserError
from suite.tasks._data import prepared
from suite.tasks.dlrm import criteo
from suite.verbs import data

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("criteo")
    lines = [make_line(str(row % 2), word=f"{row:x}") for row in range(60)]
    criteo.prepare(write_logs(folder / "raw", lines, lines[:10]), folder / "made")
    return folder / "made"


def copied(folder: Path, target: Path) -> Path:
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_flipped_bit_in_a_file_is_refused(clicks: Path, tmp_path: Path) -> None:
    draw, folder = random.Random(0), copied(clicks, tmp_path / "made")
    for path in sorted(folder.glob("*.bin")):
        whole = path.read_bytes()
        for bit in draw.sample(range(8 * len(whole)), 10):
            flip(path, bit)
            with pytest.raises(UserError, match=rf"{path.name}: not as it was prepared.*; prepare it again"):
                criteo.Records(folder)
            path.write_bytes(whole)
    criteo.Records(folder)


def test_a_flipped_bit_in_a_manifest_changes_nothing_or_is_refused(clicks: Path, tmp_path: Path) -> None:
    draw, folder = random.Random(1), copied(clicks, tmp_path / "made")
    path, expected = folder / "manifest.json", criteo.Records(clicks)
    whole = path.read_bytes()
    refused = 0
    for bit in draw.sample(range(8 * len(whole)), 100):
        flip(path, bit)
        try:
            found = criteo.Records(folder)
            same = [found.rows, found.data.identity, found.data.samples, found.data.dropped, found.data.skipped]
            made = expected.data
            assert same == [expected.rows, made.identity, made.samples, made.dropped, made.skipped], bit
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and str(folder) in str(error)
        path.write_bytes(whole)
    assert refused > 80


@pytest.mark.parametrize("place", [0, 1, -1], ids=["first", "middle", "last"])
def test_an_entry_of_a_manifest_that_is_removed_doubled_or_broken_is_refused(
    clicks: Path, tmp_path: Path, place: int
) -> None:
    folder = copied(clicks, tmp_path / "made")
    path = folder / "manifest.json"
    whole = path.read_text()
    names = list(json.loads(whole)["files"])
    line = next(line for line in whole.splitlines() if f'"{names[place]}"' in line)
    for changed, says in ((f"{line.rstrip(',')},\n{line}", "two entries are called"), ("", ""), (line[:-9], "")):
        path.write_text(whole.replace(line, changed, 1))
        with pytest.raises(UserError, match=rf"manifest\.json: damaged .*{says}"):
            criteo.Records(folder)


def test_older_manifests_are_read(clicks: Path, tmp_path: Path) -> None:
    """Without samples and a checksum, only the sizes are compared."""
    folder = copied(clicks, tmp_path / "made")
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in ("blocks", "crc32"):
        del manifest[name]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert criteo.Records(folder).data.identity == criteo.Records(clicks).data.identity


def test_the_sample_contains_the_ends_of_a_large_file_and_the_whole_of_a_small_one(tmp_path: Path) -> None:
    path, whole = tmp_path / "file", prepared.BLOCK * prepared.BLOCKS
    for size, places in ((whole, (0, whole // 2 + 5, whole - 1)), (3 * whole, (0, prepared.BLOCK - 1, 3 * whole - 1))):
        np.zeros(size, np.uint8).tofile(path)
        before = prepared.sample_file(path)
        for place in places:
            flip(path, 8 * place)
            assert prepared.sample_file(path) != before
            flip(path, 8 * place)
        assert prepared.sample_file(path) == before
    flip(path, 8 * (prepared.BLOCK + 1))
    assert prepared.sample_file(path) == before, "between two blocks: only --check finds it"


def test_suite_data_check_names_every_changed_file(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(clicks, tmp_path / "made")
    for name in ("train.ids.bin", "valid.dense.bin"):
        flip(folder / name, 3)
    words = ["dlrm", "--from", str(folder), "task.data=criteo"]
    assert data.main([*words, "--check"]) == 1
    text = capsys.readouterr().out
    assert text.count("cannot read ") == 2 and f"{folder / 'train.ids.bin'}: its sha256 is" in text
    with pytest.raises(UserError, match=r"train\.ids\.bin: not as it was prepared"):
        data.main(words)
