"""Bytes are true: what the ledger says left a host, its kernel says too, in both frameworks; hosts agree bitwise."""

from collections.abc import Iterator
from typing import Any

import pytest
import wired
from wired import CONSTANT, SHAPED, UNSHAPED

from suite.comm.settings import CommSettings
from suite.settings import configure
from testbed import Testbed, missing

pytestmark = [pytest.mark.testbed, pytest.mark.skipif(bool(REASON := missing()), reason=REASON)]


def mode(*overrides: str) -> CommSettings:
    return configure.resolve_training(["task=resnet50", *overrides]).comm


FLAT = {name: mode(f"comm={name}") for name in ("float32", "bfloat16", "float21")}
FLAT["ring"] = mode("comm=float21", "comm.algorithm=ring")
BY_HOSTS = {name: mode(f"comm={name}", "comm.ranks_per_host=2") for name in ("hierarchical", "leader")}
BITS = {"float32": 32, "bfloat16": 16, "float21": 64 / 3, "ring": 64 / 3, "hierarchical": 64 / 3, "leader": 32}


def check(found: dict[str, Any], factor: float) -> None:
    for name, value in found.items():
        assert len(value["hashes"]) == 1, f"{name}: ranks hold different bits"
        for ledger, kernel in zip(value["ledger"], value["kernel"], strict=True):
            assert ledger <= kernel <= ledger * factor + CONSTANT, f"{name}: {ledger} by the ledger, {kernel} sent"
            # two hosts: each sends what the other lacks of the sum, and of the mean; in all once the whole array
            assert ledger == pytest.approx(2_500_000 * BITS[name] / 8, rel=1e-5), name


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed(2, verify=False) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("modes, local", [(FLAT, 1), (BY_HOSTS, 2)], ids=["flat", "two ranks a host"])
def test_ledger_and_kernel_agree(bed: Testbed, backend: str, modes: dict[str, Any], local: int) -> None:
    check(wired.start(bed, backend, modes, local=local), UNSHAPED)


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["100mbit", "1gbit"])
def test_on_a_shaped_link_too(rate: str) -> None:
    with Testbed(2, rate) as made:
        for backend in ("torch", "jax"):
            for modes, local in ((FLAT, 1), (BY_HOSTS, 2)):
                check(wired.start(made, backend, modes, local=local), SHAPED)
