"""Pass: what a kernel computes in float32 stays so until it is stored."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from loopir.index import add_values
from loopir.nest import add_used_values
from stagewire.graph import Ref
from stagewire.loop import Compute, Kernel, Load, LoopGraph, Operand, Reduce, Scan, Section, Statement, Store

HALVES = ("bfloat16", "float16")


@dataclass(frozen=True)
class KeepFloat32:
    """Before: a kernel rounds to half precision wherever eager would store, and goes on in float32 with what is left.
    After: it goes on with what it had; what it stores is rounded, once. Results are nearer to exact ones than eager's,
    and no longer eager's bits; a cast to half precision and back that the program asks for is left out too.
    """

    name = "keep_float32"

    def run(self, graph: LoopGraph) -> LoopGraph:
        steps = tuple([_widened(step) if isinstance(step, Kernel) else step for step in graph.steps])
        return graph if steps == graph.steps else msgspec.structs.replace(graph, steps=steps)


def _widened(kernel: Kernel) -> Kernel:
    dtypes: dict[str, str] = {}
    rounded: dict[str, Ref] = {}  # from a value in half precision to the one in float32 that it was rounded from
    same: dict[str, Ref] = {}  # from a value in float32 to the one that stands in its place
    sections = []
    for section in kernel.sections:
        statements: list[Statement] = []
        for statement in section.statements:
            statement = _substituted(statement, same)
            if isinstance(statement, Compute):
                dtypes[statement.result] = statement.dtype
                operand = statement.operands[0] if statement.op == "convert" else None
                if isinstance(operand, Ref) and statement.dtype in HALVES and dtypes.get(operand.name) == "float32":
                    rounded[statement.result] = operand
                elif isinstance(operand, Ref) and statement.dtype == "float32" and operand.name in rounded:
                    same[statement.result] = rounded[operand.name]
                    continue
            elif isinstance(statement, Reduce):
                dtypes |= dict.fromkeys(statement.results, statement.dtype)
            elif isinstance(statement, Load | Scan):
                dtypes[statement.result] = statement.dtype
            statements.append(statement)
        sections.append(msgspec.structs.replace(section, statements=tuple(statements)))
    return msgspec.structs.replace(kernel, sections=_alive(sections)) if same else kernel


def _substituted(statement: Statement, same: dict[str, Ref]) -> Statement:
    def new(operand: Operand) -> Operand:
        return same.get(operand.name, operand) if isinstance(operand, Ref) else operand

    if not same:
        return statement
    match statement:
        case Compute(operands=operands):
            return msgspec.structs.replace(statement, operands=tuple([new(one) for one in operands]))
        case Store(value=value):
            return msgspec.structs.replace(statement, value=new(value))
        case Reduce(operand=operand) | Scan(operand=operand):
            return msgspec.structs.replace(statement, operand=new(operand))
        case _:
            return statement  # positions and masks are no floats


def _alive(sections: list[Section]) -> tuple[Section, ...]:
    """Without the computations that nothing uses."""
    used: set[str] = set()
    kept = []
    for section in reversed(sections):
        statements: list[Statement] = []
        for statement in reversed(section.statements):
            if isinstance(statement, Compute) and statement.result not in used:
                continue
            _add_uses(statement, used)
            statements.append(statement)
        kept.append(msgspec.structs.replace(section, statements=tuple(reversed(statements))))
    return tuple(reversed(kept))


def _add_uses(statement: Statement, used: set[str]) -> None:
    if not isinstance(statement, Load | Store):
        add_used_values(statement, used)
        return
    add_values(statement.index, used)
    operands = (statement.mask, statement.other if isinstance(statement, Load) else statement.value)
    used.update(operand.name for operand in operands if isinstance(operand, Ref))
