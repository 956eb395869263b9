"""Nested state to flat arrays and back, for checkpoints."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

A = TypeVar("A")


def pack_tree(value: Any, arrays: dict[str, A], path: str, host: Callable[[Any], A | None]) -> Any:
    """Replace the arrays in nested dictionaries and lists by their paths.

    Args:
        value: nested dictionaries, lists, tuples, scalars and arrays.
        arrays: receives each array under its dotted path.
        path: prefix of the paths.
        host: returns an array in the form to store, and None for anything else.

    Returns:
        The skeleton: the nested value as JSON, without the arrays.

    Raises:
        TypeError: `value` contains something else.
    """
    array = host(value)
    if array is not None:
        arrays[path] = array
        return {"array": path}
    if isinstance(value, dict):
        return {"items": [[key, pack_tree(item, arrays, f"{path}.{key}", host)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        items = [pack_tree(item, arrays, f"{path}.{index}", host) for index, item in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}  # JSON has no such number
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"{path}: a checkpoint holds arrays, numbers and strings, not {type(value).__name__}")


def unpack_tree(skeleton: Any, arrays: dict[str, np.ndarray], device: Callable[[np.ndarray], Any]) -> Any:
    """Return the value that `pack_tree` was given; `device` converts NumPy arrays to the backend's."""
    if "array" in skeleton:
        return device(arrays[skeleton["array"]])
    if "items" in skeleton:
        return {key: unpack_tree(item, arrays, device) for key, item in skeleton["items"]}
    if "list" in skeleton:
        return [unpack_tree(item, arrays, device) for item in skeleton["list"]]
    if "tuple" in skeleton:
        return tuple(unpack_tree(item, arrays, device) for item in skeleton["tuple"])
    if "float" in skeleton:
        return float(skeleton["float"])
    return skeleton["value"]
