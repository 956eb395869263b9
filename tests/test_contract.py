"""Both engines implement the stated contract, with equal signatures."""

import importlib
import inspect
from typing import TYPE_CHECKING

import pytest

from suite import contract
from suite.load import BACKENDS

pytestmark = pytest.mark.quick

if TYPE_CHECKING:  # checked by pyright
    from suite.engine import jax, torch

    def _torch(engine: torch.Engine) -> contract.Engine:
        return engine

    def _jax(engine: jax.Engine) -> contract.Engine:
        return engine


def methods(protocol: type) -> dict[str, tuple[str, ...]]:
    """Names of the parameters of a protocol's methods."""
    return {
        name: tuple(inspect.signature(member).parameters)
        for name, member in vars(protocol).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_engine_has_every_method_of_the_contract(backend: str) -> None:
    engine = importlib.import_module(f"suite.engine.{backend}").Engine
    for name, parameters in methods(contract.Engine).items():
        assert tuple(inspect.signature(getattr(engine, name)).parameters) == parameters, name


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_have_every_method_of_the_contract(backend: str) -> None:
    ranks = importlib.import_module(f"suite.engine.ranks.{backend}").Ranks
    for name, parameters in methods(contract.Ranks).items():
        assert tuple(inspect.signature(getattr(ranks, name)).parameters) == parameters, name


def test_engines_have_the_same_public_methods() -> None:
    public = [
        {name for name in vars(importlib.import_module(f"suite.engine.{backend}").Engine) if not name.startswith("_")}
        for backend in BACKENDS
    ]
    assert public[0] - {"pin_batch"} == public[1]  # `Pins`: jax chooses how it copies
