"""`suite regress`: say whether a commit, a version of a package or a setting makes a step slower."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from suite import signals
from suite.contract import UserError
from suite.record.record import format_json
from suite.regress import history, history_picture, show
from suite.regress.benchmarks import METRICS, Benchmark, parse_benchmarks, read_benchmarks
from suite.regress.bisect import bisect_commits
from suite.regress.rule import ALPHA, LEAST, MARGIN, ROUNDS
from suite.regress.saved import find_saved, list_shared
from suite.regress.session import Limits, Outcome, Session
from suite.regress.sides import build_side, is_saved

HELP = """Compare the speed of two sides. A side is a commit (HEAD~1), a requirement (torch==2.14), an interpreter
(/usr/bin/python3.12), overrides (optimizer.root=eigh32), or several of these in one string; `.` is the working tree. A
file or folder of saved measurements (reports of --json, or results of runs) is a side as well.
Without B, the working tree is compared with A. Both sides run in turns, each time in a new process. A benchmark is
called slower only if the interval of the ratio excludes 1, the ratio exceeds the margin, and the same holds again in
new processes. Exit codes: 0 nothing is slower, 1 a run failed, 2 bad usage, 3 something is slower, 129, 130 and
143 interrupted."""


WALL = ("step",)  # metrics in wall time that processor time can replace


def main(arguments: Sequence[str]) -> int:
    """Compare two sides."""
    chosen = make_parser().parse_args(arguments)
    if chosen.history:
        return _history(chosen)
    if chosen.a is None:
        raise UserError("name a side, such as suite regress HEAD~1; or --history with reports")
    if not (chosen.margin > 0 and chosen.minutes > 0):
        raise UserError("--margin and --minutes are positive")
    reports = [path for path in (chosen.json, chosen.junit, chosen.markdown) if path]
    if chosen.bisect and reports:
        raise UserError(f"--bisect prints its answer and writes no report; leave out {reports[0]}")
    for path in reports:
        if not path.absolute().parent.is_dir():
            raise UserError(f"{path}: no such folder")
    if chosen.rounds < LEAST:
        raise UserError(f"--rounds {chosen.rounds}: fewer rounds tell nothing about the spread; set {LEAST} or more")
    limits = Limits(chosen.margin / 100, ALPHA, chosen.rounds, 60 * chosen.minutes)
    earlier = [find_saved(Path(side), chosen.metric or "step") for side in (chosen.a, chosen.b) if is_saved(side)]
    benchmarks = benchmarks_of(chosen, list_shared(earlier, alone=len(earlier) == 2) if earlier else None)
    try:
        with ExitStack() as stack:
            stack.enter_context(signals.handle_signals(_stop, *signals.CODES))
            a, b = (
                stack.enter_context(build_side(side, _say, chosen.metric or "step")) for side in (chosen.a, chosen.b)
            )
            sides = a, b
            if warning := warn_busy(benchmarks):
                _say(warning)
            if chosen.bisect:
                return bisect_commits(sides, benchmarks, limits, _say, lambda outcome: _say(_progress(outcome)))
            session = Session(sides, benchmarks, limits, report=lambda outcome: _say(_progress(outcome)))
            outcomes = session.run()
    except KeyboardInterrupt as interruption:
        _say("interrupted; nothing was decided")
        return signals.CODES.get(str(interruption), signals.CODES["SIGINT"])
    show.print_table(sides, outcomes, limits)
    undecided = [one.benchmark for one in outcomes if show.judge_outcome(one, limits, len(outcomes)) == "undecided"]
    if warning := warn_busy(undecided):
        _say(warning)
    for path, text in (
        (chosen.json, format_json(show.as_dict(sides, outcomes, limits), indent=1)),
        (chosen.junit, show.format_junit(sides, outcomes, limits)),
        (chosen.markdown, show.format_markdown(sides, outcomes, limits)),
    ):
        if path:
            path.write_text(text, encoding="utf-8")
    states = {show.judge_outcome(outcome, limits, len(outcomes)) for outcome in outcomes}
    return 3 if "slower" in states else int("failed" in states)


def _history(chosen: argparse.Namespace) -> int:
    """Print, draw and write where the measurements of earlier reports change."""
    series = history.read_history(chosen.history)
    for line in history.format_history(series):
        print(line)
    if chosen.svg:
        chosen.svg.write_text(history_picture.draw_history(series), encoding="utf-8")
    if chosen.json:
        chosen.json.write_text(format_json({"history": history.as_dict(series)}, indent=1), encoding="utf-8")
    return 0


def _stop(number: int, frame: object) -> None:
    """Turn a signal into an exception, so that working trees and processes are removed."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def make_parser() -> argparse.ArgumentParser:
    """Return what the command accepts."""
    accepted = argparse.ArgumentParser(prog="suite regress", description=HELP)
    accepted.add_argument("a", metavar="A", nargs="?", help="the side that is believed to be fast")
    accepted.add_argument("b", metavar="B", nargs="?", default=".", help="the side in question; default: .")
    accepted.add_argument("--benchmarks", type=Path, metavar="FILE", help="a list of benchmarks of your own, in YAML")
    accepted.add_argument("--only", nargs="+", metavar="NAME", help="only these benchmarks")
    accepted.add_argument("--run", nargs="+", action="append", metavar="key=value", help="measure this run instead")
    accepted.add_argument(
        "--metric",
        choices=METRICS,
        help="what is compared in --run, and instead of step in the benchmarks; default: step",
    )
    accepted.add_argument("--margin", type=float, default=100 * MARGIN, metavar="PERCENT", help="default: %(default)g")
    accepted.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help="most rounds of one look; default: %(default)s"
    )
    accepted.add_argument("--minutes", type=float, default=float("inf"), help="start no round after so many minutes")
    accepted.add_argument("--bisect", action="store_true", help="find the first slower commit between A and B")
    accepted.add_argument(
        "--history", type=Path, nargs="+", metavar="FILE|DIR", help="run nothing; show the changes in reports of --json"
    )
    accepted.add_argument("--svg", type=Path, metavar="FILE", help="draw the history")
    accepted.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    accepted.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit's XML")
    accepted.add_argument("--markdown", type=Path, metavar="FILE", help="write one table, for a comment")
    return accepted


def benchmarks_of(chosen: argparse.Namespace, saved: Sequence[Benchmark] | None) -> list[Benchmark]:
    """Return the benchmarks that were asked for.

    Args:
        chosen: what was typed.
        saved: those that the saved sides have; None if both sides are measured now.

    Raises:
        UserError: for a benchmark that does not exist, or was not saved.
    """
    if chosen.run:
        benchmarks = parse_benchmarks([" ".join(words) for words in chosen.run], chosen.metric or "step")
    else:
        benchmarks = list(saved) if saved and not chosen.benchmarks else read_benchmarks(chosen.benchmarks)
        if chosen.metric:
            benchmarks = [replace(one, metric=chosen.metric) if one.metric == "step" else one for one in benchmarks]
    for benchmark in benchmarks:
        if saved and benchmark not in saved:
            raise UserError(f"{benchmark.name}: not among the saved measurements of {_names(saved)}")
    for name in chosen.only or ():
        if name not in (benchmark.name for benchmark in benchmarks):
            raise UserError(f"--only {name}: no such benchmark; choose one of {_names(benchmarks)}")
    return [benchmark for benchmark in benchmarks if not chosen.only or benchmark.name in chosen.only]


def warn_busy(benchmarks: Sequence[Benchmark]) -> str:
    """Return a warning if other programs use all cores and one of the benchmarks compares wall time; else nothing."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < cores or not any(benchmark.metric in WALL for benchmark in benchmarks):
        return ""
    return (
        f"this machine is busy (load {load:.1f}, {cores} cores): wall times vary, and many rounds may decide nothing; "
        "--metric processor compares processor time, which other programs hardly change"
    )


def _names(benchmarks: Sequence[Benchmark]) -> str:
    return ", ".join(benchmark.name for benchmark in benchmarks)


def _progress(outcome: Outcome) -> str:
    """One line after a round."""
    name, rounds = outcome.benchmark.name, [*outcome.first, *outcome.second]
    if outcome.error or not rounds:
        return f"{name}: failed"
    a, b = rounds[-1]
    amounts = [show.format_amount(value, outcome.benchmark.metric) for value in (a, b)]
    checking = ", checking an alarm" if outcome.second else ""
    return f"{name}: round {len(rounds)}{checking}: A {amounts[0]}, B {amounts[1]}, B / A {b / a:.3f}"


def _say(line: str) -> None:
    """Print progress on standard error, where it does not mix with the answer."""
    print(line, file=sys.stderr, flush=True)
