"""A vocabulary for readers: as a page of Markdown, and as JSON for who does not import the package that has it."""

from __future__ import annotations

from itertools import groupby

import msgspec

from stagewire.vocabulary import Op, Vocabulary

CONVENTION = (
    "A node's target is '{namespace}.<name>'. All arguments are positional, in the order of the parameters, none left "
    "out; kwargs are empty. Lists (dims, sizes, tensors, indices) are List, dtypes DTypeArg, inf and nan NonFinite. "
    "An operand is a Ref or a number literal that takes the dtype of the tensors beside it. "
    "Results have the types of the rule except strides and device, which the result type states. A call with an effect "
    "keeps its place among those that have one, and is never dropped or merged."
)


def page(vocabulary: Vocabulary) -> str:
    """Every op with its signature, its meaning in words, its constraints and an example."""
    lines = [
        f"# {vocabulary.namespace}: the ops of version {vocabulary.version}",
        "",
        f"Written by `python -m stagewire ops {vocabulary.namespace}` from the records; change those, not this file.",
        "",
        vocabulary.convention or CONVENTION.format(namespace=vocabulary.namespace),
        "",
        "## Constraints",
        "",
        "| label | what holds |",
        "|---|---|",
        *(f"| {label} | {c.text} |" for label, c in vocabulary.constraints.items()),
    ]
    for family, ops in groupby(vocabulary.ops.values(), key=lambda op: op.family):
        lines += ["", f"## {family}", "", vocabulary.families[family].strip(), ""]
        for op in ops:
            lines += _entry(op)
    return "\n".join(lines).rstrip() + "\n"


def _entry(op: Op) -> list[str]:
    labels = ", ".join(c.label for c in op.constraints) or "none of its own"
    effect = f" Effect: {op.effect}." if op.effect else ""
    example = f"Example: `{op.example}`. " if op.example else ""
    lines = (f"### {op.name}", f"`{op.signature}`", op.doc, f"{example}Constraints: {labels}.{effect}")
    return [text for line in lines for text in (line, "")]


def as_json(vocabulary: Vocabulary) -> bytes:
    """{namespace, version, ops: [{name, family, parameters, results, constraints, doc, example, effect?, ...}]}"""
    ops = [
        {
            "name": op.name,
            "family": op.family,
            "parameters": [{"name": p.name, "kind": p.kind} for p in op.parameters],
            "results": op.results,
            "constraints": [{"label": c.label, "text": c.text} for c in op.constraints],
            "doc": op.doc,
            "example": op.example,
            "effect": op.effect,
            "is_view": op.is_view,
            "keeps_layout": op.keeps_layout,
        }
        for op in vocabulary.ops.values()
    ]
    plain = {"namespace": vocabulary.namespace, "version": vocabulary.version, "ops": ops}
    return msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n"
