"""The base of torch optimizers that need statistics of the layers beside the gradient."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from suite.contract import Layer, UserError
from suite.optimizers._base.torch import Optimizer

Tree = dict[str, Tensor]


class Observing(Optimizer):
    """An optimizer whose `observe` computes statistics of the layers' inputs and output gradients.

    The suite's engine passes them to `absorb`. In your own training loop, `suite.engine.torch_alone.observed` collects
    them with `see` for the next step.
    """

    layers: Mapping[str, Layer]  # the observed layers, by module name
    _sums: Tree | None = None
    _samples: float = 0.0

    def observe(self, taps: Mapping[tuple[str, int], tuple[Tensor, Tensor]], weight: Tensor) -> Tree:
        """Compute statistics from the taps of one backward pass.

        Args:
            taps: the input and the output gradient of each call of a layer, by (layer, call).
            weight: the samples' weights, (N,).

        Returns:
            Sums over samples, by name.
        """
        raise NotImplementedError

    def due(self) -> bool:
        """Return whether the next step uses statistics."""
        return True

    @contextlib.contextmanager
    def forward_weights(self) -> Iterator[None]:
        """Set the weights for the next step's forward pass inside the context; by default the parameters."""
        yield

    def see(self, sums: Tree, samples: float) -> None:
        """Add statistics for the next step.

        Args:
            sums: sums over the samples of a micro-batch, by name.
            samples: the summed weight of these samples.
        """
        totals = self._sums or {}
        self._sums = totals | {name: totals[name] + value if name in totals else value for name, value in sums.items()}
        self._samples += samples

    def seen(self) -> Tree:
        """Return the mean statistics since the last step, and forget them.

        Raises:
            UserError: if there are none.
        """
        if self._sums is None:
            kind = type(self).__name__
            raise UserError(
                f"{kind} needs statistics of its layers beside the gradient; use 'from suite.engine.torch_alone "
                "import observed', and run forward and backward inside 'with observed(model, optimizer):' before each "
                "step"
            )
        means = {name: value / self._samples for name, value in self._sums.items()}
        self._sums, self._samples = None, 0.0
        return means

    def _closed(self) -> None:
        """Reject a parameter group that is added after construction.

        Raises:
            UserError: always.
        """
        kind = type(self).__name__
        raise UserError(
            f"{kind}.add_param_group: groups cannot be added later, because layers are grouped at construction; "
            f"use {kind}([{{'params': …}}, {{'params': …}}], layers=…)"
        )

    def _shared(self, *names: str) -> dict[str, Any]:
        """Return the first group, after checking that the settings `names` are equal in all groups.

        Raises:
            UserError: if one of them differs.
        """
        first, *others = self.param_groups
        for name in names:
            if any(group[name] != first[name] for group in others):
                raise UserError(
                    f"{type(self).__name__}: {name} differs between parameter groups, but the parameters of a layer "
                    "share it, whatever their groups; give all groups the same value"
                )
        return first
