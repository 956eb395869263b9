"""`suite report`: one page about runs, as HTML and Markdown."""

import html.parser
import json
import os
from pathlib import Path

import conftest
import pytest
from tiny_runs import finished

from suite.contract import UserError
from suite.record.record import make_result, read_result
from suite.track import run_report
from suite.verbs import report as verb

RUNS = conftest.TESTS.parent / "results" / "runs"
GOLDEN = conftest.TESTS / "golden" / "report"
SGD = next(RUNS.glob("resnet50/shapes-sgd-torch-s0-*.json"))
TREES = sorted(RUNS.rglob("*.json"))


class Tags(html.parser.HTMLParser):
    """Collects the open elements; fails at an end tag that closes another element."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "br", "img", "path", "use", "rect", "line", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("one") / "run", "max_steps=4", "eval_every=2")


@pytest.mark.parametrize("kind", ["md", "html"])
def test_a_committed_result_gives_the_golden_page(kind: str):
    """Without claims, whose verdicts change. After a wanted change, run this file with GOLDEN=write."""
    text = run_report.render_page([run_report.make_report(read_result(SGD))], kind)
    if os.environ.get("GOLDEN") == "write":
        (GOLDEN / f"sgd.{kind}").write_text(text)
    assert text == (GOLDEN / f"sgd.{kind}").read_text()


@pytest.mark.slow
def test_every_committed_result_has_a_page():
    for path in TREES:
        text = run_report.render_page([run_report.make_report(read_result(path))], "html")
        tags = Tags()
        tags.feed(text)
        assert tags.open == []


def test_a_page_has_the_curves_the_published_rows_the_claims_and_the_environment(tmp_path, run):
    out, of_ladder = tmp_path / "page.html", next(RUNS.glob("resnet50/shapes-sgd-torch-s20-*.json"))
    assert verb.main([str(run), str(of_ladder), "--out", str(out)]) == 0
    text = out.read_text()
    assert text.count("<svg") == 1  # a result without its log has no curves
    assert text.count("<h1>") == 2
    assert "Claim osawa2020-fewer-steps" in text and "A1-01" in text and "AMD EPYC" in text
    assert "http" not in text.replace("http://www.w3.org/", "").replace("http://purl.org", "").replace(
        "http://creativecommons", ""
    )


def test_text_of_a_result_is_escaped():
    result = json.loads(SGD.read_text())
    result["command"] = "<script>alert(1)</script> | \n# heading"
    page = run_report.render_page([run_report.make_report(make_result(result), claims=["<b>bold</b>"])], "html")
    assert "<script>" not in page and "<b>" not in page
    page = run_report.render_page([run_report.make_report(make_result(result))], "md")
    assert "<script>" not in page and "\n# heading" not in page and "\\|" in page


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "nowhere: no such file or folder; name a finished run"),
        ([str(SGD), "--out", "page.pdf"], "must end in .html or .md"),
        ([str(conftest.TESTS / "conftest.py")], "line 1, column 3: not JSON: Extra data"),
        ([str(SGD.parent)], "results; name one of them, such as "),
    ],
)
def test_what_cannot_be_reported_is_rejected(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        verb.main(arguments)
