"""Settings of the learning rate's schedule; `suite/settings/rates.py` computes it."""

from typing import Any, Literal

from suite.declared import Declared, setting

Shape = Literal["constant", "linear", "cosine", "polynomial", "staircase", "exponential", "inverse_sqrt"]


class ScheduleSettings(Declared):
    """How the learning rate changes during a run: a warm-up, then a shape."""

    shape: Shape = setting("linear", "course after the warm-up, from 1 to 0 or to the factor")
    warmup: float = setting(10.0, "length of the warm-up in steps, or below 1 as a share of the run", at_least=0)
    warmup_start: float = setting(0.0, "factor of the learning rate at the start of the warm-up", at_least=0)
    warmup_power: float = setting(1.0, "power with which it rises", at_least=0)
    begin: float | None = setting(None, "step at which the shape begins; null: the end of the warm-up", at_least=0)
    end: float | None = setting(None, "step at which it ends, possibly after the run; null: the last one", at_least=1)
    power: float | None = setting(None, "of polynomial", at_least=0)
    boundaries: tuple[float, ...] | None = setting(
        None, "of staircase: rising shares of the run, or of `end`, after which it falls"
    )
    factor: float | None = setting(None, "of staircase, at each boundary; of exponential, at the end", at_least=0)
    floor: float = setting(0.0, "smallest factor after the warm-up", at_least=0, at_most=1)
    momentum_follows: bool = setting(False, "multiply the momentum by the same factor")

    def model_post_init(self, context: Any) -> None:
        """Reject boundaries outside the run or out of order, and an end before the beginning."""
        bounds = self.boundaries
        if bounds is not None and (not bounds or list(bounds) != sorted(bounds) or bounds[0] < 0 or bounds[-1] > 1):
            raise ValueError(f"boundaries={list(bounds)}: must be shares of the run from 0 to 1, rising")
        if self.begin is not None and self.end is not None and self.begin >= self.end:
            raise ValueError(f"end={self.end:g}: must be after begin={self.begin:g}")
