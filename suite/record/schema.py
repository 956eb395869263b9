"""Writes `suite/schema/result.json` from the types of `suite.record.result` and `facts`.

Run `python -m suite.record.schema` after a change of these types.
"""

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from suite.record.facts import STEPPED, UNFITTED
from suite.record.result import Result

PATH = Path(__file__).parents[1] / "schema" / "result.json"
WIDTH = 120  # columns; what fits stands on one line
METHOD = ("optimizer", "comm", "backend", "world", "batch_size")  # of `spec`; null for a baseline
MEASURED = ("precision", "deterministic", "parameters")  # of the result; null for a baseline


class _Schema(GenerateJsonSchema):
    """States what a file may contain, without titles and without the values that stand for absent entries."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        if "enum" in inner:
            return {"enum": [*inner["enum"], None]}
        return {**inner, "type": [inner["type"], "null"]} if "type" in inner else {"anyOf": [inner, {"type": "null"}]}


def _distinguish() -> dict[str, Any]:
    """What a baseline lacks, and every other run has: `Result` and `Spec` check the same."""
    null, known = {"type": "null"}, {"not": {"type": "null"}}

    def entries(kind: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        spec = {"properties": {**dict.fromkeys(METHOD, kind), "config": config}}
        curve = {"items": {"properties": {"step": kind, "samples": kind}}}
        return {"properties": {"spec": spec, **dict.fromkeys(MEASURED, kind), "curve": curve}}

    trained = entries(known, {"required": list(STEPPED), "properties": {"baseline": False}})
    fitted = entries(null, {"required": ["baseline"], "properties": dict.fromkeys(UNFITTED, False)})
    fitted["properties"]["curve"]["maxItems"] = 1
    fitted["properties"] |= {"steps": {"const": 0}, "samples": {"const": 0}}
    return {"if": {"properties": {"spec": {"required": ["baseline"]}}}, "then": fitted, "else": trained}


def render_schema() -> str:
    """Return the JSON schema of a result, as text."""
    schema = Result.model_json_schema(schema_generator=_Schema)
    return _format({"$schema": _Schema.schema_dialect, **schema, **_distinguish()}) + "\n"


def _format(node: Any, indent: str = "") -> str:
    """A value as JSON; what fits stands on one line."""
    text, inner = json.dumps(node), f"{indent}  "
    if len(indent) + len(text) < WIDTH or not isinstance(node, dict | list):
        return text
    if isinstance(node, list):
        lines = [_format(item, inner) for item in node]
    else:
        lines = [f"{json.dumps(key)}: {_format(item, inner)}" for key, item in node.items()]
    ends = "{}" if isinstance(node, dict) else "[]"
    return f",\n{inner}".join([f"{ends[0]}\n{inner}{lines[0]}", *lines[1:]]) + f"\n{indent}{ends[1]}"


if __name__ == "__main__":
    PATH.write_text(render_schema(), encoding="utf-8")
