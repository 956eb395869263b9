"""Nested state to flat arrays and back, for checkpoints."""

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

A = TypeVar("A")
Pack = Callable[[Any, str], Any]  # a value and its path to its skeleton; None: not a value of this kind
SEQUENCES: dict[str, Callable[[Iterable[Any]], Any]] = {"list": list, "tuple": tuple, "set": set}


def pack_tree(
    value: Any,
    arrays: dict[str, A],
    path: str,
    host: Callable[[Any], A | None],
    pack: Pack = lambda value, path: None,
) -> Any:
    """Replace the arrays in nested dictionaries and lists by their paths.

    Args:
        value: nested dictionaries, lists, tuples, sets, deques, scalars and arrays.
        arrays: receives each array under its dotted path.
        path: prefix of the paths.
        host: returns an array in the form to store, and None for anything else.
        pack: packs what only the backend knows; `unpack_tree` needs its inverse.

    Returns:
        The skeleton: the nested value as JSON, without the arrays.

    Raises:
        TypeError: `value` contains something else; the message names its path.
    """
    array = host(value)
    if array is not None:
        arrays[path] = array
        return {"array": path}
    if (packed := pack(value, path)) is not None:
        return packed

    def inner(item: Any, key: Any) -> Any:
        return pack_tree(item, arrays, f"{path}.{key}", host, pack)

    if isinstance(value, dict):
        plain = [isinstance(key, str | int) for key in value]  # other keys are packed; a number names them in paths
        return {
            "items": [
                [key if named else inner(key, f"{number}.key"), inner(item, key if named else number)]
                for number, ((key, item), named) in enumerate(zip(value.items(), plain, strict=True))
            ]
        }
    if isinstance(value, deque):
        return {"deque": [inner(item, number) for number, item in enumerate(value)], "length": value.maxlen}
    if isinstance(value, list | tuple | set) and not hasattr(value, "_fields"):
        kind = next(name for name, kind in SEQUENCES.items() if isinstance(value, kind))  # type: ignore[arg-type]
        return {kind: [inner(item, number) for number, item in enumerate(value)]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}  # JSON has no such number
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"{path}: a checkpoint holds arrays, numbers and strings, not {type(value).__name__}")


def unpack_tree(
    skeleton: Any,
    arrays: dict[str, np.ndarray],
    device: Callable[[np.ndarray], Any],
    unpack: Callable[[Any], Any] = lambda skeleton: None,
) -> Any:
    """Return the value that `pack_tree` was given.

    Args:
        skeleton: that it returned.
        arrays: by path.
        device: converts NumPy arrays to the backend's.
        unpack: the inverse of `pack`; None for a skeleton of another kind.
    """

    def inner(item: Any) -> Any:
        return unpack_tree(item, arrays, device, unpack)

    if (value := unpack(skeleton)) is not None:
        return value
    if "array" in skeleton:
        return device(arrays[skeleton["array"]])
    if "items" in skeleton:
        return {inner(key) if isinstance(key, dict) else key: inner(item) for key, item in skeleton["items"]}
    if "deque" in skeleton:
        return deque(map(inner, skeleton["deque"]), skeleton["length"])
    for name, kind in SEQUENCES.items():
        if name in skeleton:
            return kind(inner(item) for item in skeleton[name])
    if "bytes" in skeleton:
        return bytes.fromhex(skeleton["bytes"])
    return float(skeleton["float"]) if "float" in skeleton else skeleton["value"]
