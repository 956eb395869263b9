"""Codecs on a pretend GPU: the payloads are the CPU's, byte for byte, and the host never waits for the device."""

from collections.abc import Callable
from typing import Any

import coded
import pytest

pytestmark = pytest.mark.xdist_group("accelerator payloads")


@pytest.fixture(scope="module")
def found(on_device: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    return on_device("accelerator.payloads.compare", list(coded.NODES))


@pytest.mark.parametrize("key", coded.NODES)
def test_every_codec(found: dict[str, dict[str, Any]], key: str) -> None:
    assert found[key] == {"different": [], "waits": {}}
