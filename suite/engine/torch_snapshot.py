"""Snapshots of the torch engine's state: its arrays by name, as checkpoints hold them."""

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from suite import engine
from suite.contract import Skeleton, Snapshot
from suite.engine import tree

RESIDUALS = "run.residuals."  # prefix of their names in a snapshot


def list_arrays(
    state: dict[str, Any],
    residuals: Mapping[str, Tensor],
    tables: Collection[str],
    named: Mapping[str, Tensor],
    *,
    replicated: bool,
) -> Snapshot:
    """Return this rank's arrays by name, and a JSON skeleton; see `Engine.snapshot`.

    Args:
        state: of `model`, `optimizer` and `carry`.
        residuals: of the communication, by name.
        tables: names of the parameters that are split by rows.
        named: the parameters by name.
        replicated: whether to include the arrays that are equal on all ranks.

    Raises:
        TypeError: the state contains what cannot be saved; the message names it.
    """
    arrays, packed = pack_state(state, named)
    stored = {RESIDUALS + name: value for name, value in residuals.items()}
    own = (
        dict.fromkeys(_list_tables(state["optimizer"], tables), engine.TABLES)
        | dict.fromkeys(_list_owned(state["optimizer"], "run.optimizer"), engine.SLICES)
        | {name: engine.CARRY for name in arrays if name.startswith("run.carry.")}
        | dict.fromkeys(stored, engine.RESIDUALS)
    )
    chosen = {name: value for name, value in (arrays | stored).items() if replicated or name in own}
    return {name: v.detach().cpu().contiguous().numpy() for name, v in chosen.items()}, {"tree": packed, "own": own}


def read_arrays(
    arrays: dict[str, np.ndarray], skeleton: Skeleton, named: Mapping[str, Tensor], device: torch.device
) -> tuple[Any, dict[str, Tensor]]:
    """Return the state and the residuals of a snapshot of this rank, on the device."""
    residuals = {
        name.removeprefix(RESIDUALS): _load(v, device) for name, v in arrays.items() if name.startswith(RESIDUALS)
    }
    return unpack_state(skeleton["tree"], arrays, named, device), residuals


def pack_state(state: Any, named: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors of nested state by path, in types that NumPy has, and a JSON skeleton.

    The skeleton has what the files of a checkpoint lose: the order of a tensor's axes in memory, types that NumPy
    lacks, tensors on the host beside those on a GPU, the parts of a tensor's subclass, and references to parameters.

    Args:
        state: nested dictionaries and lists of tensors and plain values.
        named: the parameters by name; a parameter in the state is saved as its name.

    Raises:
        TypeError: the state contains what cannot be saved; the message names it.
    """
    arrays: dict[str, Tensor] = {}
    names = {id(parameter): name for name, parameter in named.items()}
    devices = {parameter.device for parameter in named.values()}

    def pack(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            if name := names.get(id(value)):
                return {"parameter": name}
            return _pack_subclass(value, path) if is_traceable_wrapper_subclass(value) else _pack_tensor(value, path)
        if isinstance(value, torch.dtype | torch.device):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        if isinstance(value, torch.Generator):
            arrays[path] = value.get_state()
            return {"generator": path, "on": str(value.device)}
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
            arrays[path] = torch.from_numpy(np.array(value))
            return {"numpy": path, "scalar": isinstance(value, np.generic)}
        return None

    def _pack_tensor(value: Tensor, path: str) -> Any:
        if value.layout is not torch.strided:
            raise TypeError(f"{path}: a checkpoint holds dense arrays, not {str(value.layout).removeprefix('torch.')}")
        entry: dict[str, Any] = {"array": path}
        order = sorted(range(value.ndim), key=lambda axis: (-value.stride(axis), value.shape[axis] == 1, axis))
        usual = torch.empty(value.shape, device="meta").stride()
        # the suite's optimizers have row-major slices, of another size on each rank
        if value.stride() != usual and value.permute(order).is_contiguous() and ".owned." not in path:
            entry |= {"order": order, "stride": list(value.stride())}
            value = value.permute(order)
        if value.dtype.is_floating_point and value.dtype not in (torch.float16, torch.float32, torch.float64):
            entry["dtype"] = str(value.dtype).removeprefix("torch.")
            value = value.view({1: torch.uint8, 2: torch.int16}[value.dtype.itemsize])
        if value.device.type == "cpu" and value.device not in devices:
            entry["device"] = "cpu"
        arrays[path] = value
        return entry

    def _pack_subclass(value: Any, path: str) -> Any:
        parts, context = value.__tensor_flatten__()
        content = {name: getattr(value, name) for name in parts}, context, value.shape, value.stride()
        kind = type(value)
        return {"subclass": [kind.__module__, kind.__qualname__], "content": whole(content, path)}

    def whole(value: Any, path: str) -> Any:
        return tree.pack_tree(value, arrays, path, lambda value: None, pack)

    packed = whole(state, "run")
    return arrays, packed


def unpack_state(packed: Any, arrays: dict[str, np.ndarray], named: Mapping[str, Tensor], device: torch.device) -> Any:
    """Return the state that `pack_state` was given, with tensors on the device.

    Args:
        packed: the skeleton.
        arrays: by path.
        named: the parameters by name.
        device: of the tensors, but those that were saved from the host.
    """

    def unpack(entry: Any) -> Any:
        if "array" in entry:
            value = _load(arrays[entry["array"]], torch.device(entry.get("device", device)))
            value = value.view(getattr(torch, entry["dtype"])) if "dtype" in entry else value
            if "order" in entry:
                value = value.permute([int(axis) for axis in np.argsort(entry["order"])])
                value = value.as_strided(value.shape, entry["stride"])  # also of axes of length 1
            return value
        if "parameter" in entry:
            return named[entry["parameter"]]
        if "subclass" in entry:
            module, name = entry["subclass"]
            kind: Any = getattr(sys.modules[module], name)  # the optimizer has imported it
            return kind.__tensor_unflatten__(*whole(entry["content"]))
        if "dtype" in entry:
            return getattr(torch, entry["dtype"])
        if "device" in entry:
            return torch.device(entry["device"])
        if "generator" in entry:
            return torch.Generator(entry["on"]).set_state(torch.from_numpy(arrays[entry["generator"]].copy()))
        if "numpy" in entry:
            value = arrays[entry["numpy"]].copy()
            return value[()] if entry["scalar"] else value
        return None

    def whole(entry: Any) -> Any:
        return tree.unpack_tree(entry, arrays, torch.from_numpy, unpack)

    return whole(packed)


def _load(value: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(value.copy()).to(device)


def _list_tables(optimizer: Mapping[str, Any], tables: Collection[str]) -> Iterator[str]:
    """Yield the names in a snapshot of this rank's rows of tables, and of their optimizer state."""
    if not tables:  # another package's optimizer may have no groups here
        return
    groups = optimizer["param_groups"]
    places = {name: index for g in groups for name, index in zip(g["param_names"], g["params"], strict=True)}
    for table in tables:
        yield f"run.model.{table}"
        values = optimizer["state"].get(places[table], {}).items()
        yield from (f"run.optimizer.state.{places[table]}.{key}" for key, value in values if value.ndim)


def _list_owned(value: Any, path: str, inside: bool = False) -> Iterator[str]:
    """Yield the names, as `tree.pack_tree` builds them, of the tensors below a key `owned`."""
    if isinstance(value, Tensor) and inside:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        yield from _list_owned(item, f"{path}.{key}", inside or key == "owned")
