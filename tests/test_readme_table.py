"""README's table of results, which `python -m suite.board.readme` writes."""

import re

import conftest
import pytest
from boards import rank, result

from suite.board import readme
from suite.contract import UserError

README = conftest.TESTS.parent / "README.md"


def seeds(optimizer, *spent, **more):
    return [result(seed=seed, step=step, optimizer=optimizer, **more) for seed, step in enumerate(spent)]


def line(results):
    (only,) = readme.make_table(rank(results)).splitlines()[2:]
    return [cell.strip() for cell in only.strip("|").split(" | ")]


def test_the_table_of_the_readme_is_that_of_the_committed_results():
    assert readme.main(["--file", str(README), "--check"]) == 0, "run: .venv/bin/python -m suite.board.readme"
    table = README.read_text().partition(readme.START)[2].partition(readme.END)[0]
    assert "shapes" in table and "digits" not in table, "the digits are not registered"


@pytest.mark.slow
def test_a_changed_number_is_noticed_and_written_again(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(re.sub(r"muon \d+ /", "muon 7 /", README.read_text()))
    assert copy.read_text() != README.read_text()
    assert readme.main(["--file", str(copy), "--check"]) == 1
    assert readme.main(["--file", str(copy)]) == 0
    assert copy.read_text() == README.read_text()


def test_rows_stand_with_their_ratio_to_the_first():
    cells = line([*seeds("sgd", 120, 110, 190), *seeds("kfac", 100, 150, 90, 95)])
    assert cells[:2] == ["`resnet50`, digits", "top1>=85"]
    assert cells[2] == "kfac 97.5 (4 seeds), sgd 1.23 × (0.733 to 2.11; covers 75 %)" and cells[3] == "too few seeds"


def test_a_leader_is_named_only_if_the_seeds_say_so():
    assert line([*seeds("kfac", *range(100, 108)), *seeds("sgd", *range(200, 208))])[3] == "**kfac**"
    missed = [*seeds("kfac", 1, 2, kind="exhausted"), *seeds("sgd", 1, 2, kind="diverged")]
    assert line(missed)[2:] == ["kfac not ranked, sgd not ranked", "not reached"]
    alone = [*seeds("kfac", *range(100, 108)), *seeds("sgd", *[1] * 8, kind="exhausted")]
    assert line(alone)[2:] == ["kfac 103.5 (8 seeds), sgd not ranked", "only kfac is ranked"]
    equal = [some for name in ("a", "b", "c", "d") for some in seeds(name, *[100, 120] * 4)]
    assert line(equal)[3] == "any of 4" and line(equal[:24])[3] == "a, b or c"
    assert line(equal[:16])[3] == "a or b"


def test_untuned_results_and_single_optimizers_are_not_in_the_table():
    for results in ([result(trials=0), result(trials=0, optimizer="sgd")], seeds("kfac", 100, 102)):
        assert readme.make_table(rank(results)).splitlines()[2:] == []


def test_many_ladders_leave_the_readme_short():
    ladders = [result(task={"width": width}, optimizer=name) for width in range(1, 31) for name in ("kfac", "sgd")]
    lines = readme.make_table(rank(ladders)).splitlines()
    assert len(lines) == 2 + readme.MOST_LINES and "22 more ladders" in lines[-1]


def test_names_keep_the_table_intact():
    cells = line([result(optimizer="a | b\n<!-- end"), result(optimizer="c")])
    assert "a \\" in cells[2] and "<!--" not in " ".join(cells)


def test_a_file_without_markers_is_named():
    with pytest.raises(UserError, match="needs the lines <!-- results"):
        readme.replace_table("# Title", "table")
