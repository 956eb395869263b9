"""The operations of first-order rules in torch."""

from typing import Any

import torch
from torch import Tensor

from suite.contract import Rows
from suite.optimizers._linalg.torch import compute_norms
from suite.optimizers._rules import Ops, find_matrices

Tensors = list[Tensor]


class TorchOps(Ops[Tensor]):
    """Operations on lists of tensors, in place."""

    xp = torch

    def average(self, mean: Tensors, values: Tensors, beta: float) -> Tensors:
        torch._foreach_lerp_(mean, values, 1.0 - beta)
        return mean

    def average_squares(self, mean: Tensors, values: Tensors, beta: float) -> Tensors:
        torch._foreach_mul_(mean, beta)
        torch._foreach_addcmul_(mean, values, values, 1.0 - beta)
        return mean

    def accumulate(self, total: Tensors, values: Tensors, mu: float) -> Tensors:
        torch._foreach_mul_(total, mu)
        torch._foreach_add_(total, values)
        return total

    def accumulate_squares(self, total: Tensors, values: Tensors) -> Tensors:
        torch._foreach_addcmul_(total, values, values)
        return total

    def accumulate_ratios(
        self, total: Tensors, values: Tensors, scale: Tensors, mu: float, rate: float = 1.0
    ) -> Tensors:
        torch._foreach_mul_(total, mu)
        torch._foreach_addcdiv_(total, values, scale, rate)
        return total

    def assign(self, old: Tensor, new: Tensor) -> Tensor:
        return old.copy_(new)

    def weigh(self, beta: float, steps: Tensor) -> Tensor:
        return 1.0 - beta**steps  # in float64, as the steps are: it cancels

    def root(
        self, values: Tensors, weight: Tensor | None = None, *, inside: float = 0.0, outside: float = 0.0
    ) -> Tensors:
        if inside:
            found = torch._foreach_add(values, inside)
            torch._foreach_sqrt_(found)
        else:
            found = torch._foreach_sqrt(values)
        if weight is not None:
            torch._foreach_div_(found, weight.sqrt().to(found[0].dtype))
        if outside:
            torch._foreach_add_(found, outside)
        return list(found)

    def divide(self, values: Tensors, by: Tensors | Tensor) -> Tensors:
        return list(torch._foreach_div(values, by if isinstance(by, list) else by.to(values[0].dtype)))

    def variance(self, squares: Tensors, mean: Tensors) -> Tensors:
        found = torch._foreach_addcmul(squares, mean, mean, -1.0)
        torch._foreach_clamp_min_(found, 0.0)  # a constant gradient has no variance, but rounding errors
        return list(found)

    def add(self, values: Tensors, others: Tensors, factor: float) -> Tensors:
        return list(torch._foreach_add(values, others, alpha=factor))

    def add_decay(self, values: Tensors, weights: Tensors, decay: float, *, owned: bool = False) -> Tensors:
        places = find_matrices(weights)
        if not places or not decay:
            return values
        decayed, matrices = [values[place] for place in places], [weights[place] for place in places]
        if owned:
            torch._foreach_add_(decayed, matrices, alpha=decay)
            return values
        found = dict(zip(places, torch._foreach_add(decayed, matrices, alpha=decay), strict=True))
        return [found.get(place, value) for place, value in enumerate(values)]

    def affine(self, values: Tensors, factor: Tensor, term: Tensor | None = None) -> Tensors:
        torch._foreach_mul_(values, factor.to(values[0].dtype))
        if term is not None:  # without alpha, torch reads the tensor as a number
            torch._foreach_add_(values, term.to(values[0].dtype), alpha=1.0)
        return values

    def normalize(self, squares: Tensors, values: Tensors, epsilon: float) -> Tensors:
        torch._foreach_add_(squares, epsilon)
        torch._foreach_rsqrt_(squares)
        torch._foreach_mul_(squares, values)
        return squares

    def norms(self, values: Tensors) -> Tensor:
        return compute_norms(values) if values else torch.zeros(0)

    def clip(self, value: Tensor, least: float, largest: float) -> Tensor:
        return value.clamp(least, largest or None)

    def scale_layers(self, values: Tensors, places: list[int], factors: Tensor, rest: float | None = None) -> Tensors:
        each = dict(zip(places, factors.unbind(), strict=True))
        if rest is not None:
            other = values[0].new_full((), rest)
            return list(torch._foreach_mul(values, [each.get(place, other) for place in range(len(values))]))
        if places:
            torch._foreach_mul_([values[place] for place in places], list(each.values()))
        return values

    def move(self, weights: Tensors, direction: Tensors, rate: float) -> Tensors:
        torch._foreach_add_(weights, direction, alpha=-rate)
        return weights

    def move_by_ratios(
        self, weights: Tensors, values: Tensors, scale: Tensors, rate: float, decay: float = 0.0
    ) -> Tensors:
        if decay and (places := find_matrices(weights)):
            torch._foreach_mul_([weights[place] for place in places], 1.0 - rate * decay)
        torch._foreach_addcdiv_(weights, values, scale, -rate)
        return weights

    def move_rows(self, table: Tensor, rows: Rows, rate: float) -> Any:
        return table.index_add_(0, *rows, alpha=-rate)

    def merge_rows(self, rows: Rows) -> Rows:
        return rows  # as `read_rows` has done

    def accumulate_rows(self, total: Tensor, rows: Rows) -> Tensor:
        return total.index_add_(0, *rows)

    def accumulate_squared_rows(self, total: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        found = total[rows.ids].addcmul_(rows.values, rows.values)
        return total.index_copy_(0, rows.ids, found), found


OPS = TorchOps()
