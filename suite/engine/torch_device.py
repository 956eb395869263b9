"""The torch engine's device, and the global switches of torch that its calls set."""

import contextlib
import os
import resource
import shutil
from collections.abc import Iterator

import torch
import torch.distributed as dist

from suite.contract import UserError


def device_for(name: str) -> torch.device:
    """Return this process's device.

    Args:
        name: `auto`, `cpu` or `cuda`, as in `device=`.

    Raises:
        UserError: there is no such device.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: torch sees no GPU here; set device=cpu, or install a CUDA build of torch")
    kind = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    if kind == "cpu":
        return torch.device("cpu")
    local = (dist.get_rank() if dist.is_initialized() else 0) % torch.cuda.device_count()
    return torch.device("cuda", local)


def require_compiler(device: torch.device) -> None:
    """Check that `compile=true` finds a C++ compiler if the device is a CPU.

    Raises:
        UserError: there is none.
    """
    name = os.environ.get("CXX", "g++")
    if device.type == "cpu" and not shutil.which(name):
        raise UserError(
            f"compile=true: torch compiles to C++ on a CPU, and there is no {name} here; "
            "set compile=false, install g++, or name another compiler in CXX"
        )


def facts(device: torch.device) -> dict[str, object]:
    """Return the device's name and the peak memory, of the GPU or of this process."""
    if device.type == "cuda":
        return {
            "device": torch.cuda.get_device_name(device),
            "peak_memory_bytes": torch.cuda.max_memory_allocated(device),
        }
    return {"device": "cpu", "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


@contextlib.contextmanager
def switches(precision: str, deterministic: bool) -> Iterator[None]:
    """Set torch's global switches inside the context, and restore them afterwards.

    Args:
        precision: as in `precision=`.
        deterministic: whether to use deterministic kernels only.
    """
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    before = torch.are_deterministic_algorithms_enabled()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.use_deterministic_algorithms(deterministic)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
        torch.use_deterministic_algorithms(before)
