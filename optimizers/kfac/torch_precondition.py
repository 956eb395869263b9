"""Natural gradient: K-FAC's inverses applied to gradients, in torch."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from suite.optimizers._base.torch import place_numbers
from suite.optimizers._linalg.torch import multiply_values
from suite.optimizers.kfac.plan import KFACPlan

Tree = dict[str, Tensor]


def precondition_gradients(
    plan: KFACPlan, state: dict[str, Any], grads: Tree, ridges: Tensor, damping: float | Tensor
) -> Tree:
    """G⁻¹ ∇W A⁻¹ for every covered layer whose parameters all have a gradient; other gradients stay as they are.

    Args:
        plan: where the factors are.
        state: of the optimizer.
        grads: by parameter.
        ridges: (F,), what is added to the diagonal of each factor.
        damping: λ.
    """
    whole = {name for name, layer in plan.layers.items() if all(parameter in grads for parameter in layer.parameters)}
    direction, mass = dict(grads), state["mass"].clamp_min(torch.finfo(ridges.dtype).tiny)

    def inverse(side: str) -> Tensor:
        key, row = plan.buckets.place[side]
        return state["inverse"][key][row]

    for name in filter(whole.__contains__, plan.kronecker):
        weight, *bias = plan.layers[name].parameters
        last = grads[weight].movedim(1, -1)  # the channel comes last in A
        columns = [last.flatten(1), *(grads[b][:, None] for b in bias)]
        full = inverse(f"{name}/out") @ torch.cat(columns, 1) @ inverse(f"{name}/in")
        direction[weight] = full[:, : columns[0].shape[1]].reshape(last.shape).movedim(-1, 1).contiguous()
        direction.update({b: full[:, -1] for b in bias})
    for name in filter(whole.__contains__, plan.embedding):
        weight, side = plan.layers[name].parameters[0], f"{name}/in"
        diagonal = state["replicated"][side] / mass[plan.index[side]] + ridges[plan.index[side]]
        direction[weight] = grads[weight] / diagonal[:, None] @ inverse(f"{name}/out")
    for name in filter(whole.__contains__, plan.whole):
        both = plan.layers[name].parameters
        full = inverse(name) @ torch.cat([grads[parameter] for parameter in both])
        direction.update(zip(both, full.chunk(2), strict=True))
    for name in filter(whole.__contains__, plan.unit):
        weight, bias = plan.layers[name].parameters
        a, b, c = (state["replicated"][name] / mass[plan.index[name]]).unbind(1)  # [[a, b], [b, c]] for each channel
        a, c = a + damping, c + damping
        determinant = a * c - b * b
        direction[weight] = (c * grads[weight] - b * grads[bias]) / determinant
        direction[bias] = (a * grads[bias] - b * grads[weight]) / determinant
    return direction


def clip_direction(plan: KFACPlan, grads: Tree, direction: Tree, *, rates: Mapping[str, float], bound: float) -> Tree:
    """Return the covered parameters' d = F⁻¹ g, scaled so that the squared length lr² dᵀ F d is at most `bound`.

    `rates` are the learning rates by parameter.
    """
    covered = [name for layer in plan.layers.values() for name in layer.parameters if name in grads]
    if not covered:
        return {}
    lr = max((rates[name] for name in covered), default=0.0)
    parts = torch.stack([multiply_values(grads[name], direction[name]) for name in covered])
    if any(rates[name] != lr for name in covered):
        parts = parts * place_numbers([(rates[name] / lr) ** 2 for name in covered], parts)
    length = parts.sum().clamp_min(torch.finfo(parts.dtype).tiny)
    factor = ((bound / length).sqrt() / max(lr, 1e-30)).clamp(max=1.0)
    return {name: direction[name] * factor for name in covered}
