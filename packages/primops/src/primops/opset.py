"""The prim set as data, for whoever does not import this package: `python -m primops opset` prints it as JSON.

opset ::= {opset, convention, dtypes, prims: [prim]}
prim  ::= {name, family, parameters, results, constraints, doc, example, call?, draws?: true}
"""

from __future__ import annotations

from typing import Any

import msgspec

from primops.prims import OPSET, RECORDS
from primops.prims.layouts import SUPPORTED

CONVENTION = (
    "A node's target is 'prims.<name>'. All arguments are positional, in the order of the parameters, none left out; "
    "kwargs are empty. Lists (dims, sizes, tensors, indices) are List, dtypes DTypeArg, inf and nan NonFinite. "
    "An operand is a Ref or a number literal that takes the dtype of the tensors beside it. "
    "Results have the types of the rule except strides and device, which the result type states. A prim with a call "
    "may be computed by that operator, whose arguments are the prim's. A prim that draws keeps its place among those "
    "that do, and is never dropped or merged."
)


def opset() -> dict[str, Any]:
    """The opset as plain data."""
    return {
        "opset": OPSET,
        "convention": CONVENTION,
        "dtypes": sorted(SUPPORTED),
        "prims": [
            {
                "name": r.name,
                "family": r.family,
                "parameters": [{"name": p.name, "kind": p.kind} for p in r.parameters],
                "results": list(r.results),
                "constraints": [{"label": c.label, "text": c.text} for c in r.constraints],
                "doc": r.doc,
                "example": r.example,
                **({"call": r.call} if r.call else {}),
                **({"draws": True} if r.draws else {}),
            }
            for r in RECORDS.values()
        ],
    }


def encode_opset() -> bytes:
    """The prim set as JSON."""
    return msgspec.json.format(msgspec.json.encode(opset()), indent=1) + b"\n"
