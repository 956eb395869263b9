"""Runs the stages once on fake tensors, to learn what crosses each cut before anything is sent.

A received tensor must have the sender's strides and `requires_grad`, because kernels and their rounding depend on both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from suite.comm.partition.torch.split import Part
from suite.comm.partition.torch.trace import Traced


@dataclass(frozen=True)
class Form:
    """Form of a tensor that crosses a cut.

    Attributes:
        shape: for one micro-batch.
        stride: of each axis, in elements.
        dtype: of the elements.
        requires_grad: whether the sender's tensor requires a gradient.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool = False

    @property
    def sent_shape(self) -> tuple[int, ...]:
        """Shape that is sent: an expanded axis, whose stride is 0, is sent once."""
        return tuple(1 if step == 0 else size for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes that are sent."""
        return math.prod(self.sent_shape) * self.dtype.itemsize

    def empty(self, device: torch.device | str | None = None) -> Tensor:
        """A tensor of this form, not initialised."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


def read_form(tensor: Tensor) -> Form:
    """Return the form of a tensor."""
    return Form(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.requires_grad)


@dataclass(frozen=True)
class Cut:
    """Inputs and outputs of a stage for one micro-batch.

    Attributes:
        values: forms of the values, in the order of `Part.receives`.
        gradients: forms of their gradients, in the same order; None for a value that gets none.
    """

    values: tuple[Form, ...]
    gradients: tuple[Form | None, ...]


def find_gradients(roots: Sequence[tuple[Tensor, Tensor | None]], wanted: Sequence[Tensor]) -> list[Tensor | None]:
    """Find the gradients of some tensors, from the gradients of a stage's results.

    Args:
        roots: results and their gradients; a gradient of None stands for 1.
        wanted: tensors whose gradients are returned; None for a tensor that gets none.
    """
    if not roots or not wanted:
        return [None] * len(wanted)
    results, grads = zip(*roots, strict=True)
    return list(torch.autograd.grad(results, list(wanted), list(grads), allow_unused=True))


def rehearse_stage(traced: Traced, parts: Sequence[Part], device: torch.device | str) -> list[Cut]:
    """Return what each stage receives and returns; nothing for the first stage."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        inputs = {name: read_form(traced.fakes[name]).empty(device) for name in traced.graph.inputs}
        chain = _forward(parts, inputs)
        return _backward(parts, chain)


def _forward(
    parts: Sequence[Part], inputs: Mapping[str, Tensor]
) -> list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """For each stage, what it receives and what it sends."""
    chain = []
    sent: tuple[Tensor, ...] = ()
    for part in parts:
        received = tuple(read_form(value).empty(value.device).requires_grad_(value.requires_grad) for value in sent)
        changing = {target: read_form(buffer).empty(buffer.device) for target, buffer in part.changes.items()}
        sent = part(*(inputs[name] for name in part.inputs), *received, changing=changing)
        chain.append((received, sent))
    return chain


def _backward(parts: Sequence[Part], chain: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]) -> list[Cut]:
    """Return what each stage receives, and the gradients that it returns."""
    cuts: list[Cut] = []
    loss = chain[-1][1][0]
    roots: list[tuple[Tensor, Tensor | None]] = [(loss, None)] if loss.requires_grad else []
    for number in reversed(range(len(parts))):
        received, sent = chain[number]
        if number < len(parts) - 1:
            back = [None if f is None else f.empty(loss.device) for f in cuts[-1].gradients]
            roots = [(value, grad) for value, grad in zip(sent, back, strict=True) if grad is not None]
        wanted = [value for value in received if value.requires_grad]
        grads = dict(zip(map(id, wanted), find_gradients(roots, wanted), strict=True))
        returned = [grads.get(id(value)) for value in received]
        cuts.append(Cut(tuple(map(read_form, received)), tuple(None if g is None else read_form(g) for g in returned)))
    return cuts[::-1]
