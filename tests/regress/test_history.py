"""`suite regress --history`: change points with their error rates, series by machine, and what is no report."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from calibration.changes import rate

from suite.contract import UserError
from suite.regress import history
from suite.regress.changes import LEAST, find_changes

Call = Callable[..., tuple[int, str]]
MACHINE = "a processor, 2 cores"


def levels(*segments: tuple[int, float], noise: float = 0.02, seed: int = 0) -> list[float]:
    """Values around some levels, each (number of values, level)."""
    rng = np.random.default_rng(seed)
    return [float(level * np.exp(noise * rng.normal())) for count, level in segments for _ in range(count)]


def test_changes_are_found_where_they_are() -> None:
    first, second = find_changes(levels((20, 1.0), (15, 1.2), (25, 0.9)))
    assert abs(first.index - 20) <= 1 and abs(second.index - 35) <= 1
    assert first.before == pytest.approx(1.0, rel=0.02) and first.after == pytest.approx(1.2, rel=0.02)
    assert second.before == first.after and second.after == pytest.approx(0.9, rel=0.02)
    assert max(first.p, second.p) <= 0.01


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 40, levels((LEAST, 1.0), (LEAST - 1, 2.0))])
def test_short_and_constant_series_have_no_changes(values: list[float]) -> None:
    assert find_changes(values) == []


def test_a_single_late_run_is_no_change() -> None:
    values = levels((40, 1.0))
    values[25] = 1.5
    assert find_changes(values) == []


def test_the_unit_does_not_matter() -> None:
    values = levels((15, 1.0), (15, 1.3))
    scaled = find_changes([1e3 * value for value in values])
    assert [change.index for change in scaled] == [change.index for change in find_changes(values)]


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_error_rates(correlation: float) -> None:
    """False alarms are rare even where neighbours resemble each other; 62 % is a popular tool's rate there."""
    assert rate(60, correlation, 0.0, series=100, seed=1) <= 0.1
    assert rate(60, correlation, float(np.log(1.1)), series=30, seed=2) >= (0.3 if correlation else 0.95)


def report(path: Path, day: int, value: float, *, machine: str = MACHINE, commit: str | None = "c0ffee" * 7) -> None:
    """A report with one benchmark."""
    sides = {"A": {"typed": "HEAD~1", "commit": None}, "B": {"typed": ".", "commit": commit}}
    entry = {"name": "mine", "run": ["+task=tiny"], "metric": "step", "first": [[1.0, value]] * 3, "second": []}
    content = {"date": f"2026-01-{day:02}T00:00:00+00:00", "machine": machine, "sides": sides, "benchmarks": [entry]}
    path.write_text(json.dumps(content))


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """A folder with 24 reports of a step that becomes 20 % slower, and one of another machine."""
    folder = tmp_path / "reports"
    folder.mkdir()
    for day, value in enumerate(levels((12, 0.1), (12, 0.12)), start=1):
        report(folder / f"{99 - day}.json", day, value, commit=f"{day:040x}" if day != 2 else None)
    report(folder / "other.json", 30, 5.0, machine="another")
    return folder


def test_a_history_is_printed_drawn_and_written(reports: Path, suite: Call, tmp_path: Path) -> None:
    drawn, written = tmp_path / "history.svg", tmp_path / "history.json"
    code, text = suite("regress", "--history", str(reports), "--svg", str(drawn), "--json", str(written))
    assert code == 0 and f"{MACHINE} · 24 reports, 2026-01-01 to 2026-01-24" in text
    assert "2026-01-13 " + f"{13:040x}"[:12] in text and "(+19" in text and text.count("no change") == 1
    picture = ElementTree.fromstring(drawn.read_text())
    circles = [part for part in picture.iter() if part.tag.endswith("circle")]
    assert len(circles) == 25 and sum(part.get("class") == "change" for part in picture.iter()) == 1
    series = {entry["machine"]: entry for entry in json.loads(written.read_text())["history"]}
    assert [change["index"] for change in series[MACHINE]["changes"]] == [12] and len(series["another"]["points"]) == 1
    assert [point["date"] for point in series[MACHINE]["points"]] == sorted(
        point["date"] for point in series[MACHINE]["points"]
    )


def test_text_from_reports_is_escaped(tmp_path: Path, suite: Call) -> None:
    report(tmp_path / "a.json", 1, 1.0, machine="<script>alert(1)</script>")
    assert suite("regress", "--history", str(tmp_path / "a.json"), "--svg", str(tmp_path / "a.svg"))[0] == 0
    assert "<script" not in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize(
    "content, says", [("{}", "no 'sides'"), ("[]", "not a report"), ("{", "not a report"), ("\xff", "codec")]
)
def test_what_is_no_report_is_rejected(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=says):
        history.read_history([path])
    with pytest.raises(UserError, match="no report there"):
        history.read_history([tmp_path / "empty"] if (tmp_path / "empty").mkdir() is None else [])


def test_a_side_or_a_history_is_needed(suite: Call) -> None:
    code, text = suite("regress")
    assert code == 2 and "name a side" in text


def test_a_report_of_the_command_is_read(tmp_path: Path) -> None:
    """Fields that `--json` writes are those that the history reads."""
    from suite.regress import show
    from suite.regress.benchmarks import Benchmark
    from suite.regress.session import Limits, Outcome
    from suite.regress.sides import Side

    def side(name: str) -> Side:
        return Side(name, Path("python"), tmp_path)

    outcome = Outcome(Benchmark("mine", ("+task=tiny",)), first=[(1.0, 2.0), (1.0, 4.0), (1.0, 3.0)])
    path = tmp_path / "report.json"
    path.write_text(json.dumps(show.as_dict((side("HEAD~1"), side(".")), [outcome], Limits())))
    [series] = history.read_history([path])
    assert (series.benchmark.name, series.benchmark.metric, series.points[0].value) == ("mine", "step", 3.0)
    assert series.machine and list(history.format_history([series]))[1].strip() == "no change"
