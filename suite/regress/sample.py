"""One measurement: one fresh process that runs a benchmark on one side."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from suite.contract import UserError
from suite.regress.benchmarks import METRICS, Benchmark
from suite.regress.sides import Side

DONE = (0, 3)  # exit codes of a run that is recorded; 3: it missed a target that the run required
INTERRUPTED = (130, 143)
LINES = 12  # of the output of a failed run that are shown


class RunFailedError(UserError):
    """A run of one side failed."""


def measure(side: Side, benchmark: Benchmark, core: int | None = None, limit: float = 600.0) -> float:
    """Run a benchmark in a process of its own, and return the number that is compared.

    Args:
        side: whose code runs.
        benchmark: what runs.
        core: the processor core that runs it; None: any.
        limit: seconds after which the process is killed.

    Raises:
        RunFailedError: if the run failed or took too long, with the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="suite-regress-") as folder:
        run = Path(folder) / "run"
        command = side.command([*benchmark.overrides, f"run_dir={run}"])
        environment = {**side.environment(), **METRICS[benchmark.metric].environment}
        code, output, wall = _timed(command, side.folder, environment, core, limit)
        if code in INTERRUPTED:
            raise KeyboardInterrupt
        if code not in DONE or not (run / "result.json").exists():
            cause = f"took longer than {limit:g} s" if code is None else f"failed with exit code {code}"
            tail = "\n".join(output.splitlines()[-LINES:])
            raise RunFailedError(f"side {side.name}, benchmark {benchmark.name}: a run {cause}:\n{tail}")
        result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    if result["outcome"]["kind"] in ("diverged", "failed"):
        raise RunFailedError(
            f"side {side.name}, benchmark {benchmark.name}: the run {result['outcome']['kind']} at step "
            f"{result['outcome'].get('step')}; a benchmark has to train"
        )
    return benchmark.value(result, wall)


def _timed(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], core: int | None, limit: float
) -> tuple[int | None, str, float]:
    """Exit code (None: killed after `limit` seconds), output and seconds of a process on one core."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=_pinned(core),
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # also the ranks of a run; jax ignores SIGTERM
        output, _ = process.communicate()
        return None, output, limit
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output, time.perf_counter() - started


def _pinned(core: int | None) -> Callable[[], None] | None:
    """What the new process does before it starts: stay on one core, where the system offers that."""
    if core is None or not hasattr(os, "sched_setaffinity"):
        return None
    return lambda: os.sched_setaffinity(0, {core})


def cores(ranks: int) -> list[int | None]:
    """The cores that rounds take in turn; only None for a run of several ranks, which need several.

    Args:
        ranks: processes of a run.
    """
    if ranks > 1 or not hasattr(os, "sched_getaffinity"):
        return [None]
    return [*sorted(os.sched_getaffinity(0))]
