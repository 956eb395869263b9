"""A pretend GPU: tensors that say `cuda:0` and hold CPU values, so that results can be compared with the CPU's.

`Tensors` runs each operation on the CPU values. It raises where CUDA would refuse operands on two devices, or an
operation in deterministic mode, or where two streams may use memory at the same time, and counts the operations at
which the host waits for the device. `install` needs the library made from device.cpp, which must be preloaded.
"""

import contextlib
import functools
import itertools
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
COPIES = {"_to_copy", "copy_"}
STAGED = 2**16  # bytes that CUDA copies to the device without a wait from memory that is not pinned
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
# operations that read a result on the host
WAITS = {
    *("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "bincount", "repeat_interleave"),
    *("_unique2", "unique_dim", "unique_consecutive", "_linalg_check_errors", "_linalg_eigh", "_linalg_svd"),
}
# operations that CUDA refuses in deterministic mode, by the docs of torch.use_deterministic_algorithms
REFUSED = {
    *("nll_loss2d_forward", "nll_loss2d_backward", "_ctc_loss_backward", "grid_sampler_2d_backward", "histc"),
    *("avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward", "put", "put_"),
    *("upsample_bilinear2d_backward", "reflection_pad1d_backward", "reflection_pad2d_backward", "median", "kthvalue"),
}
REFUSED_OF_FLOATS = {"cumsum", "cumsum_"}
waits: Counter[str] = Counter()  # by line of the suite
summed: Counter[str] = Counter()  # products of narrow matrices that are summed in float32, by line of the suite
wide: Counter[str] = Counter()  # operations on the device whose results are arrays in float64, by line of the suite
pinned: dict[int, Tensor] = {}  # what lies in pinned memory, by address


class DevicesDiffer(RuntimeError):
    """CUDA would refuse operands on these devices."""


class StreamsDiffer(RuntimeError):
    """A stream of CUDA might use memory too early, or while it is reused."""


class Stream:
    """A stream of the pretend device.

    Attributes:
        waited: number of the last tensor of another stream for which this one waits.
    """

    numbers = itertools.count()

    def __init__(self, *device: Any):
        self.waited: dict[Stream, int] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Stream":
        """A copied tensor is of the same stream."""
        return self

    def record_event(self) -> tuple["Stream", int]:
        """Return this place in the stream."""
        return self, next(Stream.numbers)

    def wait_event(self, event: tuple["Stream", int]) -> None:
        """Let later operations begin after what the other stream was given before the event."""
        self.waited |= [event]

    def wait_stream(self, other: "Stream") -> None:
        """Let later operations begin after what the other stream was given so far."""
        self.wait_event(other.record_event())


USUAL, of_thread = Stream(), threading.local()


def find_stream(*device: Any) -> Stream:
    """Return the stream of this thread's next operation."""
    return getattr(of_thread, "stream", USUAL)


@contextlib.contextmanager
def change_stream(stream: Stream) -> Iterator[None]:
    """Give the operations inside the context to a stream."""
    before, of_thread.stream = find_stream(), stream
    try:
        yield
    finally:
        of_thread.stream = before


class OnDevice(Tensor):
    """A tensor on the pretend device.

    Attributes:
        held: the CPU tensor with its values.
        streams: that may use it, the one that made it first.
        number: tensors that were made before.
    """

    held: Tensor
    streams: list[Stream]
    number: int

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        """Wrap a CPU tensor."""
        layout = held.shape, held.stride(), held.storage_offset()
        made = Tensor._make_wrapper_subclass(cls, *layout, dtype=held.dtype, device=CUDA)
        made.held, made.streams, made.number = held, [find_stream()], next(Stream.numbers)
        return made

    def __repr__(self, **options: Any) -> str:
        return f"OnDevice({self.held})"

    def tolist(self) -> Any:
        """Return the values as lists; torch refuses this to subclasses."""
        return self.cpu().tolist()

    def record_stream(self, stream: Any) -> None:
        """Keep the memory until this stream is done with it."""
        self.streams.append(stream)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return run_operation(func, args, kwargs or {})


class Tensors(TorchDispatchMode):
    """A context in which tensors can be made on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return run_operation(func, args, kwargs or {})


def install() -> None:
    """Make torch find the device."""
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device="cuda") is then seen as a copy
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    cuda: Any = torch.cuda
    cuda._lazy_init = cuda.synchronize = lambda *device: None
    cuda.is_available = cuda.is_initialized = cuda.is_bf16_supported = lambda *options: True
    cuda.device_count, cuda.get_device_name = lambda: 1, lambda *device: "a pretend GPU"
    cuda.max_memory_allocated = cuda.current_device = lambda *device: 0
    cuda.Stream, cuda.stream, cuda.current_stream = Stream, change_stream, find_stream
    cuda.amp.common.amp_definitely_not_available = lambda: False


def copy_to_host(value: Any) -> Any:
    """Return the CPU tensor of a tensor on the device, and any other value unchanged; no wait is counted."""
    return value.held if isinstance(value, OnDevice) else value


def run_operation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU; its results are on the device where CUDA's would be.

    Raises:
        DevicesDiffer: CUDA would refuse the operands.
        StreamsDiffer: another stream made an operand, and this one does not wait for it, or its memory may be reused.
        RuntimeError: CUDA would refuse the operation in deterministic mode.
    """
    name, operands = func._schema.name.partition("::")[2], tree_leaves((args, kwargs))
    on_device, target = any(isinstance(value, OnDevice) for value in operands), kwargs.get("device")
    to_device = on_device if target is None else torch.device(target).type == CUDA.type
    _check_streams(name, operands)
    if on_device and name not in COPIES:
        _check_devices(func, name, args, kwargs)
        _check_deterministic(name, operands)
    if _makes_host_wait(name, args, kwargs, on_device, to_device):
        waits[_find_place()] += 1
    inner = {key: copy_to_host(value) for key, value in kwargs.items() if key not in ("non_blocking", "pin_memory")}
    inner |= {"device": CPU} if target is not None else {}
    run = KERNELS.get(name, func)
    result = run(*tree_map(copy_to_host, args), **inner)
    if not to_device:
        return result
    if on_device and any(is_wide(value) for value in tree_leaves(result)):
        wide[_find_place()] += 1
    wrapped = tree_map(lambda value: OnDevice(value) if isinstance(value, Tensor) else value, result)
    return wrapped if name == "_to_copy" else return_and_correct_aliasing(func, args, kwargs, wrapped)


def is_wide(value: Any) -> bool:
    """Return whether a value is an array in float64, and no single number."""
    return isinstance(value, Tensor) and value.dtype == torch.float64 and value.numel() > 1


def compute_lstm_cell(inputs: Tensor, hidden: Tensor, cell: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next hidden state and cell (N, H), and the gates (N, 4 H); CPUs have no such kernel."""
    gates = inputs + hidden + sum(biases)
    enter, forget, new, leave = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell, gates


def differentiate_convolution(slope: Tensor, x: Tensor, weight: Tensor, *options: Any) -> Any:
    """Return a convolution's gradients, in the order of x: a CPU with channels last damages memory for some kernels.

    torch 2.13 with oneDNN on AVX2 does so for kernels of one pixel, stride 2 and six channels.
    """
    found = torch.ops.aten.convolution_backward(slope.contiguous(), x.contiguous(), weight.contiguous(), *options)
    order = suggest_memory_format(x)
    return *(value if value is None else value.contiguous(memory_format=order) for value in found[:2]), found[2]


def pin_memory(value: Tensor, *device: Any) -> Tensor:
    """Return the tensor, or a copy that counts as one in pinned memory."""
    if value.data_ptr() in pinned:
        return value
    copy = value.clone()
    pinned[copy.data_ptr()] = copy
    return copy


def multiply_matrices(
    left: Tensor, right: Tensor, kind: torch.dtype | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return left right in the type `kind`; CPUs have no such kernel."""
    if kind is not None:
        summed[_find_place()] += 1
    return torch.matmul(left.to(kind or left.dtype), right.to(kind or right.dtype), out=out)


# operations that run as on CUDA, and otherwise than on a CPU
KERNELS = {
    "mm": multiply_matrices,
    "bmm": multiply_matrices,
    "_pin_memory": pin_memory,
    "_thnn_fused_lstm_cell": compute_lstm_cell,
    "convolution_backward": differentiate_convolution,
}


def _makes_host_wait(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], on_device: bool, to_device: bool
) -> bool:
    """Return whether the host waits.

    It waits at every copy from the device, and at each to it unless it is `non_blocking`, and small or from pinned
    memory.
    """
    if name in COPIES:
        source = args[1 if name == "copy_" else 0]
        if name == "copy_":
            to_device, on_device = (isinstance(value, OnDevice) for value in args[:2])
        free = args[2] if name == "copy_" and len(args) > 2 else kwargs.get("non_blocking", False)
        free = free and (source.nbytes <= STAGED or source.data_ptr() in pinned)
        return on_device != to_device and (on_device or not free)
    if name in INDEXED:  # indices on the CPU are copied, and masks are counted
        indices = [index for index in args[1] if index is not None]
        return on_device and any(not isinstance(i, OnDevice) or i.dtype in (torch.bool, torch.uint8) for i in indices)
    if name == "repeat_interleave" and kwargs.get("output_size") is not None:
        return False
    return on_device and name in WAITS


def _find_place() -> str:
    """Return the innermost line of the suite that is running, as file:line."""
    places = ((_find_file(frame.f_code.co_filename), line) for frame, line in traceback.walk_stack(None))
    return next((f"{file}:{line}" for file, line in places if file), "torch")


@functools.cache
def _find_file(name: str) -> Path | None:
    """Return a file of the suite as a path inside the checkout; others are None, and the pretend device's own."""
    file = Path(name)
    own = file.is_relative_to(ROOT) and "site-packages" not in file.parts and not file.is_relative_to(HERE)
    return file.relative_to(ROOT) if own else None


def _check_streams(name: str, operands: list[Any]) -> None:
    """Refuse operands of another stream that are not made yet, or whose memory is not kept."""
    current = find_stream()
    for value in operands:
        if isinstance(value, OnDevice) and value.streams[0] is not current:
            if current.waited.get(value.streams[0], -1) < value.number:
                raise StreamsDiffer(f"{name}: an operand is made in another stream; call wait_stream first")
            if current not in value.streams:
                raise StreamsDiffer(f"{name}: memory of another stream; call record_stream first")


def _check_devices(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse operands on the CPU, except indices, and scalars of elementwise operations that write to the device."""
    operands = tree_leaves((args[:1], args[2:]) if name in INDEXED else (args, kwargs))
    on_cpu = [value for value in operands if isinstance(value, Tensor) and not isinstance(value, OnDevice)]
    changes_cpu = name.endswith("_") and not isinstance(args[0], OnDevice)
    elementwise = torch.Tag.pointwise in func.tags and not name.startswith("lerp")
    scalars = (elementwise or name in INDEXED or name == "fill_") and not changes_cpu
    if any(value.ndim or not scalars for value in on_cpu):
        raise DevicesDiffer(f"{name}: operands on cuda:0 and on cpu, {[tuple(v.shape) for v in on_cpu]}")


def _check_deterministic(name: str, operands: list[Any]) -> None:
    """Refuse what CUDA refuses in deterministic mode."""
    refused = name in REFUSED or (name in REFUSED_OF_FLOATS and operands[0].is_floating_point())
    if refused and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(f"{name} does not have a deterministic implementation on CUDA")
