"""Tests of interfaces: code that is written once for each framework has one interface."""

import inspect

import pytest

from suite import contract
from suite.comm.reduce.jax import Reduce as InJax
from suite.comm.reduce.torch import Reduce as InTorch
from suite.optimizers._base import Alone

METHODS = ("exact", "mean", "to_owners", "gather", "mine")


def parameters(function: object) -> list[tuple[str, object, object]]:
    """Name, kind and default of each parameter."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    return [(one.name, one.kind, one.default) for one in signature.parameters.values()]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("implementation", [InTorch, InJax, Alone])
def test_reductions_have_the_signatures_of_the_contract(implementation: type, method: str) -> None:
    assert parameters(getattr(implementation, method)) == parameters(getattr(contract.Reduce, method))


@pytest.mark.parametrize("method", ["buckets", "bucket"])
def test_both_frameworks_send_buckets_alike(method: str) -> None:
    assert parameters(getattr(InTorch, method)) == parameters(getattr(InJax, method))
