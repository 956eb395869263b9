import json
import math
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml

from suite import published
from suite.contract import UserError

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "results" / "published").glob("*.yaml"))
COLLECTION = ROOT.parent / "shared" / "published" / "published.yaml"


def number(printed):
    """A printed number: '93.0 +- 1.0' is 93, and the batch '32k' is 32,768."""
    if not isinstance(printed, str):
        return printed
    if thousands := re.fullmatch(r"(\d+)k", printed):
        return 2 ** round(math.log2(1000 * int(thousands[1])))
    try:
        return float(printed.split(" +- ")[0])
    except ValueError:
        return printed


@pytest.fixture(scope="module")
def collection():
    if not COLLECTION.exists():
        pytest.skip(f"the collection the rows were taken from is not at {COLLECTION}")
    rows = yaml.load(COLLECTION.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)["rows"]
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file_keeps_to_the_schema(file):
    schema = json.loads((resources.files("suite") / "schema" / "published.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)
    tables = [table["id"] for table in document["tables"]]
    assert len(set(tables)) == len(tables)
    assert {row["table"] for row in document["rows"]} == set(tables)
    assert all(row["id"].split("-")[0] == row["table"] for row in document["rows"])


def test_schema_is_strict():
    schema = json.loads((resources.files("suite") / "schema" / "published.json").read_text())
    row = {"id": "A1-01", "table": "A1", "task": "t", "metric": "m", "value": 1, "evidence": "e", "where_seen": "w"}
    document = {"source": {"citation": "c"}, "tables": [{"id": "A1", "title": "t", "where": "w"}], "rows": [row]}
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(document)
    for wrong in ({"seen": True}, {"note": None}, {"steps": 0}, {"id": "a1"}, {"details": {}}):
        assert not validator.is_valid({**document, "rows": [{**row, **wrong}]})


SOURCE = "source: {citation: c}\ntables:\n  - {id: A1, title: t, where: w}\nrows:\n"
ROW = "  - {{id: A1-0{n}, table: A1, task: t, metric: m, value: {n}, evidence: e, where_seen: w}}\n"


@pytest.mark.parametrize("place", range(3), ids=["first", "middle", "last"])
@pytest.mark.parametrize(
    "broken, says",
    [
        ("{row}{row}", "two rows have the id A1-0{n}, in lines {line}, {next}"),
        ("  - {{id: A1-0{n}, table: A1\n", "while parsing a flow mapping"),
        ("  - {{id: A1-0{n}, table: A1}}\n", "row A1-0{n}: missing 5 required positional arguments: 'task', 'metric'"),
        ("  - {{id: A1-0{n}, table: A2, task: t}}\n", "row A1-0{n}: the file has no table A2"),
        ("  - {{id: A1-0{n}, table: A1, id: A1-09}}\n", "the key 'id' occurs more than once"),
        ("  - {{id: A1-0{n}, table: A1, seen: yes}}\n", "row A1-0{n}: got an unexpected keyword argument 'seen'"),
    ],
)
def test_a_row_that_is_doubled_or_broken_is_named(place, broken, says):
    """One that is gone is seen by the number of rows alone, which the tests below state: numbers have gaps."""
    rows = [ROW.format(n=number) for number in (1, 2, 3)]
    assert len(published.parse_rows(SOURCE + "".join(rows[:place] + rows[place + 1 :]), "a.yaml")) == 2
    values = {"n": place + 1, "row": rows[place], "line": place + 5, "next": place + 6}
    rows[place] = broken.format(**values)
    with pytest.raises(UserError, match=rf"a\.yaml: [\s\S]*{says.format(**values)}"):
        published.parse_rows(SOURCE + "".join(rows), "a.yaml")


def test_tables_that_are_doubled_or_have_no_rows_are_named():
    table = "  - {id: A2, title: t, where: w}\n"
    for tables, says in ((table, "table A2 has no rows"), (table * 2, "two tables have the id A2, in lines 4, 5")):
        with pytest.raises(UserError, match=says):
            published.parse_rows(SOURCE.replace("rows:", tables + "rows:") + ROW.format(n=1), "a.yaml")


def test_ids_are_unique():
    ids = [row.id for row in published.load_rows()]
    assert len(set(ids)) == len(ids) == 530


def test_exactly_the_seen_rows_are_here(collection):
    assert {row.id for row in published.load_rows()} == {id for id, row in collection.items() if row["seen"]}


def test_numbers_are_the_collected_ones(collection):
    for row in published.load_rows():
        source = collection[row.id]
        for name, theirs in {
            "value": "value",
            "batch_size": "batch_size",
            "steps": "steps",
            "epochs": "epochs",
            "time_seconds": "time_s",
            "time_as_printed": "time",
        }.items():
            printed = source[theirs]
            expected = printed if name == "time_as_printed" else number(printed)
            assert getattr(row, name) == expected, f"{row.id}: {name}"
        assert row.model == source["model"] or source["model"] in (None, "-"), row.id
        assert row.optimizer == source["optimizer"], row.id


def test_seconds_are_those_of_the_printed_time():
    """To the digits that are printed; a time for each epoch is multiplied by the epochs, a range has its middle."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    for row in published.load_rows():
        printed = row.time_as_printed or ""
        match = re.match(r"(?:[\d+]+=)?([\d.]+)(?:-([\d.]+))? ?([smhd])[a-z]*(/epoch)?", printed)
        if row.time_seconds is None:
            continue
        assert match, f"{row.id}: {printed}"
        first, last, unit, each = match.groups()
        value = (float(first) + float(last or first)) / 2 * (float(row.epochs or 0) if each else 1)
        digits = len(first.partition(".")[2])
        rounding = 0.51 * 10**-digits * units[unit] * (float(row.epochs or 0) if each else 1)
        assert row.time_seconds == pytest.approx(value * units[unit], abs=rounding), row.id


def test_nothing_comes_from_memory():
    for file in FILES:
        text = file.read_text(encoding="utf-8").lower()
        assert "unverified" not in text and "from memory" not in text


def test_rows_of_a_task_carry_their_source():
    rows = published.find_rows("resnet50")
    assert {"A1-12", "C1-03", "K1-40"} <= {row.id for row in rows}
    assert {row.suite_task for row in rows} == {"resnet50"}
    row = published.find_row("A1-12")
    assert (row.batch_size, row.steps, row.value, row.time_seconds) == (32768, 1760, 75.4, 330)
    assert row.arxiv == "2002.06015" and "Natural Gradient" in row.citation
    assert row.where_seen == "Table 1" and row.where.endswith("scalable_practical_ngd.pdf, p. 2")
    assert row.details["library"] == "Chainer"
    with pytest.raises(FrozenInstanceError):
        row.value = 80.0  # pyright: ignore[reportAttributeAccessIssue]


def test_rows_of_a_model():
    rows = published.find_rows("resnet50", model="ResNet-50-D")
    assert [row.id for row in rows] == [f"A4-0{n}" for n in range(1, 7)]
    assert published.find_rows("resnet50", model="LeNet") == ()
    assert published.find_rows("no_such_task") == ()


@pytest.mark.parametrize(
    "task", ["resnet50", "bert", "transformer", "dlrm", "frnn", "autoencoder", "caffenet", "cifar10"]
)
def test_every_task_has_rows(task):
    assert published.find_rows(task) == tuple(row for row in published.load_rows() if row.suite_task == task) != ()


@pytest.mark.parametrize(("wrong", "near"), [("A1-99", "A1-09"), ("a1-12", "A1-12"), ("A112", "A1-12")])
def test_unknown_row_names_the_nearest(wrong, near):
    with pytest.raises(UserError, match=near):
        published.find_row(wrong)


def test_unknown_row_far_from_all_says_what_an_id_is():
    with pytest.raises(UserError, match="ids look like A1-12"):
        published.find_row("???????")


def test_comparison_says_what_may_be_compared():
    rows = published.find_rows("resnet50")
    stand_in = published.compare_rows("resnet50", rows, stand_in=True, batch_size=32768)
    assert "only the pattern" in stand_in and "never accuracy" in stand_in and "more rows" in stand_in
    equal = published.compare_rows(
        "resnet50", [published.find_row("A1-11"), published.find_row("A1-12")], stand_in=False, batch_size=32768
    )
    assert "A1-12" in equal and "A1-11" not in equal and "same hardware" in equal
    other = published.compare_rows("resnet50", [published.find_row("A1-12")], stand_in=False, batch_size=64)
    assert other.startswith("No published row has batch 64")
    assert published.compare_rows("mine", [], stand_in=False).startswith("No published row is known for mine")


def test_import_is_light():
    heavy = {"yaml", "jsonschema", "numpy", "torch", "jax"}
    code = f"import sys; from suite import published; print({heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
