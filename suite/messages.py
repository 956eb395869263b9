"""Messages between ranks as JSON. Unlike a pickle, a message that is not from a rank cannot run code."""

import dataclasses
import importlib
import json
from typing import Any

import numpy as np

TUPLE, PAIRS, CLASS = "()", "{}", "class"  # the only keys of objects in a message


def encode_message(value: Any) -> bytes:
    """Encode None, booleans, numbers, texts, lists, tuples, dictionaries and dataclasses of the suite, nested anyhow.

    NumPy's numbers become Python's, and its arrays lists.

    Raises:
        TypeError: for any other value.
    """
    return json.dumps(_pack(value)).encode()


def decode_message(message: bytes) -> Any:
    """Return the value that `encode_message` has encoded.

    Raises:
        ValueError: if the message is no such value.
    """
    try:
        return _unpack(json.loads(message))
    except (TypeError, AttributeError, ImportError) as error:
        raise ValueError(f"not a message of a rank: {error}") from error


def _pack(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list):
        return [_pack(item) for item in value]
    if isinstance(value, tuple):
        return {TUPLE: [_pack(item) for item in value]}
    if isinstance(value, dict):
        return {PAIRS: [[_pack(key), _pack(item)] for key, item in value.items()]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return {CLASS: [kind.__module__, kind.__name__, _pack(fields)]}
    raise TypeError(f"{type(value).__name__}: cannot be sent to other ranks")


def _unpack(packed: Any) -> Any:
    if isinstance(packed, list):
        return [_unpack(item) for item in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == TUPLE:
        return tuple(_unpack(item) for item in content)
    if kind == PAIRS:
        return {_unpack(key): _unpack(item) for key, item in content}
    module, name, fields = content
    found = getattr(importlib.import_module(module), name, None) if module.startswith("suite.") else None
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ValueError(f"{module}.{name}: no dataclass of the suite")
    return found(**_unpack(fields))
