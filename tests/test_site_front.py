"""Front page of the leaderboard, as text."""

import re

from boards import result, seeds, site, standing

from suite.board.design import Design
from suite.board.news import Addition


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
    assert "exploratory, 8 seeds; 24 results in all" in index


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
    assert [re.sub(r"<[^>]*>", "", line).strip() for line in doubts.split("<li>")[1:5]] == [
        "Optimizers that are not ranked: fewer than three seeds, or no seed reached the target: bert on digits",
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
