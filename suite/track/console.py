"""What a person sees of a run: a line that says what runs, progress, and a table at the end.

On a terminal one line is redrawn in place; elsewhere every evaluation is a line of plain text.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.contract import Evaluated, Event, Finished, Started, Step, Task
from suite.published import Row

if TYPE_CHECKING:
    import rich.console
    from rich.live import Live

REDRAW = 0.1  # seconds between two drawings, at least; a listener must be cheap
PLAIN_WIDTH, LEAST_WIDTH, MOST_WIDTH = 120, 80, 120  # columns


class Console:
    """A listener that prints.

    Args:
        config: the run's configuration.
        task: its task; None where only a result is shown.
    """

    def __init__(self, config: Mapping[str, Any], task: Task | None):
        self.config, self.task = config, task
        self._live: Live | None = None
        self._drawn = 0.0
        self._loss: float | None = None
        self._metrics: Mapping[str, float] = {}
        self._met: set[int] = set()  # rungs of the ladder reached so far

    def opening(self) -> None:
        """Say what runs."""
        assert self.task is not None
        print(headline(self.config, self.task), flush=True)

    def __call__(self, event: Event) -> None:
        """Show progress."""
        if isinstance(event, Started) and event.resumed:
            print(f"going on from step {event.step:,}", flush=True)
        if isinstance(event, Step):
            self._loss = event.loss
            self._draw(event)
        if isinstance(event, Evaluated):
            assert self.task is not None
            self._metrics = event.metrics
            self._met |= {rung for rung, target in enumerate(self.task.targets) if target.met(event.metrics)}
            if sys.stdout.isatty():
                self._draw(event)
            else:
                print(self._line(event), flush=True)
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

        show(self._rich(), result, path, rows)

    def _rich(self) -> "rich.console.Console":
        import rich.console

        terminal = sys.stdout.isatty()
        console = rich.console.Console(force_terminal=terminal, highlight=False, markup=False, emoji=False)
        console.width = min(max(console.width, LEAST_WIDTH), MOST_WIDTH) if terminal else PLAIN_WIDTH
        return console

    def _draw(self, event: Step | Evaluated) -> None:
        """Redraw the line on a terminal, unless it has just been drawn."""
        now = time.monotonic()
        if now - self._drawn < REDRAW or not sys.stdout.isatty():
            return
        self._drawn = now
        if not self._live:
            self._live = self._start()
        from rich.text import Text

        self._live.update(Text(self._line(event), no_wrap=True, overflow="ellipsis"), refresh=True)

    def _start(self) -> "Live":
        import atexit

        from rich.live import Live

        live = Live(console=self._rich(), auto_refresh=False, transient=True)
        live.start()
        atexit.register(live.stop)  # shows the cursor again, however the run ends
        return live

    def _line(self, event: Step | Evaluated) -> str:
        from suite.track.closing import duration

        assert self.task is not None
        total, targets = self.config["max_steps"], self.task.targets
        left = (total - event.step) * event.train_seconds / event.step
        name = targets[-1].metric if targets else next(iter(self._metrics), None)
        open_rungs = [target for rung, target in enumerate(targets) if rung not in self._met]
        ahead = dict.fromkeys([*open_rungs[:1], *open_rungs[-1:]])  # the next and the last
        parts = [f"step {event.step:,}/{total:,}"]
        if self._loss is not None:
            parts.append(f"loss {self._loss:.4g}")
        if name and self._metrics:
            parts.append(f"{name} {self._metrics[name]:.4g}")
            away = [f"{abs(target.value - self._metrics[target.metric]):.3g} to {target.value:g}" for target in ahead]
            parts.append(", ".join(away) if away else "every target met")
        parts.append(f"{duration(event.train_seconds)} trained, {duration(left)} left at most")
        return " · ".join(parts)


def headline(config: Mapping[str, Any], task: Task) -> str:
    """What runs, in one line: task, scale, data, optimizer, backend and devices."""
    scale, data, world = config["scale"], task.data, config["world"]
    size = f"{sum(data.samples.values()):,} {data.unit}"
    parts = [
        config["task"]["name"],
        f"{scale} {'stand-in' if scale == 'laptop' else 'scale'} on {data.name} ({data.kind}, {size})",
        config["optimizer"]["name"],
        config["backend"],
        f"{world} device{'s' if world > 1 else ''}",
    ]
    if world > 1:
        parts.append(f"comm {config['comm']['name']}")
    return " · ".join(parts)
