"""One round of measurements: each side runs a benchmark in a fresh process, in turns or one after the other.

A shared machine is now faster and now slower, for seconds or minutes. Processes that run one after the other meet
different speeds. In turns, both processes exist at once; one of them is stopped while the other one runs for some
steps, on the same core. A change of the speed then hits both (docs/regression.md has the measured spreads).
"""

import functools
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from suite import orphan, signals
from suite.contract import UserError
from suite.regress.benchmarks import METRICS, Benchmark
from suite.regress.sides import Side

DONE = (0, 3)  # exit codes of a run that is recorded; 3: it missed a target that the run required
LINES = 12  # of the output of a failed run that are shown
TURN, STEPS = 0.02, 10  # a turn has at least so many seconds, and so many steps: a stop is then in few of them
GRACE = 5.0  # seconds in which the output of a killed process is read
LIMIT = 600.0  # seconds that a process may take, without those in which it was stopped


class RunFailedError(UserError):
    """A run of one side failed."""


class Run:
    """A process that runs a benchmark on one side; a context manager, which kills what still runs.

    Args:
        side: whose code runs.
        benchmark: what runs.
        core: the processor core that runs it; None: any.
    """

    def __init__(self, side: Side, benchmark: Benchmark, core: int | None):
        self.side, self.benchmark = side, benchmark
        self._folder = tempfile.TemporaryDirectory(prefix="suite-regress-")
        self._path = Path(self._folder.name)
        command = side.command([*benchmark.overrides, f"run_dir={self._path / 'run'}"])
        environment = {**side.environment(), **METRICS[benchmark.metric].environment}
        self._ran = 0.0  # seconds without those in which it was stopped
        self._output: str | None = None  # until it has ended
        self._process = subprocess.Popen(
            command,
            cwd=side.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=functools.partial(_prepare, core, os.getpid()),
        )

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        self._signal(signal.SIGKILL)  # jax ignores SIGTERM
        self._process.wait()
        self._folder.cleanup()

    @property
    def running(self) -> bool:
        """Return whether the process has neither ended nor used up its time."""
        return self._output is None and self._ran < LIMIT

    @property
    def trains(self) -> bool:
        """Return whether the run has logged a step."""
        log = self._path / "run" / "events.jsonl"
        return log.exists() and b'"event": "step"' in log.read_bytes()

    def go(self, seconds: float) -> None:
        """Let the process run for some seconds, or until it ends; then stop it."""
        began = time.perf_counter()
        self._signal(signal.SIGCONT)
        try:
            self._output, _ = self._process.communicate(timeout=min(seconds, LIMIT - self._ran))
        except subprocess.TimeoutExpired:
            self.stop()
        self._ran += time.perf_counter() - began

    def stop(self) -> None:
        """Stop the process; `go` continues it."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, number)

    def value(self) -> float:
        """Return the number that is compared.

        Raises:
            RunFailedError: if the run failed or took too long, with the end of its output.
        """
        if self._output is None:
            self._signal(signal.SIGKILL)
            output = ""
            with suppress(subprocess.TimeoutExpired):  # a process in another session may hold the pipe
                output, _ = self._process.communicate(timeout=GRACE)
            self._fail(f"a run took longer than {LIMIT:g} s", output)
        code, result = self._process.returncode, self._path / "run" / "result.json"
        if code in signals.CODES.values():
            raise KeyboardInterrupt
        if code not in DONE or not result.exists():
            self._fail(f"a run failed with exit code {code}", self._output or "")
        try:
            facts = json.loads(result.read_text(encoding="utf-8"))
            outcome = facts["outcome"]
        except (ValueError, KeyError, TypeError) as error:
            self._fail(f"its result.json cannot be read: {error!r}", self._output or "")
        if outcome["kind"] in ("diverged", "failed"):
            self._fail(f"the run {outcome['kind']} at step {outcome.get('step')}; a benchmark has to train")
        return self.benchmark.value(facts, self._ran)

    def _fail(self, reason: str, output: str = "") -> NoReturn:
        tail = "".join(f"\n{line}" for line in output.splitlines()[-LINES:])
        raise RunFailedError(
            f"side {self.side.name}, benchmark {self.benchmark.name}: {reason}{':' * bool(tail)}{tail}"
        )


class Sampler:
    """Measures rounds. It remembers how long a step of each benchmark takes, because a turn has several steps."""

    def __init__(self) -> None:
        self._seconds: dict[Benchmark, float] = {}  # of a step

    def __call__(self, sides: Sequence[Side], benchmark: Benchmark, core: int | None) -> list[float]:
        """Run a benchmark once on each side, in separate processes, and return the numbers that are compared.

        The sides take turns if the compared number is seconds of a step. Before the first turn, a rehearsal measures
        them. A longer time, such as that of compiling, would contain stops; and several ranks have processes of their
        own, which would not stop. Such sides run one after the other.

        Args:
            sides: whose code runs, in order.
            benchmark: what runs.
            core: the processor core that runs it; None: any.

        Returns:
            One number for each side.

        Raises:
            RunFailedError: if a run failed or took too long.
        """
        by_step = METRICS[benchmark.metric].by_step
        if not sides or not by_step or count_ranks(sides, benchmark) > 1 or not hasattr(signal, "SIGSTOP"):
            return [value for side in sides for value in in_turns([side], benchmark, core, LIMIT)]
        if benchmark not in self._seconds:
            [self._seconds[benchmark]] = in_turns(sides[:1], benchmark, core, LIMIT)
        turn = max(TURN, STEPS * self._seconds[benchmark])
        if len(sides) == 1:  # the other side's measurements were saved; they were made in turns, too
            return in_turns([*sides, *sides], benchmark, core, turn)[:1]
        return in_turns(sides, benchmark, core, turn)


def count_ranks(sides: Sequence[Side], benchmark: Benchmark) -> int:
    """Return the most devices of a run."""
    words = [*benchmark.run, *(word for side in sides for word in side.overrides)]
    counts = [word.partition("=")[2] for word in words if word.lstrip("+").startswith("world=")]
    return max((int(count) for count in counts if count.isdecimal()), default=1)


def in_turns(sides: Sequence[Side], benchmark: Benchmark, core: int | None, turn: float) -> list[float]:
    """Run a benchmark once on each side. Only one process runs at a time; one that trains waits until all do.

    Args:
        sides: whose code runs, in order.
        benchmark: what runs.
        core: the processor core that runs it; None: any.
        turn: seconds after which a process is stopped and the next one continues.

    Returns:
        One number for each side.

    Raises:
        RunFailedError: if a run failed or took too long.
    """
    with ExitStack() as stack:
        runs: list[Run] = []
        for side in sides:
            for run in runs:
                run.stop()
            runs.append(stack.enter_context(Run(side, benchmark, core)))
        values: dict[Run, float] = {}
        while waiting := [run for run in runs if run not in values]:
            for run in [run for run in waiting if not run.trains] or waiting:
                run.go(turn)
                if not run.running:
                    values[run] = run.value()
        return [values[run] for run in runs]


def _prepare(core: int | None, parent: int) -> None:
    """Prepare a new process: it stays on one core, and ends with the command `parent`, also if it is stopped."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    orphan.bind_to_parent(parent)


def list_cores(ranks: int) -> list[int | None]:
    """List the cores that rounds use, one after the other; only None for a run of several ranks, which need several.

    Args:
        ranks: processes of a run.
    """
    if ranks > 1 or not hasattr(os, "sched_getaffinity"):
        return [None]
    return [*sorted(os.sched_getaffinity(0))]
