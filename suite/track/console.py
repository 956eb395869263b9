"""Prints a run on the console: a first line that describes it, its progress, and a table at the end.

On a terminal, one line of progress is redrawn in place. Elsewhere, every evaluation prints a line of plain text, and so
does a step after a long silence.
"""

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from suite.contract import Decided, Evaluated, Event, Explains, Finished, Sparse, Started, Step, Target, Task
from suite.engine import has_channels_last
from suite.published import Row
from suite.record.result import Result
from suite.settings import recipes
from suite.settings.run import AnyRun, BaselineRun, Run

if TYPE_CHECKING:
    import rich.console
    from rich.live import Live

REDRAW = 0.1  # least seconds between two redraws, so that printing stays cheap
SILENCE = 20.0  # most seconds without a line of plain text while steps are made
PLAIN_WIDTH, LEAST_WIDTH, MOST_WIDTH = 120, 80, 120  # columns


def make_printer() -> "rich.console.Console":
    """Return the console that prints tables, as wide as the terminal, within `LEAST_WIDTH` and `MOST_WIDTH`."""
    import rich.console

    terminal = sys.stdout.isatty()
    console = rich.console.Console(force_terminal=terminal, highlight=False, markup=False, emoji=False)
    console.width = min(max(console.width, LEAST_WIDTH), MOST_WIDTH) if terminal else PLAIN_WIDTH
    return console


@contextmanager
def show_patience(activity: str, seconds: float = 1.0) -> Iterator[None]:
    """Print the activity on standard error if the code inside takes longer than some seconds."""
    timer = threading.Timer(seconds, lambda: print(f"{activity} …", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Console:
    """Prints the events of a run.

    Args:
        run: the run.
        task: the run's task.
        brief: whether to leave out the published rows and the notes on data: the run is one of a sweep or a search.
    """

    def __init__(self, run: AnyRun, task: Task, *, brief: bool = False):
        self.run, self.task, self.brief = run, task, brief
        self._live: Live | None = None
        self._shown = time.monotonic() - REDRAW
        self._loss: float | None = None
        self._metrics: Mapping[str, float | None] = {}
        self._undefined: set[str] = set()  # undefined metrics that have been explained
        self._met: set[int] = set()  # indices of the targets reached so far

    def opening(self) -> None:
        """Print what runs, and what is done before the first step."""
        print(describe_run(self.run, self.task), flush=True)
        if caution := recipes.warn_untuned(self.run):
            print(f"note: {caution}", flush=True)
        print(describe_preparation(self.run), flush=True)

    def __call__(self, event: Event) -> None:
        """Print the progress that an event reports."""
        if isinstance(event, Started) and event.resumed:
            print(f"continuing from step {event.step:,}", flush=True)
        if isinstance(event, Decided):
            origin = "replayed" if event.replayed else f"{event.seconds:.3g} s of trials"
            print(f"{event} ({origin})", flush=True)
        if isinstance(event, Step):
            self._loss = event.loss
            self._show(event)
        if isinstance(event, Evaluated):
            self._metrics = event.metrics
            self._explain(event.metrics)
            self._met |= {rung for rung, target in enumerate(self.task.targets) if target.met(event.metrics)}
            self._show(event)
        if isinstance(event, Finished) and self._live:
            self._live.stop()

    def interrupted(self, directory: Path, event: Finished) -> None:
        """Print how to continue an interrupted run."""
        print(
            f"interrupted ({event.outcome['signal']}): saved in {directory}; "
            f"the same command continues from step {event.step:,}"
        )

    def closing(self, result: Result, path: Path, rows: Sequence[Row]) -> None:
        """Print the result: the ladder, and the published rows to compare it with."""
        from suite.track.closing import show_result

        show_result(make_printer(), result, path, rows, brief=self.brief)

    def _show(self, event: Step | Evaluated) -> None:
        """Redraw the line on a terminal, or print a line, unless the last one is too recent."""
        now, terminal = time.monotonic(), sys.stdout.isatty()
        pause = REDRAW if terminal else SILENCE if isinstance(event, Step) else 0.0
        if now - self._shown < pause:
            return
        self._shown = now
        if not terminal:
            print(self._line(event), flush=True)
            return
        if not self._live:
            self._live = self._start()
        from rich.text import Text

        self._live.update(Text(self._line(event), no_wrap=True, overflow="ellipsis"), refresh=True)

    def _explain(self, metrics: Mapping[str, float | None]) -> None:
        """Print each undefined metric once, with the task's reason if it gives one."""
        if metrics and all(value is None for value in metrics.values()):
            return  # the model's outputs are not finite, and the outcome says so
        reasons = self.task.undefined if isinstance(self.task, Explains) else {}
        for name in sorted(name for name, value in metrics.items() if value is None and name not in self._undefined):
            self._undefined.add(name)
            print(
                f"{name} undefined: {reasons.get(name, 'the validation split has no sample to compute it from')}",
                flush=True,
            )

    def _start(self) -> "Live":
        import atexit

        from rich.live import Live

        live = Live(console=make_printer(), auto_refresh=False, transient=True)
        live.start()
        atexit.register(live.stop)  # shows the cursor again, however the run ends
        return live

    def _line(self, event: Step | Evaluated) -> str:
        """One line of progress: step, loss, metric, distance to the next and the last target, and time."""
        from suite.track.words import format_duration

        targets = self.task.targets
        name = targets[-1].metric if targets else next(iter(self._metrics), None)
        open_rungs = [target for rung, target in enumerate(targets) if rung not in self._met]
        ahead = dict.fromkeys([*open_rungs[:1], *open_rungs[-1:]])  # the next and the last
        parts, spent = ["fitted"], format_duration(event.train_seconds)
        if event.step is not None:  # a baseline makes no steps
            assert isinstance(self.run, Run)
            total = self.run.max_steps
            left = (total - event.step) * event.train_seconds / event.step
            parts, spent = [f"step {event.step:,}/{total:,}"], f"{spent}, at most {format_duration(left)} left"
        if self._loss is not None:
            parts.append(f"train loss {self._loss:.4g}")
        if name and self._metrics:
            parts.append(f"valid {format_metric(name, self._metrics)}")
            away = [f"{target.value:g} ({format_distance(target, self._metrics)})" for target in ahead]
            parts.append(f"target {', last '.join(away)}" if away else "every target met")
        parts.append(spent)
        return " · ".join(parts)


def format_metric(name: str, metrics: Mapping[str, float | None]) -> str:
    """A metric's name and value, in words."""
    value = metrics[name]
    return f"{name} undefined" if value is None else f"{name} {value:.4g}"


def format_distance(target: Target, metrics: Mapping[str, float | None]) -> str:
    """Return the distance of the metrics to a target in words: `9.5 short`, or `0.2 over` if lower is better."""
    value = metrics[target.metric]
    if value is None:
        return "undefined"
    gap = abs(target.value - value)
    return f"{gap:.3g} {'short' if target.higher_is_better else 'over'}"


def describe_preparation(run: AnyRun) -> str:
    """A line that says what is done before the first step, which may take a while."""
    if isinstance(run, BaselineRun):
        return "making the data, then fitting the baseline; the next line follows when both are done"
    compiler = "jax" if run.backend == "jax" else "torch.compile" if run.compile else None
    compiling = f"; compiling with {compiler}" if compiler else ""
    return f"loading {run.backend}, making weights and the first batch{compiling}; the clock starts after that"


MUCH = 0.01  # share of dropped samples above which the first line mentions them


def describe_run(run: AnyRun, task: Task) -> str:
    """Return the first line of a run: task, scale, data, optimizer, backend, precision, devices; or a baseline."""
    scale, data = run.scale, task.data
    size = f"{sum(data.samples.values()):,} {data.unit}"
    parts = [
        run.task.name,
        f"{scale} {'stand-in' if scale == 'laptop' else 'scale'} on {data.name} ({data.kind}, {size})",
        *([data.losses()] if data.skipped or data.dropped_share > MUCH else []),
        *([task.form] if isinstance(task, Sparse) and task.form else []),
        run.method,
    ]
    if isinstance(run, Run):
        order = ", channels last" if has_channels_last(run, task, run.device) else ""
        parts += [run.backend, f"{run.precision}{order}", f"{run.world} device{'s' if run.world > 1 else ''}"]
        parts += [f"comm {run.comm.name}"] if run.world > 1 else []
    return " · ".join(parts)
