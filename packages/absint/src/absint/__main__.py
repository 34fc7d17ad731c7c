"""`python -m absint`: print the ops that have a result-type rule, by family.

python -m absint              the table
python -m absint NAME...      the op record of each overload ("aten.add_.Tensor")
"""

from __future__ import annotations

import sys
import textwrap

from absint.rules import FAMILIES, RULES
from absint.rules.table import Refused
from absint.schema import record_of
from absint.targets import resolve

_WIDTH = 100


def coverage() -> str:
    """The table of rules: families, and the overloads of each."""
    lines = []
    for family, table in FAMILIES.items():
        names = " ".join(name.removeprefix("aten.").removesuffix(".default") for name in sorted(table))
        indented = {"initial_indent": "    ", "subsequent_indent": "    "}
        lines += [f"{family} ({len(table)})", *textwrap.wrap(names, _WIDTH, break_on_hyphens=False, **indented)]
    lines.append(f"{len(RULES)} overloads")
    return "\n".join(lines)


def describe(name: str) -> str:
    """One overload: its schema, rule, writes and aliases, and what is demanded of its operands."""
    record = record_of(resolve(name))
    rule = RULES.get(record.name) or RULES.get(str(record.functional))
    asked = ["  asks     its kernel for dtypes, ranks and attributes"] if rule and rule.question else []
    code = rule and rule.type_of.__code__
    return "\n".join(
        (
            str(record.func._schema),
            f"  rule     {'none' if code is None else f'{rule.type_of.__module__}, line {code.co_firstlineno}'}",
            f"  writes   {[argument for _, argument in record.writes + record.hidden_writes]}",
            f"  aliases  {[alias and alias[1] for alias in record.aliases]}",
            f"  becomes  {record.functional}",
            *asked,
            *(f"  {c.label:8} {c.text}; not {_call(c.refused)}" for c in (rule.requires if rule else ())),
        )
    )


def _call(refused: Refused) -> str:
    """A refused call as text, types in place of tensors."""
    given = [*map(repr, refused.args), *(f"{key}={value!r}" for key, value in refused.kwargs.items())]
    return f"{refused.name}({', '.join(given)})"


def main(arguments: list[str]) -> None:
    """Entry point."""
    print("\n".join(map(describe, arguments)) if arguments else coverage())


if __name__ == "__main__":
    main(sys.argv[1:])
