"""`python -m suite.counters.steps OVERRIDES...` trains until the last target, and prints the steps to each, as JSON."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from suite import orphan
from suite.entries.intake import parse_form

ALWAYS = ("track=none", "save=none", "threads=1", "force=true", "precision=float64")
DONE = (0, 1)  # exit codes of a run that was recorded; 1: its training diverged


def main(overrides: Sequence[str]) -> int:
    """Train, read the result, print. Double precision makes the steps independent of rounding.

    Args:
        overrides: of the run.

    Returns:
        0, or the exit code of a run that failed.
    """
    with tempfile.TemporaryDirectory(prefix="suite-counters-") as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "suite", *overrides, *ALWAYS, f"run_dir={run}"]
        bind = partial(orphan.bind_to_parent, os.getpid())
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=bind)
        if done.returncode not in DONE or not (run / "result.json").exists():
            print(done.stdout + done.stderr, file=sys.stderr)
            return done.returncode or 1
        result = parse_form((run / "result.json").read_text(encoding="utf-8"))
    steps = {target.label: target.step if target.reached else "missed" for target in result.targets}
    print(json.dumps({"steps": steps, "ended": result.outcome.kind}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
