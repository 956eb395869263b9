"""Codecs on the pretend device and on the CPU, in the process of `conftest.py`."""

from typing import Any

import coded
import torch

from accelerator import device

LENGTHS = (*range(41), 513, 40_001)
SPECIAL = torch.tensor([torch.inf, torch.nan, 1e-42, -0.0, -3.4e38])


def compare(keys: list[str]) -> dict[str, dict[str, Any]]:
    """Encode and decode the same values on the device and on the CPU.

    Returns:
        For each codec of `coded.NODES`:
        different: lengths of the arrays whose payloads or decoded values differ.
        waits: the most waits of the host in encoding or decoding one array, by line of the suite.
    """
    return {key: compare_codec(coded.halves(coded.NODES[key])["torch"]) for key in keys}


def compare_codec(codec: Any) -> dict[str, Any]:
    """As `compare`, for one codec."""
    different, most = [], {}
    for length in LENGTHS:
        values = torch.tensor(coded.samples(length, length).tolist())
        values[7 : 7 + len(SPECIAL)] = SPECIAL[: max(0, length - 7)]
        draws = torch.rand(length, generator=torch.Generator().manual_seed(length))
        expected = transfer(codec, values, draws)
        device.waits.clear()
        with device.Tensors():
            found = transfer(codec, device.OnDevice(values.clone()), device.OnDevice(draws))
        most = max(most, dict(device.waits), key=lambda counts: sum(counts.values()))
        pairs = zip(map(device.copy_to_host, found), expected, strict=True)
        if not all(torch.equal(one.view(torch.uint8), other.view(torch.uint8)) for one, other in pairs):
            different.append(length)
    return {"different": different, "waits": most}


def transfer(codec: Any, values: torch.Tensor, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A payload, and the values decoded from it."""
    payload = codec.encode(values, lambda count: draws[:count])
    return payload, codec.decode(payload, values)
