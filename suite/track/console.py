"""What a person sees of a run: a line that says what runs, progress, and a table at the end.

On a terminal one line is redrawn in place; elsewhere every evaluation is a line of plain text, and so is a step after a
long silence.
"""

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite import record
from suite.contract import Decided, Evaluated, Event, Finished, Sparse, Started, Step, Target, Task
from suite.published import Row

if TYPE_CHECKING:
    import rich.console
    from rich.live import Live

REDRAW = 0.1  # seconds between two drawings, at least; a listener must be cheap
SILENCE = 20.0  # seconds without a line of plain text, at most, where steps are being made
PLAIN_WIDTH, LEAST_WIDTH, MOST_WIDTH = 120, 80, 120  # columns


def printer() -> "rich.console.Console":
    """What prints tables: as wide as the terminal, within reason."""
    import rich.console

    terminal = sys.stdout.isatty()
    console = rich.console.Console(force_terminal=terminal, highlight=False, markup=False, emoji=False)
    console.width = min(max(console.width, LEAST_WIDTH), MOST_WIDTH) if terminal else PLAIN_WIDTH
    return console


@contextmanager
def patience(doing: str, seconds: float = 1.0) -> Iterator[None]:
    """Say what is being done if it takes longer than some seconds; on stderr, where it spoils no JSON."""
    timer = threading.Timer(seconds, lambda: print(f"{doing} …", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Console:
    """A listener that prints.

    Args:
        config: the run's configuration.
        task: its task; None where only a result is shown.
    """

    def __init__(self, config: Mapping[str, Any], task: Task | None):
        self.config, self.task = config, task
        self._live: Live | None = None
        self._shown = time.monotonic() - REDRAW
        self._loss: float | None = None
        self._metrics: Mapping[str, float] = {}
        self._met: set[int] = set()  # rungs of the ladder reached so far

    def opening(self) -> None:
        """Say what runs, and what is done before the first step."""
        assert self.task is not None
        print(headline(self.config, self.task), flush=True)
        print(preparation(self.config), flush=True)

    def __call__(self, event: Event) -> None:
        """Show progress."""
        if isinstance(event, Started) and event.resumed:
            print(f"going on from step {event.step:,}", flush=True)
        if isinstance(event, Decided):
            tried = "replayed" if event.replayed else f"{event.seconds:.3g} s of trials"
            print(f"{event} ({tried})", flush=True)
        if isinstance(event, Step):
            self._loss = event.loss
            self._show(event)
        if isinstance(event, Evaluated):
            assert self.task is not None
            self._metrics = event.metrics
            self._met |= {rung for rung, target in enumerate(self.task.targets) if target.met(event.metrics)}
            self._show(event)
        if isinstance(event, Finished) and self._live:
            self._live.stop()

    def interrupted(self, directory: Path, event: Finished) -> None:
        """Say how to go on."""
        print(
            f"interrupted ({event.outcome['signal']}): saved in {directory}; "
            f"the same command goes on from step {event.step:,}"
        )

    def reused(self, directory: Path) -> None:
        """Say that nothing needed to run."""
        print(f"this result exists: {directory / 'result.json'}; force=true runs it again")

    def closing(self, result: Mapping[str, Any], path: Path, rows: Sequence[Row]) -> None:
        """Print the table of the ladder and the published rows beside it."""
        from suite.track.closing import show

        show(printer(), result, path, rows)

    def _show(self, event: Step | Evaluated) -> None:
        """Redraw the line on a terminal, or print one, unless that has just been done."""
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

    def _start(self) -> "Live":
        import atexit

        from rich.live import Live

        live = Live(console=printer(), auto_refresh=False, transient=True)
        live.start()
        atexit.register(live.stop)  # shows the cursor again, however the run ends
        return live

    def _line(self, event: Step | Evaluated) -> str:
        from suite.track.closing import duration

        assert self.task is not None
        targets = self.task.targets
        name = targets[-1].metric if targets else next(iter(self._metrics), None)
        open_rungs = [target for rung, target in enumerate(targets) if rung not in self._met]
        ahead = dict.fromkeys([*open_rungs[:1], *open_rungs[-1:]])  # the next and the last
        parts, spent = ["fitted"], duration(event.train_seconds)
        if event.step is not None:  # a baseline makes none
            total = self.config["max_steps"]
            left = (total - event.step) * event.train_seconds / event.step
            parts, spent = [f"step {event.step:,}/{total:,}"], f"{spent}, at most {duration(left)} left"
        if self._loss is not None:
            parts.append(f"train loss {self._loss:.4g}")
        if name and self._metrics:
            parts.append(f"valid {name} {self._metrics[name]:.4g}")
            away = [f"{target.value:g} ({missing(target, self._metrics)})" for target in ahead]
            parts.append(f"target {', last '.join(away)}" if away else "every target met")
        parts.append(spent)
        return " · ".join(parts)


def missing(target: Target, metrics: Mapping[str, float]) -> str:
    """How far the metrics are from a target: 9.5 short, or 0.2 over where less is better."""
    gap = abs(target.value - metrics[target.metric])
    return f"{gap:.3g} {'short' if target.higher_is_better else 'over'}"


def preparation(config: Mapping[str, Any]) -> str:
    """What is done before the first step, so that nobody takes it for a hang."""
    if "baseline" in config:
        return "making the data, then fitting in one go; the next line comes when that is done"
    compiler = "jax" if config["backend"] == "jax" else "torch.compile" if config["compile"] else None
    compiling = f"; compiling with {compiler}" if compiler else ""
    return f"loading {config['backend']}, making weights and the first batch{compiling}; the clock starts after that"


def headline(config: Mapping[str, Any], task: Task) -> str:
    """What runs, in one line: task, scale, data, optimizer, backend and devices, or a baseline."""
    scale, data, world = config["scale"], task.data, config.get("world")
    size = f"{sum(data.samples.values()):,} {data.unit}"
    parts = [
        config["task"]["name"],
        f"{scale} {'stand-in' if scale == 'laptop' else 'scale'} on {data.name} ({data.kind}, {size})",
        *([task.form] if isinstance(task, Sparse) and task.form else []),
        record.method(config),
    ]
    if world:
        parts += [config["backend"], f"{world} device{'s' if world > 1 else ''}"]
    if world and world > 1:
        parts.append(f"comm {config['comm']['name']}")
    return " · ".join(parts)
