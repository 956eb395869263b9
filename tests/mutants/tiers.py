"""Tiers of tests, cheapest first, and one run of a tier in a copy of the tree."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import cache

from checkout import Checkout
from mutant import ROOT, Mutant

FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
NOT_SLOW = "not slow and not bench"
TIME_LIMIT = "time limit"
NOTHING_FOUND = 5  # pytest's exit code without tests


def arguments(tier: str, mutant: Mutant) -> Iterator[list[str]]:
    """Yield the arguments of pytest for each part of a tier: first the part that knows the mutant's room."""
    if tier == "quick":
        yield ["-m", f"quick and {NOT_SLOW}", *mutant.tests]
        yield ["-m", f"quick and {NOT_SLOW}", *(name for name in quick_files() if name not in mutant.tests)]
    else:
        yield ["-m", NOT_SLOW, *(mutant.tests if tier == "room" else ["tests"])]


@cache
def quick_files() -> list[str]:
    """Return the files in which tests are marked as quick, as `make quick` finds them."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if "mark.quick" in path.read_text()]


def run_tests(checkout: Checkout, selected: list[str], seconds: float) -> str | None:
    """Run tests until the first one fails.

    Returns:
        The failed test; `TIME_LIMIT` if they took too long; None if all pass.

    Raises:
        RuntimeError: pytest did not run.
    """
    command = [str(checkout.python), "-m", "pytest", "-x", "-q", "--tb=line", *selected]
    process = subprocess.Popen(
        command,
        cwd=checkout.folder,
        env=checkout.variables(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return TIME_LIMIT
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode in (0, NOTHING_FOUND):
        return None
    found = FAILED.search(output)
    if process.returncode > 2 or process.returncode < 0:
        raise RuntimeError(f"pytest {' '.join(selected)}: exit code {process.returncode}\n{output[-2000:]}")
    return found[1] if found else "collection"
