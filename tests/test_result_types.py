"""`Result` and the schema of result.json describe the same entries."""

import json
from pathlib import Path
from typing import Any, NotRequired, get_args, get_origin

import pytest

import suite
from suite.record import result

SCHEMA = json.loads((Path(suite.__file__).parent / "schema" / "result.json").read_text())
PLACES = {
    result.Result: (),
    result.Spec: ("spec",),
    result.Point: ("curve", "items"),
    result.Crossing: ("targets", "items"),
    result.Segment: ("segments", "items"),
    result.SentBytes: ("bytes",),
    result.Kernel: ("bytes", "kernel"),
    result.Weights: ("weights",),
    result.Continuation: ("resumed_anyway", "items"),
}


def find_node(path: tuple[str, ...]) -> dict[str, Any]:
    node = SCHEMA
    for name in path:
        node = node["items"] if name == "items" else node["properties"][name]
    return node


def may_be_none(kind: Any) -> bool:
    if get_origin(kind) is NotRequired:
        [kind] = get_args(kind)
    return type(None) in get_args(kind)


@pytest.mark.quick
def test_types_and_schema_have_the_same_entries() -> None:
    for kind, path in PLACES.items():
        node = find_node(path)
        assert set(kind.__annotations__) == set(node["properties"]), kind.__name__
        assert kind.__required_keys__ == set(node["required"]), kind.__name__


@pytest.mark.quick
def test_types_and_schema_agree_where_an_entry_may_be_missing() -> None:
    """`None` is allowed by a type exactly where the schema allows null."""
    for kind, path in PLACES.items():
        for name, entry in find_node(path)["properties"].items():
            entry = SCHEMA["$defs"][entry["$ref"].rpartition("/")[2]] if "$ref" in entry else entry
            null = None in entry.get("enum", ()) or "null" in entry.get("type", ())
            assert may_be_none(kind.__annotations__[name]) == null, f"{kind.__name__}.{name}"
