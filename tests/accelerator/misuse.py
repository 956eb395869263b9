"""Operations that CUDA refuses, tried on the pretend device, in the process of `conftest.py`."""

import torch

from accelerator import device


def find_errors() -> dict[str, str]:
    """Return the error of each misuse by name, `""` where there is none."""
    errors = {}
    with device.Tensors():
        x, on_cpu = torch.ones(3, device="cuda"), torch.ones(3)
        torch.use_deterministic_algorithms(True)
        misuses = {
            "two devices": lambda: x + on_cpu,
            "a CPU scalar in a list": lambda: torch._foreach_mul([x], torch.ones(())),
            "a CPU scalar": lambda: x + torch.ones(()),
            "a sum of floats": lambda: x.cumsum(0),
            "a sum of integers": lambda: x.long().cumsum(0),
            "two streams": lambda: change_streams(waits=False, records=True),
            "memory of two streams": lambda: change_streams(waits=True, records=False),
            "streams that wait": lambda: change_streams(waits=True, records=True),
        }
        for name, misuse in misuses.items():
            try:
                misuse()
                errors[name] = ""
            except RuntimeError as error:
                errors[name] = str(error)
    return errors


def change_streams(*, waits: bool, records: bool) -> None:
    """Make a tensor in one stream, and use it in another."""
    current, other = torch.cuda.current_stream(), torch.cuda.Stream()
    with torch.cuda.stream(other):
        x = torch.ones(3, device="cuda")
    if waits:
        current.wait_stream(other)
    if records:
        x.record_stream(current)
    x + x


def count_waits() -> dict[str, int]:
    """Return the waits of operations that wait and of some that do not."""
    counts = {}
    with device.Tensors():
        x = torch.ones(3, device="cuda")
        actions = {
            "item": lambda: x.sum().item(),
            "mask": lambda: x[x > 0],
            "index on the CPU": lambda: x[torch.tensor([1])],
            "copy to the device": lambda: torch.ones(3).to("cuda"),
            "copy without blocking": lambda: torch.ones(3).to("cuda", non_blocking=True),
            "large copy without blocking": lambda: torch.ones(2**15).to("cuda", non_blocking=True),
            "large copy from pinned memory": lambda: torch.ones(2**15).pin_memory().to("cuda", non_blocking=True),
            "numbers": lambda: x.new_tensor([1.0, 2.0]),
            "copy to the host": lambda: x.cpu(),
            "sum": lambda: x.sum(),
            "repeats": lambda: x.repeat_interleave(x.long()),
            "repeats of a known number": lambda: x.repeat_interleave(x.long(), output_size=3),
        }
        for name, action in actions.items():
            device.waits.clear()
            action()
            counts[name] = sum(device.waits.values())
    return counts


def collect() -> tuple[dict[str, str], dict[str, int]]:
    """Return `find_errors()` and `count_waits()`."""
    return find_errors(), count_waits()
