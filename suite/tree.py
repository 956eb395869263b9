"""Nested state to flat arrays and back, for checkpoints."""

from collections.abc import Callable
from typing import Any

import numpy as np


def pack(value: Any, arrays: dict[str, np.ndarray], path: str, host: Callable[[Any], np.ndarray | None]) -> Any:
    """A JSON skeleton of nested dictionaries, lists and scalars, whose arrays go to `arrays`.

    Args:
        value: what to pack.
        arrays: receives each array under its dotted path.
        path: prefix of the paths.
        host: an array of the backend as NumPy, None for anything else.
    """
    array = host(value)
    if array is not None:
        arrays[path] = array
        return {"array": path}
    if isinstance(value, dict):
        return {"items": [[key, pack(item, arrays, f"{path}.{key}", host)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        items = [pack(item, arrays, f"{path}.{index}", host) for index, item in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"{path}: a checkpoint holds arrays, numbers and strings, not {type(value).__name__}")


def unpack(skeleton: Any, arrays: dict[str, np.ndarray], device: Callable[[np.ndarray], Any]) -> Any:
    """The inverse of `pack`; `device` makes the backend's array."""
    if "array" in skeleton:
        return device(arrays[skeleton["array"]])
    if "items" in skeleton:
        return {key: unpack(item, arrays, device) for key, item in skeleton["items"]}
    if "list" in skeleton:
        return [unpack(item, arrays, device) for item in skeleton["list"]]
    if "tuple" in skeleton:
        return tuple(unpack(item, arrays, device) for item in skeleton["tuple"])
    return skeleton["value"]
