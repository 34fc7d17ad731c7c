"""SPEC.md, written from the records: every prim with its signature, its meaning in words and its constraints."""

from __future__ import annotations

from primops.opset import CONVENTION
from primops.prims import CONSTRAINTS, FAMILIES, OPSET
from primops.prims.record import Record
from primops.verify import GRAPH_CONSTRAINTS


def specification() -> str:
    """The text of SPEC.md."""
    lines = [
        f"# The prims (opset {OPSET})",
        "",
        "Written by `python -m primops spec` from the records in `primops.prims`; change those, not this file.",
        "The reference meaning of each prim is `primops.meanings.MEANINGS[name]`.",
        "",
        CONVENTION,
        "",
        "## Constraints",
        "",
        "| label | what holds |",
        "|---|---|",
        *(f"| {label} | {text} |" for label, text in GRAPH_CONSTRAINTS.items()),
        *(f"| {c.label} | {c.text} |" for c in CONSTRAINTS.values()),
    ]
    for family in FAMILIES:
        title, _, rest = (family.__doc__ or "").partition(":")
        lines += ["", f"## {title}", "", rest.strip(), ""]
        for record in family.RECORDS:
            lines += _record(record)
    return "\n".join(lines).rstrip() + "\n"


def _record(record: Record) -> list[str]:
    signature = ", ".join(f"{p.name}: {p.kind}" for p in record.parameters)
    labels = ", ".join(c.label for c in record.constraints) or "none of its own"
    return [
        f"### {record.name}",
        "",
        f"`{record.name}({signature}) -> {', '.join(record.results)}`",
        "",
        record.doc,
        "",
        f"Example: `{record.example}`. Constraints: {labels}.{_call(record)}",
        "",
    ]


def _call(record: Record) -> str:
    if record.call is None:
        return ""
    return f" Computed by `{record.call}`{', in program order' if record.draws else ' or by loops'}."
