"""SM3's and AdaGrad's bytes of state, against the state of the torch optimizers."""

import pytest
from claimed import holds

from suite.studies.sm3_bytes import measure


def test_the_claim_holds() -> None:
    assert all(holds("anil2019-sm3-bytes", name) for name in ("cover", "sum", "state"))


@pytest.mark.parametrize("rows, columns", [(3, 5), (1, 8), (64, 64)])
def test_the_bytes_are_those_of_the_formula(rows: int, columns: int) -> None:
    assert measure(0, quantity="cover", rows=rows, columns=columns) == 1
    assert measure(0, quantity="sum", rows=rows, columns=columns) == 1
    cells = rows * columns
    assert measure(0, quantity="state", rows=rows, columns=columns) == (rows + columns + cells) / (2 * cells)


def test_the_torch_optimizers_store_as_much() -> None:
    torch = pytest.importorskip("torch")
    from suite.optimizers.adagrad.torch import make as adagrad
    from suite.optimizers.sm3.torch import make as sm3

    def numbers(make, **settings) -> int:
        weight = torch.nn.Parameter(torch.ones(30, 50))
        optimizer = make([weight], **settings)
        weight.grad = torch.ones_like(weight)
        optimizer.step()

        def count(value) -> int:
            if isinstance(value, torch.Tensor):
                return value.numel() if value.ndim else 0
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            return sum(map(count, parts))

        return count(optimizer.state[weight])

    assert numbers(sm3) / numbers(adagrad, momentum=0.9) == pytest.approx(
        measure(0, quantity="state", rows=30, columns=50)
    )
