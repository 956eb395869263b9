"""The signals that interrupt a run, and the exit codes of an interrupted command (128 + the signal's number)."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None], *names: str) -> Iterator[None]:
    """Call `handler` for each of these signals inside the context. A SIGHUP that is ignored (`nohup`) stays ignored."""
    numbers = [signal.Signals[name] for name in names]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        numbers = [number for number in numbers if number != signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
