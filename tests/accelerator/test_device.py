"""Tests of the pretend GPU: it refuses what CUDA refuses, and counts where the host waits."""

from collections.abc import Callable
from typing import Any


def test_gradients_are_sent_in_another_stream_and_used_when_they_have_arrived(on_device: Callable[..., Any]) -> None:
    found = on_device("accelerator.sending.send")
    assert found["Overlap"] == {"means": {"weight": [[3.0, 3.0]] * 2, "bias": [1.5, 1.5]}, "beside": True}
    assert found["DoubleBuffering"] == {"means": {"weight": [[1.5, 1.5]] * 2, "bias": [1.5, 1.5]}, "beside": True}


def test_residuals_of_another_stream_are_kept_until_they_are_read(on_device: Callable[..., Any]) -> None:
    assert on_device("accelerator.sending.resume") == [1.5, 1.5, 1.5]


def test_errors_and_waits(on_device: Callable[..., Any]) -> None:
    errors, waits = on_device("accelerator.misuse.collect")
    refused = {name for name, text in errors.items() if text}
    on_streams = {"two streams", "memory of two streams"}
    assert refused == {"two devices", "a CPU scalar in a list", "a sum of floats"} | on_streams
    assert {name for name, count in waits.items() if not count} == {
        "copy without blocking",
        "large copy from pinned memory",
        "sum",
        "repeats of a known number",
    }
