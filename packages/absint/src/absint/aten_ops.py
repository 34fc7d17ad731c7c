"""The operators of ATen as a vocabulary: parameters and effects by their schemas, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from absint.errors import UnknownTarget
from absint.schema import record_of
from absint.targets import resolve
from absint.torch_capabilities import TORCH
from stagewire.vocabulary import Kind, Op, Parameter, Vocabulary

_KINDS: dict[str, Kind] = {"Tensor": "operand"}
"""Of a parameter by its type in the schema; of all others, numbers and lists in their many forms, anything is taken."""

_LINES = Path(__file__).with_name("aten_examples.txt").read_text(encoding="utf-8").splitlines()
EXAMPLES = {line.partition("(")[0]: line for line in _LINES}
"""Calls of operators, of backwards and convolutions among them, that strategies draw (`stagewire.testing.ops`)."""


class AtenOps(Mapping[str, Op]):
    """The overloads that this torch has, by names like "add.Tensor"."""

    def __getitem__(self, name: str) -> Op:
        try:
            return _op(name)
        except UnknownTarget:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        for registered in TORCH.operator_names():
            namespace, _, name = registered.partition("::")
            overload = name if "." in name else f"{name}.default"
            if namespace == "aten" and overload in self:
                yield overload

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _op(name: str) -> Op:
    func: Any = resolve(f"aten.{name}")
    record, schema = record_of(func), func._schema
    return Op(
        name=name,
        family="aten",
        parameters=tuple(
            Parameter(
                argument.name, _KINDS.get(str(argument.type), "any"), argument.has_default_value(), argument.kwarg_only
            )
            for argument in schema.arguments
        ),
        doc=f"`{schema}`.",
        rule=None,
        constraints=(),
        example=EXAMPLES.get(name, ""),
        results=tuple(returned.name or f"out{number}" for number, returned in enumerate(schema.returns)),
        effect=record.effect,
        is_view=record.is_view,
        keeps_layout=True,
        python_call=True,
    )


FAMILIES = {"aten": "Operators of ATen, as this version of torch registers them."}
VOCABULARY = Vocabulary("aten", 1, AtenOps(), FAMILIES, overloads=True, exampled=tuple(EXAMPLES))
