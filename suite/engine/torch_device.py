"""Device of the torch engine, and the global switches of torch that its calls set."""

import contextlib
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from suite import load
from suite.contract import Task, UserError
from suite.nodes import TaskSettings


def device_for(name: str) -> torch.device:
    """Return this process's device: the CPU, or the GPU with the number of this rank on its host (LOCAL_RANK).

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
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


def explain_cpu() -> str | None:
    """Return why torch cannot use a GPU that is present; None if it can."""
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA; install a CUDA build of torch"
    return f"torch {torch.__version__} does not find a driver for CUDA {torch.version.cuda}; update the driver"


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


def measure_device(device: torch.device) -> dict[str, object]:
    """Return the device's name and the peak memory, of the GPU or of this process."""
    if device.type == "cuda":
        return {
            "device": torch.cuda.get_device_name(device),
            "peak_memory_bytes": torch.cuda.max_memory_allocated(device),
        }
    return {"device": "cpu", "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def store_channels_last(value: Tensor) -> Tensor:
    """Return images (N, C, H, W) stored with channels last, as a GPU's convolutions read them; values stay the same.

    Convolutions and batch normalisation pass this order on. Weights keep torch's usual order, because snapshots, codecs
    and optimizers read them flat; a convolution then copies its weights into the other order.
    """
    return value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value


class _NoInitialValues(TorchFunctionMode):
    """Makes the functions of `torch.nn.init` do nothing."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def describe_model(node: TaskSettings, task: Task) -> Any:  # a TorchModel that is also an nn.Module
    """Return a task's model without values, on the `meta` device: it takes no memory and no random numbers.

    torch's own initial values are left out. On `meta`, drawing them would load torch's compiler, which takes two
    seconds.

    Args:
        node: the task's settings.
        task: data and model description.

    Raises:
        UserError: the model does not define `loss`.
    """
    with torch.device("meta"), _NoInitialValues():
        model = node.make_model("torch", task)
    load.check_names(model, "forward", "loss")
    return model


def leave_compiler_unloaded() -> None:
    """Let torch's optimizers work without its compiler, which takes two seconds to load.

    torch keeps compiled code out of some of their methods: the first call of such a method loads the compiler and
    stores how it is called from then on. Runs compile no optimizer, so that it can be called as it is.
    """
    for method in vars(torch.optim.Optimizer).values():
        if original := getattr(method, "__wrapped__", None):
            vars(original).setdefault("__dynamo_disable", original)


@contextlib.contextmanager
def set_switches(precision: str, deterministic: bool, compiles: bool = False) -> Iterator[None]:
    """Set torch's global switches inside the context, and restore them afterwards.

    Args:
        precision: as in `precision=`.
        deterministic: whether to use deterministic kernels only.
        compiles: whether code is compiled inside the context.
    """
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    before = torch.get_deterministic_debug_mode()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    if deterministic:  # with less workspace, several versions of torch refuse products of matrices on GPUs
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        with _allow_compiling(deterministic) if compiles else contextlib.nullcontext():
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
        torch.set_deterministic_debug_mode(before)


@contextlib.contextmanager
def _allow_compiling(deterministic: bool) -> Iterator[None]:
    """Set the compiler's switches inside the context.

    Raises:
        UserError: a file of compiled code in torch's cache is damaged.
    """
    import torch._inductor.config as inductor  # loads the compiler
    from torch._dynamo.exc import BackendCompilerFailed

    try:
        with inductor.patch(deterministic=deterministic):
            yield
    except BackendCompilerFailed as error:
        if not isinstance(error.inner_exception, ImportError):
            raise
        raise UserError(
            f"compile=true: {error.inner_exception}; torch cannot load this file of its cache, as after a compiler was "
            "killed: delete it, and run the same command again"
        ) from error
