import json
import math
import re
import threading
import urllib.request

import pytest

from suite import board, published
from suite import page as written
from suite.contract import UserError
from suite.stats import Observation, Summary, median_interval, summarize, wilson
from suite.verbs import board as verb

TARGET = {"metric": "top1", "value": 85.0, "higher_is_better": True}


def result(
    *,
    seed=0,
    step=100,
    kind="reached",
    budget=400,
    optimizer="kfac",
    lr=0.1,
    trials=8,
    version="1",
    scale="laptop",
    device="cpu",
    dirty=False,
    execution="a",
    targets=None,
    published=(),
):
    """A result as the engine writes it; two seconds a step."""
    reached = kind == "reached"
    crossing = {"reached": reached, "step": step if reached else None, "train_seconds": 2.0 * step if reached else None}
    last = step if reached else budget
    return {
        "schema": 1,
        "hash": f"{optimizer}{lr}",
        "execution_id": execution,
        "spec": {
            "task": "resnet50",
            "variant": "base",
            "scale": scale,
            "recipe": "tuned",
            "optimizer": optimizer,
            "comm": "exact",
            "backend": "torch",
            "world": 1,
            "batch_size": 64,
            "seed": seed,
            "config": {
                "optimizer": {"name": optimizer, "learning_rate": lr},
                "seed": seed,
                "run_dir": f"runs/{seed}",
                "device": device,
            },
        },
        "task_version": version,
        "data": {"kind": "real", "name": "digits", "identity": "0123456789abcdef", "samples": {}, "note": ""},
        "segments": [{"step": 0, "resumed": False, "device": device}],
        "environment": {"cpu": "Some CPU", "commit": "abc", "dirty": dirty, "threads": 2},
        "tuning": {"source": "conf/recipe", "trials": trials},
        "precision": "float32",
        "curve": [{"step": last, "samples": 64 * last, "train_seconds": 2.0 * last, "metrics": {"top1": 50.0}}],
        "targets": [{**TARGET, **crossing}] if targets is None else targets,
        "outcome": {"kind": kind},
        "published": list(published),
        "command": f"suite +task=resnet50 optimizer={optimizer} seed={seed}",
    }


def page(results, folder, **more):
    written.render(board.rank(results, **more), folder)
    return (folder / "index.html").read_text()


def steps(entry) -> Summary:
    assert entry.steps is not None
    return entry.steps


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


MIXED = [
    *(result(seed=seed, step=100 + 10 * seed) for seed in range(5)),
    *(result(seed=seed, step=200 + 10 * seed, optimizer="sgd") for seed in range(3)),
    result(seed=3, optimizer="sgd", kind="diverged"),
    result(optimizer="sgd", lr=0.5, kind="exhausted"),
    result(trials=0),
    result(version="2"),
    result(scale="paper", optimizer="shampoo", dirty=True, published=["A1-12"]),
]


def test_equal_results_give_equal_bytes_in_any_order_and_number(tmp_path):
    page(MIXED, tmp_path / "a")
    page(MIXED, tmp_path / "b")
    page([*reversed(MIXED), *MIXED], tmp_path / "c")
    first = files(tmp_path / "a")
    assert len(first) == len(MIXED) + 2
    assert first == files(tmp_path / "b") == files(tmp_path / "c")


def test_rows_are_ranked_by_the_median_of_steps():
    group = next(group for group in board.rank(MIXED).groups if group.tuned and len(group.entries) > 1)
    ranks = [(entry.rank, entry.optimizer, entry.settings["optimizer.learning_rate"]) for entry in group.entries]
    assert ranks == [(1, "kfac", 0.1), (2, "sgd", 0.1), (None, "sgd", 0.5)]
    kfac, sgd, _ = group.entries
    assert (steps(kfac).median, steps(kfac).n, kfac.timings[0].seconds.median) == (120, 5, 240.0)
    assert (steps(sgd).median, steps(sgd).n, steps(sgd).hits) == (215, 4, 3)  # of 200, 210, 220 and never


def test_equal_medians_share_a_rank_in_a_fixed_order():
    results = [result(), result(optimizer="sgd"), result(optimizer="adam", step=300)]
    for some in (results, results[::-1]):
        (group,) = board.rank(some).groups
        assert [(entry.rank, entry.optimizer) for entry in group.entries] == [(1, "kfac"), (1, "sgd"), (3, "adam")]


def test_rows_whose_median_misses_come_last_by_hit_rate():
    misses = [result(seed=seed, optimizer=name, kind="exhausted") for name in ("adam", "sgd") for seed in (1, 2)]
    (group,) = board.rank([*misses, result(optimizer="sgd"), result(step=300)]).groups
    assert [(entry.rank, entry.optimizer) for entry in group.entries] == [(1, "kfac"), (None, "sgd"), (None, "adam")]


def test_the_median_ranks_before_the_hit_rate():
    half = [result(seed=1, step=50), result(seed=2, step=60), result(seed=3, kind="diverged")]
    (group,) = board.rank([*half, result(optimizer="sgd")]).groups
    assert [entry.optimizer for entry in group.entries] == ["kfac", "sgd"]


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (result(trials=0), "tuned"),
        (result(version="2"), "task_version"),
        (result(scale="gpu"), "scale"),
        ({**result(), "data": {**result()["data"], "identity": "other"}}, "data"),
        ({**result(), "spec": {**result()["spec"], "batch_size": 128}}, "batch_size"),
        ({**result(), "spec": {**result()["spec"], "variant": "big"}}, "variant"),
        (result(targets=[{**result()["targets"][0], "value": 90.0}]), "target"),
    ],
)
def test_unlike_conditions_never_rank_together(other, differs):
    groups = board.rank([result(), other]).groups
    assert len(groups) == 2
    assert getattr(groups[0], differs) != getattr(groups[1], differs)
    assert all(len(group.entries) == 1 for group in groups)


def test_each_rung_of_the_ladder_is_a_group():
    ladder = [{**TARGET, "value": 80.0, "reached": True, "step": 50, "train_seconds": 100.0}, *result()["targets"]]
    groups = board.rank([result(targets=ladder)]).groups
    assert [(group.target, steps(group.entries[0]).median) for group in groups] == [
        ({**TARGET, "value": 80.0}, 50),
        (TARGET, 100),
    ]


def test_diverged_and_failed_runs_are_shown_and_count(tmp_path):
    failed = result(seed=2, kind="failed", targets=[])
    results = [result(), result(seed=1, kind="diverged"), failed]
    (group,) = board.rank(results).groups
    (entry,) = group.entries
    assert entry.misses == {"diverged": 1, "failed": 1}
    assert (entry.rank, steps(entry).hits, steps(entry).n, steps(entry).median) == (None, 1, 3, None)
    assert steps(entry).beyond is None  # what they spent before says nothing
    text = page(results, tmp_path)
    assert "1 diverged" in text and "1 failed" in text and "never" in text


def test_only_failures_still_make_a_row():
    (group,) = board.rank([result(kind="failed", targets=[])]).groups
    assert group.target is None and "no target" in group.title
    assert group.entries[0].misses == {"failed": 1}


def test_a_miss_is_more_than_its_budget(tmp_path):
    text = page([result(kind="exhausted", budget=1400)], tmp_path)
    assert "&gt; 1,400" in text and "0/1" in text


def test_interrupted_runs_are_shown_but_tell_nothing(tmp_path):
    (group,) = board.rank([result(), result(seed=1, kind="interrupted")]).groups
    assert (steps(group.entries[0]).n, group.entries[0].misses) == (1, {"interrupted": 1})
    (group,) = board.rank([result(kind="interrupted")]).groups
    assert group.entries[0].steps is None
    text = page([result(kind="interrupted")], tmp_path)
    assert "no finished run" in text and "1 interrupted" in text


def test_repeats_of_a_seed_are_one_seed():
    repeats = [result(step=step, execution=str(step)) for step in (90, 100, 500)]
    entry = board.rank([*repeats, result(seed=1, step=300)]).groups[0].entries[0]
    assert (steps(entry).n, steps(entry).median, len(entry.results)) == (2, 200, 4)


def test_a_row_names_only_the_settings_that_set_it_apart():
    plain, fast = result(), result(optimizer="sgd", lr=0.5)
    (group,) = board.rank([plain, fast]).groups
    assert [entry.settings for entry in group.entries] == [
        {"optimizer.learning_rate": 0.1},
        {"optimizer.learning_rate": 0.5},
    ]
    assert board.rank([plain]).groups[0].entries[0].settings == {}


def test_a_run_resumed_elsewhere_says_so():
    segments = [{"step": 0, "device": "cpu"}, {"step": 5, "device": "H200"}, {"step": 7, "device": "cpu"}]
    entry = board.rank([{**result(), "segments": segments}]).groups[0].entries[0]
    assert entry.timings[0].machine == "cpu then H200 · Some CPU · 2 threads"


def test_a_result_without_a_commit_is_marked():
    unknown = result()
    unknown["environment"] |= {"commit": None, "dirty": None}
    assert board.rank([unknown]).groups[0].entries[0].dirty
    assert not board.rank([result()]).groups[0].entries[0].dirty


def test_seconds_are_kept_apart_by_machine():
    entry = board.rank([result(), result(seed=1, step=300, device="H200")]).groups[0].entries[0]
    assert steps(entry).median == 200
    assert {timing.machine.split(" · ")[0]: timing.seconds.median for timing in entry.timings} == {
        "cpu": 200,
        "H200": 600,
    }


def test_page_says_what_a_reader_must_know(tmp_path):
    text = page([result(), result(optimizer="<script>alert(1)</script>", dirty=True)], tmp_path)
    assert "laptop stand-in" in text
    assert "real:digits@0123456789ab" in text
    assert "only the pattern may be compared" in text
    assert "suite +task=resnet50 optimizer=kfac seed=0" in text
    assert text.count('title="not made on a clean commit"') == 1
    assert "<script>alert" not in text
    assert "cpu · Some CPU · 2 threads" in text
    for link in re.findall(r'href="(raw/[^"]+)"', text):
        assert json.loads((tmp_path / link).read_text())["schema"] == 1


def test_published_rows_stand_beside_but_are_never_ranked(tmp_path):
    text = page([result(scale="paper", published=["A1-12"])], tmp_path)
    ours, printed = text.split("<details><summary>all 190 published rows of resnet50</summary>")
    assert ours.count("<tr>") == 2 and "<td>A1-12</td>" not in ours  # the heading and the one row
    assert printed.count("<td>A1-12</td>") == 1 and "Natural Gradient" in printed
    tables = {row.table for row in published.rows_for("resnet50")}
    assert printed.count("<h4>") == len(tables) and printed.count("<tr") == 190 + len(tables)
    assert "stand-in:" not in text


def test_the_contents_lead_to_every_section_and_measured_rows_come_first(tmp_path):
    other = {**result(optimizer="sgd"), "spec": {**result()["spec"], "task": "bert"}}
    text = page([result(), result(optimizer="sgd", step=200), other, result(kind="exhausted", trials=0)], tmp_path)
    contents = text.split("<nav")[1].split("</nav>")[0]
    links = re.findall(r'href="#([^"]+)"', contents)
    assert len(links) == len(set(links)) == 2 + 3 + 1  # tasks, sections, published rows
    assert all(text.count(f'id="{link}"') == 1 for link in links)
    assert "soonest by kfac (100 steps)" in contents and "not reached" in contents
    assert text.rindex("<th>steps to target</th>") < text.index("published rows of bert")


def test_a_ladder_is_one_section_with_its_hardest_target_open(tmp_path):
    rung = result()["targets"][0]
    ladder = [rung | {"value": value, "step": step} for value, step in ((80.0, 50), (85.0, 100))]
    down = [rung | {"metric": "loss", "value": value, "higher_is_better": False} for value in (2.0, 1.0)]
    text = page([result(targets=ladder)], tmp_path / "up")
    assert text.count("<section") == 1 and text.count("<th>rank</th>") == 2
    opened, closed = text.split("<section")[1].split("</section>")[0].split("<details id=")
    assert "<h4>top1&gt;=85</h4>" in opened and "<summary>top1&gt;=80:\nkfac 50 steps</summary>" in closed
    assert "<h4>loss&lt;=1</h4>" in page([result(targets=down)], tmp_path / "down")


def test_a_section_says_what_it_was_measured_on(tmp_path):
    data = {"kind": "generated", "name": "shapes", "identity": "shapes-1/48px/noise0.08", "note": "not photographs"}
    text = page([result(), {**result(), "data": data}], tmp_path)
    assert '<span class="badge">real data</span>' in text and '<span class="badge">generated data</span>' in text
    assert "<code>generated:shapes@shapes-1/48px/noise0.08</code>: not photographs." in text
    assert "laptop stand-in on shapes (generated) · task version 1, model base · batch 64 · tuned" in text


def test_leaderboard_json_is_versioned_and_strict(tmp_path):
    page(MIXED, tmp_path)
    document = json.loads((tmp_path / "leaderboard.json").read_text(), parse_constant=pytest.fail)
    assert document["schema"] == 1
    assert sum(len(group["entries"]) for group in document["groups"]) == 6


def test_command_line_names_what_it_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "result.json").write_text(json.dumps(result()))
    (tmp_path / "runs" / "one" / "header.json").write_text("{}")
    (tmp_path / "runs" / "broken.json").write_text("{")
    (tmp_path / "runs" / "other.json").write_text('{"schema": 7}')
    (tmp_path / "runs" / "short.json").write_text('{"schema": 1, "spec": {}}')
    assert verb.main(["--out", "page"]) == 0
    printed = capsys.readouterr()
    assert "page/index.html: 1 groups from 1 results, 3 files left out" in printed.out
    assert [line.split(":")[0] for line in printed.err.splitlines()] == [
        f"left out runs/{name}.json" for name in ("broken", "other", "short")
    ]
    assert "short.json: no result, it lacks 'targets'" in printed.err and "schema 7" in printed.err
    assert "runs/broken.json" in (tmp_path / "page" / "index.html").read_text()


def test_no_results_make_an_empty_page(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert verb.main([]) == 0
    assert "No results yet" in (tmp_path / "site" / "index.html").read_text()
    with pytest.raises(UserError, match="no such folder: elsewhere"):
        verb.main(["--results", "elsewhere"])


def test_server_shows_the_page(tmp_path):
    page([result()], tmp_path)
    with verb._server(tmp_path, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=5) as answer:
                assert b"Leaderboard" in answer.read()
        finally:
            server.shutdown()
            thread.join()


# ---------------------------------------------------------------------------------------------- statistics
@pytest.mark.parametrize(
    ("hits", "n", "low", "high"), [(8, 10, 0.4902, 0.9433), (0, 5, 0.0, 0.4345), (5, 5, 0.5655, 1.0)]
)
def test_wilson_interval_of_known_cases(hits, n, low, high):
    assert wilson(hits, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("n", "low", "high", "coverage"),
    [(1, 1, 1, 0.0), (3, 1, 3, 0.75), (5, 1, 5, 0.9375), (8, 1, 8, 0.9922), (9, 2, 8, 0.9609375), (12, 3, 10, 0.9614)],
)
def test_median_interval_takes_the_tabulated_order_statistics(n, low, high, coverage):
    assert median_interval(range(n, 0, -1)) == pytest.approx((low, high, coverage), abs=5e-5)


def test_median_interval_covers_what_it_says():
    numpy = pytest.importorskip("numpy")
    draws = numpy.random.default_rng(0).exponential(size=(4000, 9))  # median log 2
    holds = [low <= math.log(2) <= high for low, high, _ in map(median_interval, draws)]
    assert numpy.mean(holds) == pytest.approx(0.961, abs=0.01)


def seeds(*hits, misses=()):
    return [*(Observation(spent, True) for spent in hits), *(Observation(spent, False) for spent in misses)]


def test_a_minority_of_misses_leaves_a_median():
    summary = summarize(seeds(10, 20, 30, misses=[50]))
    assert (summary.n, summary.hits, summary.median, summary.beyond) == (4, 3, 25, None)
    assert (summary.low, summary.high) == (10, None)


@pytest.mark.parametrize(
    ("observations", "beyond"),
    [
        (seeds(10, misses=[50]), 50),
        (seeds(10, misses=[70, 50]), 50),
        (seeds(10, misses=[math.inf, 60]), 60),
        (seeds(misses=[math.inf]), None),
    ],
)
def test_half_or_more_misses_leave_only_a_bound(observations, beyond):
    summary = summarize(observations)
    assert (summary.median, summary.beyond) == (None, beyond)
