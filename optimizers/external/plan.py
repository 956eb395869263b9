"""The plan of an optimizer of another package: it is found before a rank starts, and its state is counted."""

import importlib
import importlib.util
from collections.abc import Mapping

from suite.optimizers.external import Settings


class ExternalPlan:
    """What can be known of the optimizer without training; imports the framework and the package, if they are here.

    Args:
        settings: the optimizer's.
        shapes: of the parameters, by name.
        backend: `torch` or `jax`.

    Raises:
        UserError: the optimizer is not found, or needs more than a gradient and a learning rate.
    """

    def __init__(self, settings: Settings, shapes: Mapping[str, tuple[int, ...]], backend: str):
        self.settings, self.shapes = settings, shapes
        here = importlib.util.find_spec(backend) is not None
        self._half = importlib.import_module(f"suite.optimizers.external.{backend}") if here else None
        if self._half:
            self._half.find_optimizer(settings)

    def count_state_bytes(self) -> int | None:
        """Return the bytes of the state after a step; None if the framework is missing or the step fails."""
        return self._half.count_state_bytes(self.settings, self.shapes) if self._half else None


make = ExternalPlan
