"""Products with block-sparse matrices in torch."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from suite.tasks._sparse import WORTHWHILE, Shape


class BlockLinear(nn.Module):
    """x Wᵀ + b with a block-sparse W; replaces `torch.nn.Linear`.

    Args:
        shape: of W, (outputs, inputs).
        count: blocks that are stored, n.
        block: rows and columns of one, b.
        explores: whether to store `visited`, the places where a block has ever been.
        execution: how to multiply, as in `Sparsity`.
    """

    pattern: Tensor

    def __init__(self, shape: Shape, *, count: int, block: int, explores: bool, execution: str):
        super().__init__()
        self.shape, self.execution = shape, execution
        self.weight = nn.Parameter(torch.zeros(count, block, block))
        self.bias = nn.Parameter(torch.zeros(shape[0]))
        self.register_buffer("pattern", torch.zeros(count, dtype=torch.int32))
        if explores:
            places = shape[0] // block * (shape[1] // block)
            self.register_buffer("visited", torch.zeros(places, dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) to (…, outputs)."""
        auto = "blocks" if x.device.type == "cpu" and self.weight.shape[1] >= WORTHWHILE else "dense"
        if (auto if self.execution == "auto" else self.execution) == "dense":
            return functional.linear(x, assemble_matrix(self.weight, self.pattern, self.shape), self.bias)
        return multiply_blocks(x, self.weight, self.pattern, self.shape[0]) + self.bias


def assemble_matrix(weight: Tensor, pattern: Tensor, shape: Shape) -> Tensor:
    """Assemble the dense matrix (O, I) from blocks (n, b, b) at the places `pattern` (n,)."""
    block = weight.shape[1]
    rows, columns = (size // block for size in shape)
    empty = torch.zeros(rows * columns, block, block, dtype=weight.dtype, device=weight.device)
    matrix = empty.index_copy(0, pattern.long(), weight)
    return matrix.view(rows, columns, block, block).transpose(1, 2).reshape(shape)


@torch.compiler.disable()  # a compiler would unroll the loop over blocks
def multiply_blocks(x: Tensor, weight: Tensor, pattern: Tensor, outputs: int) -> Tensor:
    """X Wᵀ of (…, I), where W (O, I) has the blocks (n, b, b) at `pattern` (n,); costs n block products.

    Under autocast, inputs and result are rounded to its type; sums are computed in at least float32.
    """
    flat, narrow = x.reshape(-1, x.shape[-1]), None
    if torch.is_autocast_enabled(x.device.type):
        narrow = torch.get_autocast_dtype(x.device.type)
        flat, weight = (value.to(narrow).float() for value in (flat, weight))
    result = _Product.apply(flat, weight, pattern, outputs)
    return (result if narrow is None else result.to(narrow)).view(*x.shape[:-1], outputs)


class _Product(torch.autograd.Function):
    """Product with samples in columns, so that the rows that a block reads and writes are contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, pattern: Tensor, outputs: int) -> Tensor:
        block = weight.shape[1]
        inputs = x.t().contiguous()
        result = inputs.new_zeros(outputs, x.shape[0])
        read, written = inputs.split(block), result.split(block)
        for at, row, column in _blocks(weight, pattern, len(read)):
            written[row].addmm_(at, read[column])
        ctx.save_for_backward(inputs, weight, pattern)
        return result.t().contiguous()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        inputs, weight, pattern = ctx.saved_tensors
        block = weight.shape[1]
        slope = slopes[0].t().contiguous()
        read, given = inputs.split(block), slope.split(block)
        by_input, by_weight = torch.zeros_like(inputs), torch.empty_like(weight)
        written = by_input.split(block)
        for at, row, column in _blocks(weight.transpose(1, 2).contiguous(), pattern, len(read)):
            written[column].addmm_(at, given[row])
        for at, row, column in _blocks(by_weight, pattern, len(read)):
            torch.mm(given[row], read[column].t(), out=at)
        return by_input.t().contiguous(), by_weight, None, None


def _blocks(weight: Tensor, pattern: Tensor, columns: int) -> list[tuple[Tensor, int, int]]:
    """Each block with its row and column in the grid, row by row, so that neighbours read or write the same rows."""
    stored = weight.unbind()
    return [(stored[at], place // columns, place % columns) for place, at in _ordered(pattern)]


def _ordered(pattern: Tensor) -> list[tuple[int, int]]:
    places = pattern.tolist()
    return sorted(zip(places, range(len(places)), strict=True))
