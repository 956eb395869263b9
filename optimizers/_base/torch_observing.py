"""Base of torch optimizers that need statistics of the layers beside the gradient."""

import contextlib
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, distributed

from suite.contract import Layer, UserError
from suite.optimizers._base.torch import Chosen, Optimizer, by_name, widen_type
from suite.optimizers._base.torch_shards import gather_whole
from suite.optimizers._plan import read_layers

Tree = dict[str, Tensor]


class Observing(Optimizer[Chosen]):
    """An optimizer whose `observe` computes statistics of the layers' inputs and output gradients.

    The suite's engine passes them to `absorb`. In your own training loop, `suite.engine.torch_alone.observed` collects
    them with `see` for the next step.
    """

    compiles = False
    layers: Mapping[str, Layer]  # the observed layers, by module name
    scaled: bool | None = None  # whether the last pass was observed with a GradScaler
    grad_scale: Tensor | float | None = 1.0  # set by GradScaler during `step`, as for torch's fused optimizers
    found_inf: Tensor | None = None
    _step_supports_amp_scaling = True
    _sums: Tree | None = None
    _samples: float = 0.0
    _warned: bool = False  # of statistics that are not finite

    def _step(self, closure: Callable[[], Any] | None = None, **inputs: Any) -> Any:
        """Do what `step` describes, unless a GradScaler found infinite gradients.

        Raises:
            UserError: a GradScaler scales the loss, but `observed` does not know it; statistics are missing.
        """
        return super()._step(closure, **inputs) if self._unscale() else None

    def _unscale(self) -> bool:
        """Divide the gradients by a GradScaler's scale; return whether they are finite."""
        if self.found_inf is None:
            return True
        if self.scaled is False:
            kind = type(self).__name__
            raise UserError(
                f"{kind}: the loss is scaled by a GradScaler, and so are the statistics of the layers; use "
                "'with observed(model, optimizer, scaler=scaler):'"
            )
        if self.found_inf:
            self._sums, self._samples = None, 0.0
            return False
        if self.grad_scale is not None:
            for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
                if parameter.grad is None:
                    continue
                if parameter.dtype == torch.float16:
                    raise UserError(
                        f"{type(self).__name__}: a GradScaler cannot unscale gradients in float16: small values would "
                        "become zero; keep the parameters in float32, and use torch.autocast"
                    )
                parameter.grad /= self.grad_scale
        return True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and the statistics of their passes."""
        super().zero_grad(set_to_none)
        self._sums, self._samples = None, 0.0

    def forget_cleared(self) -> None:
        """Forget the statistics of earlier passes if their gradients are gone, as after `model.zero_grad()`."""
        if self._sums is None:
            return
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not any(grad._nnz() if grad.is_sparse else gather_whole(grad).any() for grad in grads):
            self._sums, self._samples = None, 0.0

    def name_layers(self, layers: Mapping[str, Layer]) -> dict[str, Tensor]:
        """Take over the observed layers; return the parameters by name.

        Raises:
            UserError: the parameters have no names, a layer has one that is not among them, or their types differ.
        """
        named = by_name(self)
        self.layers = read_layers(layers, named)
        kinds = {widen_type(named[name].dtype): name for layer in layers.values() for name in layer.parameters}
        if len(kinds) > 1:
            raise UserError(
                f"layers: {' and '.join(kinds.values())} have different types; convert the model to one type"
            )
        return named

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
        """Return the mean statistics since the last step, over all ranks of the default group, and forget them.

        Raises:
            UserError: if there are none, or if the ranks observed different layers.
        """
        device = self.param_groups[0]["params"][0].device
        sums, samples = _sum_over_ranks(self._sums or {}, self._samples, device)
        if self._sums is None:
            kind = type(self).__name__
            raise UserError(
                f"{kind} needs statistics of its layers beside the gradient; use 'from suite.engine.torch_alone "
                "import observed', and run forward and backward inside 'with observed(model, optimizer):' before each "
                "step"
            )
        self._sums, self._samples = None, 0.0
        means = {name: value / samples for name, value in sums.items()}
        if means and not self._warned and not torch.stack([value.isfinite().all() for value in means.values()]).all():
            self._warned = True
            warnings.warn(
                f"{type(self).__name__}: inputs or gradients of layers are not finite, so that the weights will not be "
                "either; if the loss is a mean over something else than samples, such as words, pass their number, "
                "observed(model, optimizer, counted=…); else lower lr, or raise damping",
                stacklevel=5,
            )
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


def _sum_over_ranks(sums: Tree, samples: float, device: torch.device) -> tuple[Tree, float]:
    """Return statistics and their number of samples, summed over the ranks of the default group.

    DistributedDataParallel averages the gradients over this group.

    Raises:
        UserError: the ranks have statistics of different layers.
    """
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return sums, samples
    names = sorted(sums)
    digest = zlib.crc32("\n".join(names).encode())
    largest = torch.tensor([digest, -digest], device=device)
    distributed.all_reduce(largest, distributed.ReduceOp.MAX)
    if largest.tolist() != [digest, -digest]:
        raise UserError(
            f"the ranks observed different layers, rank {distributed.get_rank()} {', '.join(names) or 'none'}; call "
            "every layer on every rank, inside observed"
        )
    if not sums:
        return sums, samples
    whole = torch.cat([sums[name].flatten() for name in names])
    whole = torch.cat([whole, whole.new_tensor([samples])])
    distributed.all_reduce(whole)
    *parts, count = whole.split([*(sums[name].numel() for name in names), 1])
    return {name: part.view_as(sums[name]) for name, part in zip(names, parts, strict=True)}, count.item()
