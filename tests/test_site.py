"""The pages of the leaderboard, as text; tests/test_site_browser.py looks at them in a browser."""

import json
import re
import threading
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import pytest
from boards import GOLDEN, MIXED, files, golden, page, result, site, standing

from suite import published
from suite.board.design import Design
from suite.board.groups import rank_results
from suite.board.news import Addition
from suite.board.site import text
from suite.contract import UserError
from suite.entries import intake
from suite.entries.doubts import Doubt
from suite.verbs import board as verb

ROOT = Path(__file__).parents[1]


class Parsed(HTMLParser):
    """The links and ids of a page, and its open elements, which must be closed in order."""

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
    measured = {"bytes": {"sent": 4_000_000}, "steps": 100, "peak_memory_bytes": 512_000_000}
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


def test_the_front_page_leads_to_every_ladder_tuned_ones_first(tmp_path):
    other = {**result(optimizer="sgd"), "spec": {**result()["spec"], "task": "bert"}}
    untuned = result(kind="exhausted", trials=0)
    index = site([untuned, result(), result(optimizer="sgd", step=200), other], tmp_path)["index.html"]
    links = re.findall(r'href="(task/\w+\.html#[^"]+)"', index.split('<div class="columns">')[0])
    assert len(links) == len(set(links)) == 3
    assert index.count('class="card"') == 1  # the only ladder with two optimizers; the others follow
    assert index.index("laptop stand-in on digits (real), tuned") < index.index(
        "laptop stand-in on digits (real), not tuned"
    )
    assert "3 results of" not in index and "4 results of 2 tasks" in index


def seeds(optimizer, *spent, **more):
    return [result(seed=seed, step=step, optimizer=optimizer, **more) for seed, step in enumerate(spent)]


def test_the_front_page_names_a_leader_only_if_intervals_say_so(tmp_path):
    clear = [*seeds("kfac", *range(100, 108)), *seeds("sgd", *range(200, 208))]
    index = site(clear, tmp_path / "clear")["index.html"]
    assert re.search(r'<p class="good">kfac leads; sgd needs 1\.9\d × \(1\.9\d to [\d.]+\) the steps of kfac\.<', index)
    near = [*seeds("kfac", 100, 150, 90), *seeds("sgd", 120, 110, 190)]
    index = site(near, tmp_path / "near")["index.html"]
    said = "Too few seeds to rank; kfac was first; sgd needs 1.23 × (0.733 to 2.11; covers 75 %) the steps of kfac."
    assert f"<p>{said}</p>" in index
    assert "exploratory, 3 seeds: too few to rank" in index


def test_the_story_is_about_those_that_are_behind(tmp_path):
    near = [*seeds("kfac", *[100, 150, 90, 120] * 2), *seeds("lamb", *[120, 110, 130, 100] * 2)]
    index = site([*near, *seeds("sgd", *range(500, 508), budget=900)], tmp_path)["index.html"]
    assert re.search(r"kfac or lamb may lead; sgd needs 4\.\d+ × \([\d. to]+\) the steps of kfac\.<", index)
    assert "exploratory, 8 seeds, 24 results" in index


def test_a_registered_ladder_says_so(tmp_path, monkeypatch):
    design = Design("resnet50", "digits", ("kfac", "sgd"), ("torch",), (3, 4, 5, 6, 7, 8, 9), (4, 7), 10)
    monkeypatch.setattr("suite.board.groups.find_design", lambda task, *_, **__: design if task == "resnet50" else None)
    some = [*seeds("kfac", 100, 101, 102, 103), *seeds("sgd", 200, 201, 202, 203)]
    as_registered = [{**one, "spec": {**one["spec"], "comm": "float32"}} for one in some]
    index = site(as_registered, tmp_path / "as")["index.html"]
    assert "registered, compared after 4 and 7 seeds" in index and "not run as registered" not in index
    index = site(some, tmp_path / "other")["index.html"]  # with another communication mode
    assert "exploratory, 4 seeds: too few to rank" in index
    assert re.search(
        r'Registered, but not run as registered: <a href="task/resnet50[^>]*>resnet50 on digits</a>', index
    )


def test_what_is_in_doubt_is_named_with_its_ladders(tmp_path):
    late = [*seeds("kfac", *range(100, 108)), *seeds("sgd", *[*range(200, 207), 600], budget=900)]
    other = [{**one, "spec": {**one["spec"], "task": "bert"}} for one in [*late, result(optimizer="lamb", dirty=True)]]
    index = site([*late, *other], tmp_path, unreadable=["a.json: <b>"])["index.html"]
    doubts = index.split('<h2 id="doubts">')[1].split("</section>")[0]
    assert [re.sub(r"<[^>]*>", "", line).strip() for line in doubts.split("<li>")[1:4]] == [
        "Late seeds or misses: the ranks are less certain than 95 %: bert on digits, resnet50 on digits",
        "Rows made with uncommitted changes: bert on digits",
        "1 file left out",
    ]
    assert "<b>" not in doubts
    certain = site([*seeds("kfac", *range(100, 108)), *seeds("sgd", *range(200, 208))], tmp_path / "certain")
    (only,) = certain["index.html"].split('<h2 id="doubts">')[1].split("</section>")[0].split("<li>")[1:]
    assert only.startswith("No ladder<")


def test_what_is_new_names_contributor_and_commit(tmp_path):
    news = [Addition("2026-11-25", "<b>Ann", "0123456789abcdef", {"resnet50": 2, "gone": 1})]
    new = site([result()], tmp_path, news=news)["index.html"].split('<h2 id="news">')[1].split("</section>")[0]
    assert '<a href="task/resnet50.html">resnet50</a> (2), gone (1)' in new
    assert "&lt;b&gt;Ann, commit <code>0123456789ab</code>" in new
    assert "nobody can tell" in site([result()], tmp_path / "none")["index.html"]


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
        "lamb": [1, 3, 1, None],
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
    assert copies == linked and len(copies) == len(rank_results(results).results)
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
        "samples": {"train": 8192}
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


def test_each_claim_is_one_cell_of_the_front_page_with_its_outcome_in_words_and_signs(tmp_path):
    known = [
        standing(),
        standing(id="seen", verdict="out of reach here", pattern="pattern seen"),
        standing(id="third", paper="b", verdict="contradicted", pattern="pattern seen"),
    ]
    written = site([result()], tmp_path, standings=known)
    wall = written["index.html"].split('<h2 id="claims">')[1].split("</section>")[0]
    assert [re.sub(r"<[^>]*>", "", line) for line in wall.splitlines() if line.startswith("<h3>")] == [
        "✗ contradicted 1",
        "(✓) stand-in: pattern seen 1",
        "? undecided 1",
    ]
    assert re.findall(r'class="cell (\w+)" href="claims.html#([\w-]+)" title="[^"<]+">(.+)</a>', wall) == [
        ("bad", "third", "✗ third"),
        ("good", "seen", "(✓) seen"),
        ("open", "kfac-fewer-steps", "? kfac-fewer-steps"),
    ]
    claims = written["claims.html"]
    assert claims.count("<article") == 3 and "K-FAC needs &lt;fewer&gt; steps." in claims
    assert "0.58" in claims and "0.4 to 0.7" in claims and "about 2 more would decide" in claims
    assert "<td>0.3 to 0.9</td>" in claims


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


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "CON", "", "ä" * 300, "a.b", "A", "x\0y", "index"])
def test_a_name_from_outside_never_leaves_the_folder(name, tmp_path):
    other = {**result(), "spec": {**result()["spec"], "task": name}}
    site([other, result()], tmp_path / "site")
    assert {path.parent.name for path in (tmp_path / "site").rglob("*.html")} == {"site", "task"}
    assert list(tmp_path.iterdir()) == [tmp_path / "site"]
    check_links(tmp_path / "site")


def test_two_names_never_share_a_file():
    names = ["a", "A", "a/", "a-", "/a", "a.", "", "task", "a" * 60, "a" * 61, "a" * 62]
    assert len({text.make_slug(name) for name in names}) == len(names)


# ---------------------------------------------------------------------------------------------- the command
def test_the_command_names_what_it_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "result.json").write_text(json.dumps(result()))
    (tmp_path / "runs" / "one" / "header.json").write_text("{}")
    (tmp_path / "runs" / "one" / "checkpoint").mkdir()
    (tmp_path / "runs" / "one" / "checkpoint" / "index.json").write_text('{"schema": 2}')
    (tmp_path / "runs" / "broken.json").write_text("{")
    (tmp_path / "runs" / "other.json").write_text('{"schema": 7}')
    (tmp_path / "runs" / "short.json").write_text('{"schema": 1, "spec": {}}')
    monkeypatch.setattr(verb, "_shipped", lambda: tmp_path / "absent")
    assert verb.main(["--out", "page", "--without-claims"]) == 0
    printed = capsys.readouterr()
    assert "page/index.html: 3 pages, 1 groups from 1 results, 3 files left out" in printed.out
    assert [line.split(":")[0] for line in printed.err.splitlines()] == [
        f"left out runs/{name}.json" for name in ("broken", "other", "short")
    ]
    assert "short.json: not a result: spec.task is missing" in printed.err and "its schema is 7" in printed.err
    assert "runs/broken.json" in (tmp_path / "page" / "index.html").read_text()


def test_no_results_make_an_empty_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verb, "_shipped", lambda: tmp_path / "absent")
    assert verb.main(["--without-claims"]) == 0
    assert "No results yet" in (tmp_path / "site" / "index.html").read_text()
    with pytest.raises(UserError, match="no such folder: elsewhere"):
        verb.main(["--results", "elsewhere"])


def test_outside_a_checkout_the_suites_own_results_are_used_and_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = tmp_path / "package"
    for place, some in ((shipped, result(seed=4)), (tmp_path / "runs", result(seed=5))):
        place.mkdir()
        (place / "one.json").write_text(json.dumps(some))
    monkeypatch.setattr(verb, "_shipped", lambda: shipped)
    assert verb.main(["--without-claims"]) == 0
    printed = capsys.readouterr().out
    assert f"using the suite's own results: {shipped}\n" in printed and "from 2 results" in printed
    assert verb.main(["--without-claims", "--results", "runs"]) == 0
    printed = capsys.readouterr().out
    assert "suite's own" not in printed and "from 1 results" in printed


def test_in_a_checkout_its_own_results_are_used(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    committed, shipped = tmp_path / "results" / "runs", tmp_path / "package"
    for place, seeds in ((committed, (4,)), (shipped, (5, 6))):
        place.mkdir(parents=True)
        for seed in seeds:
            (place / f"{seed}.json").write_text(json.dumps(result(seed=seed)))
    monkeypatch.setattr(verb, "_shipped", lambda: shipped)
    assert verb.main(["--without-claims"]) == 0
    printed = capsys.readouterr().out
    assert "suite's own" not in printed and "from 1 results" in printed


def test_the_suites_own_results_are_those_of_the_repository():
    assert verb._shipped().resolve() == ROOT / "results" / "runs"


def test_the_command_shows_the_claims(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verb, "_shipped", lambda: tmp_path / "absent")
    monkeypatch.setattr(verb, "list_standings", lambda: [standing()])
    assert verb.main([]) == 0
    assert "K-FAC needs &lt;fewer&gt; steps." in (tmp_path / "site" / "claims.html").read_text()


def test_the_server_shows_the_page(tmp_path):
    site([result()], tmp_path)
    with verb._server(tmp_path, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=5) as answer:
                assert b"Who leads" in answer.read()
        finally:
            server.shutdown()
            thread.join()


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
