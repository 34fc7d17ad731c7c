"""JSON Schema of the documents, for readers and writers in other languages.

schema ::= {"$schema", "$defs", "oneOf": [wire of each kind]}       wire ::= {document, version, producer, body}
"""

from __future__ import annotations

from typing import Any

import msgspec

from stagewire.codec import KINDS, VERSIONS
from stagewire.errors import UnknownVersion

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(*kinds: str) -> dict[str, Any]:
    """The schema (draft 2020-12) of the JSON form of these kinds of document; of all five without arguments.

    It describes shape, not meaning: what `verify` checks is not in it. Raises `UnknownVersion` for an unknown kind.

    >>> sorted(json_schema("prim")["oneOf"][0]["properties"])
    ['body', 'document', 'producer', 'version']
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownVersion(f"unknown document kind {kind!r}; known: {', '.join(KINDS)}")
    chosen = kinds or tuple(KINDS)
    bodies, components = msgspec.json.schema_components([KINDS[kind] for kind in chosen], ref_template="#/$defs/{name}")
    wires = [_wire(kind, body) for kind, body in zip(chosen, bodies, strict=True)]
    return {"$schema": DIALECT, "title": "stagewire documents", "oneOf": wires, "$defs": components}


def _wire(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "document": {"const": kind},
            "version": {"const": VERSIONS[kind]},
            "producer": {"type": "string"},
            "body": body,
        },
        "required": ["document", "version", "producer", "body"],
    }
