"""Pages of the leaderboard, as text; tests/test_site_browser.py looks at them in a browser."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from boards import GOLDEN, MIXED, files, golden, page, rank, result, seeds, site, standing

from suite import published
from suite.board.site import pages
from suite.entries import intake
from suite.entries.doubts import Doubt

ROOT = Path(__file__).parents[1]


class Parsed(HTMLParser):
    """Links and ids of a page, and its open elements, which must be closed in order."""

    VOID = ("meta", "link", "input", "br")

    def __init__(self, content: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(content)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.tags.append(tag)
        self.links += [named[name] for name in ("href", "src") if name in named]
        self.ids += [named["id"]] if "id" in named else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_links(folder):
    """Every link of every page leads to a file of the site, and to an id that is there once."""
    parsed = {path: Parsed(path.read_text()) for path in folder.rglob("*.html")}
    for path, content in parsed.items():
        assert len(content.ids) == len(set(content.ids)), path
        for link in content.links:
            if link == "data:,":
                continue
            file, _, anchor = link.partition("#")
            goal = (path.parent / file).resolve() if file else path
            assert goal.is_relative_to(folder.resolve()) and goal.is_file(), f"{path}: {link}"
            assert not anchor or anchor in parsed[folder / goal.relative_to(folder.resolve())].ids, f"{path}: {link}"
    return parsed


def test_equal_results_give_equal_bytes_in_any_order_and_number(tmp_path):
    site(MIXED, tmp_path / "a")
    site(MIXED, tmp_path / "b")
    site([*reversed(MIXED), *MIXED], tmp_path / "c")
    first = files(tmp_path / "a")
    # the results, leaderboard.json, style and script, and the pages index, claims and resnet50
    assert len(first) == len(MIXED) + 1 + 2 + 3
    assert first == files(tmp_path / "b") == files(tmp_path / "c")


def test_a_few_fixed_results_give_the_golden_files(tmp_path):
    """After a wanted change, run `PYTHONPATH=. .venv/bin/python tests/boards.py` and look at the difference."""
    stored = {path.relative_to(GOLDEN).as_posix(): path.read_bytes() for path in GOLDEN.rglob("*") if path.is_file()}
    assert golden(tmp_path) == stored
    templates = ROOT / "suite" / "board" / "templates"
    assert all((tmp_path / name).read_bytes() == (templates / name).read_bytes() for name in pages.ASSETS)


def test_every_link_leads_somewhere_and_no_request_leaves_the_site(tmp_path):
    other = {**result(), "spec": {**result()["spec"], "task": "bert"}}
    site([*MIXED, other], tmp_path, standings=[standing(), standing(id="b", verdict="reproduced")])
    parsed = check_links(tmp_path)
    assert len(parsed) == 4
    content = "".join(path.read_text() for path in tmp_path.rglob("*.*") if path.suffix in (".html", ".css", ".js"))
    assert not re.search(r"https?://|@import|url\((?!#)|fetch\(|XMLHttpRequest|WebSocket", content)


def test_the_page_says_what_a_reader_must_know(tmp_path):
    content = page([result(), result(optimizer="<script>alert(1)</script>", dirty=True)], tmp_path)
    assert "laptop stand-in" in content and "stand-in: not the published experiment" in content
    assert "real:digits@0123456789ab" in content
    assert "ompare only the pattern" in content
    assert "suite +task=resnet50 optimizer=kfac seed=3" in content
    assert content.count('title="made with uncommitted changes"') == 1
    assert "<script>alert" not in content and "&lt;script&gt;alert" in content
    assert "cpu · Some CPU · 2 threads" in content
    results = re.findall(r'href="\.\./(raw/[^"]+)"', content)
    assert len(results) == 2
    assert all(json.loads((tmp_path / link).read_text())["schema"] == 1 for link in results)


def test_bytes_memory_tuning_and_evidence_stand_in_each_row(tmp_path):
    measured = {"bytes": {"sent": 4_000_000, "by_name": {}}, "steps": 100, "peak_memory_bytes": 512_000_000}
    content = page([result(**measured), result(seed=1, **measured)], tmp_path)
    assert "512 MB" in content and "40 kB sent a step" in content
    assert "8 trials" in content and "conf/recipe" in content
    assert content.count(">seed 3</a>") == content.count(">seed 4</a>") == 1
    assert "2/2" in content


def test_published_rows_stand_beside_but_are_never_ranked(tmp_path):
    content = page([result(scale="paper", published=["A1-12"])], tmp_path)
    ours, printed = content.split('<section id="published">')
    assert ours.count("<tr") == 2 and 'id="A1-12"' not in ours  # the heading and the one row
    rows = published.find_rows("resnet50")
    assert printed.count('id="A1-12"') == 1 and "Natural Gradient" in printed
    tables = {row.table for row in rows}
    assert printed.count("<caption>") == len(tables) and printed.count("<tr") == len(rows) + len(tables)
    assert "stand-in:" not in content


def test_a_row_has_its_possible_ranks_and_its_ratio_to_the_first(tmp_path):
    content = page([*seeds("kfac", 100, 150, 90), *seeds("sgd", 170, 160, 190)], tmp_path)
    assert "may lead; rank 1 to 2<" in content
    assert re.search(r"may lead; rank 1 to 2; 1\.\d+ × \(1\.\d+ to 2\.\d+; covers 75 %\) the steps of kfac", content)


def test_leaderboard_json_has_ranks_and_ratios(tmp_path):
    results = [*seeds("kfac", *range(100, 108)), *seeds("sgd", *range(200, 208)), *seeds("lamb", 1, kind="interrupted")]
    site(results, tmp_path)
    data = json.loads((tmp_path / "leaderboard.json").read_text())
    places = {
        entry["optimizer"]: [entry[key] for key in ("rank_low", "rank_high", "tier", "ratio")]
        for entry in data["groups"][0]["entries"]
    }
    assert places == {
        "kfac": [1, 1, 1, None],  # the first
        "sgd": [2, 2, 2, pytest.approx(1.97, abs=0.02)],
        "lamb": [None, None, None, None],  # not ranked
    }


def test_failures_and_divergences_are_rows(tmp_path):
    content = page(
        [result(), *seeds("sgd", 1, 2, kind="diverged"), result(optimizer="lamb", kind="failed", targets=[])], tmp_path
    )
    assert content.count("<tr data-") == 3
    assert "2 diverged" in content and "1 failed" in content and content.count("never") >= 2


def test_a_ladder_is_one_section_with_its_easier_targets_in_each_row(tmp_path):
    rung = result()["targets"][0]
    ladder = [rung | {"value": value, "step": step} for value, step in ((80.0, 50), (85.0, 100))]
    content = page([result(targets=ladder)], tmp_path / "up")
    assert content.count('class="ladder"') == 1 and content.count("<tr data-") == 1
    assert "top1&gt;=80: 50" in content and ">top1&gt;=85</a>" in content
    down = [rung | {"metric": "loss", "value": value, "higher_is_better": False} for value in (2.0, 1.0)]
    assert ">loss&lt;=1</a>" in page([result(targets=down)], tmp_path / "down")


def test_results_of_another_ladder_are_shown_too(tmp_path):
    rung = result()["targets"][0]
    other = [rung | {"value": 80.0, "step": 50}]
    content = page([result(), result(optimizer="sgd", targets=other)], tmp_path)
    assert content.count('class="ladder"') == 2 and content.count(">seed 3</a>") == 2


@pytest.mark.slow
def test_every_committed_result_is_evidence_of_a_row(tmp_path):
    results, _ = intake.read_results(sorted((ROOT / "results" / "runs").rglob("*.json")))
    written = site(results, tmp_path)
    linked = {name for content in written.values() for name in re.findall(r'href="\.\./raw/([^"]+)"', content)}
    copies = {path.name for path in (tmp_path / "raw").iterdir()}
    assert copies == linked and len(copies) == len(rank(results).results)
    assert max(len(content.encode()) for content in written.values()) <= 500_000
    check_links(tmp_path)


def test_rows_with_other_communication_modes_are_one_click_away(tmp_path):
    eight = result(optimizer="sgd")
    eight["spec"] |= {"comm": "fp8", "world": 2}
    content = page([result(), result(seed=1), eight], tmp_path)
    shown, folded = content.split('<details class="more">')
    assert 'data-comm="exact"' in shown and 'data-comm="fp8"' not in shown
    assert folded.startswith("<summary>1 row with other") and folded.count('data-comm="fp8"') == 1


def test_a_section_says_what_it_was_measured_on(tmp_path):
    data = {"kind": "generated", "name": "shapes", "identity": "shapes-1/48px/noise0.08", "note": "not photographs"} | {
        "samples": {"train": 8192},
        "skipped": [],
        "label": "shapes (generated)",
    }
    content = page([result(), {**result(), "data": data}], tmp_path)
    assert '<span class="badge">real data</span>' in content and '<span class="badge">generated data</span>' in content
    assert "<code>generated:shapes@shapes-1/48px/noise0.08/8192</code>: not photographs." in content
    assert "laptop stand-in on shapes (generated) · task version 1, model base · batch 64 · tuned" in content


def in_jax(some):
    return {**some, "spec": {**some["spec"], "backend": "jax"}}


def test_the_effect_of_the_framework_stands_in_a_table_of_its_own(tmp_path):
    torch = seeds("kfac", 100, 110, 120)
    jax = [in_jax(some) for some in seeds("kfac", 200, 220, 240)]
    content = page([*torch, *jax], tmp_path)
    table = content.split("Effect of the framework</h3>")[1].split("</table>")[0]
    assert table.count("<tr><th") == 2  # the heading and kfac
    assert re.search(r"<td>2 ×.*n = 3", table)
    assert "Effect of the framework" not in page(torch, tmp_path / "torch")


def test_frameworks_are_averaged(tmp_path):
    torch = [*seeds("kfac", *range(100, 108)), *seeds("sgd", *range(200, 208))]
    jax = [in_jax(some) for some in [*seeds("kfac", *range(300, 308)), *seeds("sgd", *range(390, 398))]]
    index = site([*torch, *jax], tmp_path)["index.html"]
    assert '<p class="good">kfac leads; sgd needs 1.6' in index
    against = [in_jax(some) for some in [*seeds("sgd", *range(100, 108)), *seeds("kfac", *range(200, 208))]]
    index = site([*torch, *against], tmp_path / "against")["index.html"]
    assert "<p>kfac or sgd may lead" in index


def test_leaderboard_json_is_versioned_and_has_the_seeds_of_each_row(tmp_path):
    site([*MIXED, result(optimizer="lamb", kind="diverged")], tmp_path)
    document = json.loads((tmp_path / "leaderboard.json").read_text(), parse_constant=pytest.fail)
    assert document["schema"] == 2
    entries = [entry for group in document["groups"] for entry in group["entries"]]
    assert len(entries) == 7
    kfac = next(entry for entry in entries if entry["optimizer"] == "kfac" and len(entry["results"]) == 5)
    assert kfac["seeds"]["4"] == {"reached": True, "spent": 110, "earliest": 110}
    (lamb,) = (entry for entry in entries if entry["optimizer"] == "lamb")
    assert lamb["seeds"] == {"3": {"reached": False, "spent": None, "earliest": None}}


def test_the_page_of_documentation_names_every_field_of_leaderboard_json(tmp_path):
    site(MIXED, tmp_path)
    described = (ROOT / "docs" / "leaderboard.md").read_text()
    document = json.loads((tmp_path / "leaderboard.json").read_text())
    group = document["groups"][0]
    entry = group["entries"][0]
    for fields in (document, group, entry, entry["steps"], entry["timings"][0], entry["results"][0]):
        assert [name for name in fields if f"`{name}`" not in described] == []


# ---------------------------------------------------------------------------------------------- large and hostile
def test_many_rows_are_split_into_parts_below_half_a_megabyte(tmp_path):
    many = [result(lr=0.001 * lr, optimizer=f"method{lr % 40}", step=100 + lr) for lr in range(1, 601)]
    written = site(many, tmp_path)
    parts = [name for name in written if name.startswith("task/")]
    assert len(parts) > 1 and max(len(content.encode()) for content in written.values()) <= 500_000
    assert sum(written[name].count("<tr data-") for name in parts) == 600
    check_links(tmp_path)


# ---------------------------------------------------------------------------------------------- the command


def test_a_doubt_stands_beside_the_results_that_it_is_about(tmp_path):
    about = Doubt(
        name="few",
        who="<b>somebody</b>",
        date="2026-11-23",
        row={"task": "resnet50", "optimizer": "kfac"},
        finding="The images are too few to tell.",
        status="confirmed",
        answer="True, as the README says.",
    )
    content = page([result(), result(optimizer="sgd")], tmp_path, doubts=[about])
    assert content.count("1 doubt, below") == 1
    assert "The images are too few to tell." in content and "Answer: True, as the README says." in content
    assert "&lt;b&gt;somebody" in content and "<b>somebody" not in content
    assert "doubt" not in page([result(optimizer="sgd")], tmp_path, doubts=[about]).lower()
