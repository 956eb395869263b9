"""Finds the first commit that is slower than an earlier one."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from suite.contract import UserError
from suite.regress.benchmarks import Benchmark
from suite.regress.git import run_git
from suite.regress.session import Limits, Outcome, Session
from suite.regress.show import judge_outcome
from suite.regress.sides import Side, build_side, change_commit, find_repository


def list_commits(folder: Path, first: str, last: str) -> list[str]:
    """List the commits after `first` up to `last` along the first parents, oldest first.

    Raises:
        UserError: if `last` does not descend from `first`.
    """
    done = run_git(folder, "rev-list", "--reverse", "--first-parent", "--ancestry-path", f"{first}..{last}")
    line = done.stdout.split()
    if done.returncode or not line:
        raise UserError(f"--bisect: {last[:12]} does not come after {first[:12]}")
    return line


def bisect_commits(
    sides: tuple[Side, Side],
    benchmarks: Sequence[Benchmark],
    limits: Limits,
    say: Callable[[str], None],
    report: Callable[[Outcome], None],
) -> int:
    """Find the first slower commit, and print it.

    Every commit in the middle is compared with A anew. If B itself is not slower in this command, the alarm cannot be
    repeated, and the search ends.

    Args:
        sides: two commits.
        benchmarks: what is measured; a commit is slower if one of them is.
        limits: of each comparison.
        say: prints progress.
        report: called after each round.

    Returns:
        3 if a commit was found, 0 if the alarm cannot be repeated, 1 if a comparison stayed undecided or failed.

    Raises:
        UserError: if a side is not a commit.
    """
    a, b = sides
    root = find_repository(Path.cwd())
    if root is None or a.commit is None or b.commit is None:
        raise UserError("--bisect needs two commits: suite regress --bisect HEAD~8 HEAD")
    line = [a.commit, *list_commits(root, a.commit, b.commit)]
    state = _compare(a, b, benchmarks, limits, say, report)
    if state != "slower":
        print(f"the alarm cannot be repeated: {b.commit[:12]} is {state} against {a.commit[:12]}")
        return 0 if state == "not slower" else 1
    fast, slow = 0, len(line) - 1
    while slow - fast > 1:
        middle = (fast + slow) // 2
        with ExitStack() as stack:
            side = stack.enter_context(build_side(change_commit(b, line[middle]), say))
            state = _compare(a, side, benchmarks, limits, say, report)
        if state in ("undecided", "failed"):
            print(
                f"{line[middle][:12]} is {state}; the first slower commit comes after {line[fast][:12]} and is "
                f"{line[slow][:12]} at the latest"
            )
            return 1
        fast, slow = (fast, middle) if state == "slower" else (middle, slow)
    subject = run_git(root, "log", "-1", "--format=%h %s", line[slow])
    print(f"first slower commit: {subject.stdout.strip()}")
    return 3


def _compare(
    a: Side,
    b: Side,
    benchmarks: Sequence[Benchmark],
    limits: Limits,
    say: Callable[[str], None],
    report: Callable[[Outcome], None],
) -> str:
    """Return the worst answer of all benchmarks."""
    say(f"comparing {(b.commit or b.name)[:12]} with {(a.commit or a.name)[:12]}")
    outcomes = Session((a, b), benchmarks, limits, report=report).run()
    states = [judge_outcome(outcome, limits, len(outcomes)) for outcome in outcomes]
    return next((state for state in ("slower", "failed", "undecided") if state in states), "not slower")
