"""Compares the stages of a plan with the unmodified model before the first step.

The stages repeat what Python did during tracing: a counter, a branch, a number from a list. The model runs twice, so
that a difference shows.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from suite.comm.partition.plan import Plan, format_size
from suite.comm.partition.torch.alone import make_stages, micro_batch, run_micro_batch
from suite.comm.partition.torch.batches import take_samples
from suite.comm.partition.torch.stage import Stage, seed_state
from suite.comm.partition.torch.trace import Traced, WithLoss
from suite.contract import UserError
from suite.differences import find_difference, measure_difference

ARRAYS = 4  # a model's weights, their copy, and the gradients of both
Arrays = dict[str, npt.NDArray]


class Check:
    """Checks a model's stages; made before the model is traced, because it copies the model.

    Args:
        whole: the model with its loss.
        memory: bytes that the check may use.
    """

    def __init__(self, whole: WithLoss, memory: float):
        self.whole, self.memory = whole, memory
        tensors = [*whole.parameters(), *whole.buffers()]
        needed = ARRAYS * sum(tensor.nbytes for tensor in tensors)
        self.omitted = ""  # why nothing is checked
        if any(tensor.is_meta for tensor in tensors):
            self.omitted = "the model is on the meta device"
        elif needed > memory:
            self.omitted = f"two models with gradients need {format_size(needed)} of {format_size(memory)}"
        else:
            try:
                self.copied = copy.deepcopy(whole)
            except Exception as error:
                self.omitted = f"the model cannot be copied: {error}"

    def compare(self, traced: Traced, plan: Plan, batch: Any, split: list[bool], seed: int) -> str:
        """Compare loss, gradients and buffers of the first micro-batch, twice; then the mean of two losses.

        Args:
            traced: the model.
            plan: how it is cut.
            batch: (inputs, targets) with all samples of a step.
            split: which of them have samples.
            seed: of random numbers.

        Returns:
            In words, how equal they are, or why they were not compared.

        Raises:
            UserError: naming the first difference.
        """
        activations = 2 * sum(node.saved for node in traced.graph.nodes)
        if not self.omitted and activations > self.memory:
            self.omitted = f"one micro-batch needs {format_size(activations)} of {format_size(self.memory)}"
        if self.omitted:
            return f"not checked: {self.omitted}"
        device, count = next(self.copied.parameters()).device, plan.pipelines * plan.micro_batches
        chain = make_stages(traced, plan, device)
        inputs, samples = micro_batch(traced, batch, 0, count), take_samples(batch, split, slice(traced.graph.samples))
        changes = [buffer for stage in chain for buffer in stage.part.changes.values()]
        before, furthest = [buffer.clone() for buffer in changes], 0.0
        try:
            for again in range(2):
                expected = self._run_model(samples, seed + again)
                found = self._run_stages(chain, inputs, seed_state(device, seed + again))
                difference = find_difference(expected, found, _find_eps(self.copied) ** 0.5)
                if difference:
                    when = " in the second pass, because forward changes Python's state" if again else ""
                    raise UserError(f"the stages compute something else than the model{when}: {difference}")
                furthest = max(furthest, measure_difference(expected, found))
        finally:
            for buffer, value in zip(changes, before, strict=True):
                buffer.copy_(value)
        if not traced.weighted and count > 1:
            self._check_mean(batch, split, traced.graph.samples)
        return f"{furthest:.1g} of the largest norm from the model" if furthest else "the bits of the model"

    def _run_model(self, samples: Any, seed: int) -> Arrays:
        """Return loss, gradients and buffers of the copied model."""
        parameters = dict(self.copied.model.named_parameters())
        for parameter in parameters.values():
            parameter.grad = None
        with torch.enable_grad(), torch.random.fork_rng():
            torch.manual_seed(seed)
            loss, _, _ = self.copied(*pytree.tree_map_only(Tensor, torch.clone, samples))
            loss.backward()
        grads = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
        return _name_arrays(loss, grads, self.copied)

    def _run_stages(self, chain: Sequence[Stage], inputs: dict[str, Tensor], state: Tensor) -> Arrays:
        """Return the same of the stages, with the names in the model."""
        for stage in chain:
            stage.sums = {}
        run_micro_batch(chain, 0, inputs, state)
        grads = {name: grad for stage in chain for name, grad in stage.sums.items()}
        return _name_arrays(chain[-1].losses[0], grads, self.whole)

    def _check_mean(self, batch: Any, split: list[bool], size: int) -> None:
        """Check that the loss of the first and the last micro-batch together is the mean of their losses.

        It is compared in evaluation mode, without dropout; and not at all if the loss is random there.

        Raises:
            UserError: if it is not, naming an input that should be the same for every micro-batch, if there is one.
        """
        parts = [slice(size), slice(-size, None)]
        self.copied.eval()
        if not (losses := self._evaluate(batch, split, parts)) or self._is_mean(losses):
            return
        for number in range(1, len(pytree.tree_leaves(batch[0]))):
            whole = [has and place != number for place, has in enumerate(split)]
            if split[number] and (others := self._evaluate(batch, whole, parts)) and self._is_mean(others):
                raise UserError(
                    f"tensor {number} of the inputs is as long as the batch, but the model uses it as a whole: say "
                    "with batched= which inputs have samples along axis 0, such as batched=(True, False)"
                )
        raise UserError(
            f"the loss of two micro-batches together is {losses[-1]:.4g}, and the mean of their losses "
            f"{(losses[0] + losses[1]) / 2:.4g}: return the losses' sum and weight, such as (cross_entropy(..., "
            "reduction='sum'), number of words), or (loss, 1) to average micro-batches"
        )

    @torch.enable_grad()
    def _evaluate(self, batch: Any, split: list[bool], parts: list[slice]) -> list[float] | None:
        """Return the losses of two micro-batches and of both together; None if the model fails or draws numbers."""
        leaves = zip(*(pytree.tree_leaves(take_samples(batch, split, part)) for part in parts), split, strict=True)
        both = [torch.cat([first, last]) if has else first for first, last, has in leaves]
        structure = pytree.tree_structure(batch)
        before = torch.get_rng_state()
        try:
            batches = [*(take_samples(batch, split, part) for part in parts), structure.unflatten(both)]
            losses = [self.copied(*pytree.tree_map_only(Tensor, torch.clone, one))[0].item() for one in batches]
            return losses if torch.equal(torch.get_rng_state(), before) else None
        except Exception:  # the model accepts this size of batch only, or is no function of it in evaluation mode
            return None
        finally:
            torch.set_rng_state(before)

    def _is_mean(self, losses: list[float]) -> bool:
        first, last, both = losses
        return abs((first + last) / 2 - both) <= _find_eps(self.copied) ** (2 / 3) * abs(both)


def _name_arrays(loss: Tensor, grads: Mapping[str, Tensor], whole: WithLoss) -> Arrays:
    named = {f"the gradient of {name}": grad for name, grad in sorted(grads.items())}
    named |= {f"the buffer {name}": buffer for name, buffer in whole.model.named_buffers()}
    return {"the loss": _to_array(loss), **{name: _to_array(value) for name, value in named.items()}}


def _to_array(value: Tensor) -> npt.NDArray:
    value = value.detach().cpu().resolve_conj()
    return (value.float() if value.is_floating_point() and value.itemsize < 4 else value).numpy().copy()


def _find_eps(model: nn.Module) -> float:
    """Return the spacing of the model's numbers at 1. Its square root is more than rounding, less than a mistake."""
    types = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return max(torch.finfo(dtype).eps for dtype in types)
