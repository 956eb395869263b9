"""`suite board`: which results it reads, the files it writes, and its server."""

import json
import threading
import urllib.request
from pathlib import Path

import pytest
from boards import result, site, standing
from test_site import check_links

from suite.board.site import text
from suite.contract import UserError
from suite.verbs import board as verb

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "CON", "ä" * 300, "a.b", "A", "x\0y", "index"])
def test_a_name_from_outside_never_leaves_the_folder(name, tmp_path):
    other = {**result(), "spec": {**result()["spec"], "task": name}}
    site([other, result()], tmp_path / "site")
    assert {path.parent.name for path in (tmp_path / "site").rglob("*.html")} == {"site", "task"}
    assert list(tmp_path.iterdir()) == [tmp_path / "site"]
    check_links(tmp_path / "site")


def test_two_names_never_share_a_file():
    names = ["a", "A", "a/", "a-", "/a", "a.", "", "task", "a" * 60, "a" * 61, "a" * 62]
    assert len({text.make_slug(name) for name in names}) == len(names)


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
        "reading 4 files",
        *(f"left out runs/{name}.json" for name in ("broken", "other", "short")),
    ]
    assert (
        "short.json: not a result: " in printed.err
        and "are missing" in printed.err
        and "its schema is 7" in printed.err
    )
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
