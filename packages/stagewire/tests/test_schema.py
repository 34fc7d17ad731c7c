"""The JSON Schema describes what `encode` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagewire.codec import KINDS, encode
from stagewire.errors import UnknownVersion
from stagewire.parser import parse_document
from stagewire.schema import json_schema

DOCUMENTS = Path(__file__).parent / "data" / "documents"
TYPES: dict[str, Any] = {
    "integer": int,
    "number": (int, float),
    "string": str,
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def fits(data: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """The keywords of draft 2020-12 that the schema uses; any other is an error."""
    for keyword, value in schema.items():
        match keyword:
            case "$ref":
                good = fits(data, root["$defs"][value.removeprefix("#/$defs/")], root)
            case "anyOf" | "oneOf":
                good = any(fits(data, choice, root) for choice in value)
            case "type":
                good = isinstance(data, TYPES[value]) and (value == "boolean" or not isinstance(data, bool))
            case "const":
                good = data == value
            case "enum":
                good = data in value
            case "required":
                good = all(name in data for name in value)
            case "properties":
                good = all(fits(data[name], part, root) for name, part in value.items() if name in data)
            case "additionalProperties":
                known = schema.get("properties", {})
                good = all(fits(item, value, root) for name, item in data.items() if name not in known)
            case "items":
                good = value is False or all(
                    fits(item, value, root) for item in data[len(schema.get("prefixItems", ())) :]
                )
            case "prefixItems":
                good = all(fits(item, part, root) for item, part in zip(data, value, strict=False))
            case "minItems":
                good = len(data) >= value
            case "maxItems":
                good = len(data) <= value
            case _:
                assert keyword in (
                    "$schema", "title", "description", "default", "$defs", "discriminator", "contentEncoding",
                ), keyword  # fmt: skip
                good = True
        if not good:
            return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_documents_fit_their_schema(kind: str) -> None:
    data = msgspec.json.decode(encode(parse_document((DOCUMENTS / f"{kind}.txt").read_text())))
    schema = json_schema(kind)
    assert fits(data, schema, schema)
    assert fits(data, json_schema(), json_schema())
    assert not fits(data | {"version": 99}, schema, schema)
    assert not fits(data | {"body": data["body"] | {_first_struct(kind): 7}}, schema, schema)


def _first_struct(kind: str) -> str:
    return "graph" if kind == "capture" else "binding"


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(UnknownVersion, match="unknown document kind 'graph'"):
        json_schema("prim", "graph")
