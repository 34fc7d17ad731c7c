"""Pass: what a kernel computes in float32 stays so until it is stored."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from stagewire.graph import Ref
from stagewire.index import axes_of
from stagewire.literals import HALVES
from stagewire.loop import Compute, Kernel, Load, LoopGraph, Section, Statement
from stagewire.statements import (
    axes_of_values,
    live_statements,
    replace_values,
    results,
    statements_of,
    summed_products,
)


@dataclass(frozen=True)
class KeepFloat32:
    """Before: a kernel rounds to half precision wherever eager would store, and goes on in float32 with what is left.
    After: it goes on with what it had; what it stores is rounded, once. Results are nearer to exact ones than eager's,
    and no longer eager's bits; a cast to half precision and back that the program asks for is left out too.

    What is an element times something for its channel (a batch norm in inference) is rounded before something else is
    added. Where the factors are next to 1, as 1/sqrt(1 + 1e-5) is, the element is what the rounding gives, and many
    sums lie in the middle between two numbers of half precision. Without the rounding all of them fall to one side,
    and residual networks of such norms drift: HRNet to ten times eager's error.

    Elements of matrices that are multiplied are rounded, too: tensor cores take half precision. An integer of 8 bits is
    the same number in half precision and in float32, to which it is converted at once.
    """

    name = "keep_float32"

    def run(self, graph: LoopGraph) -> LoopGraph:
        steps = tuple([_widened(step) if isinstance(step, Kernel) else step for step in graph.steps])
        return graph if steps == graph.steps else replace(graph, steps=steps)


def _widened(kernel: Kernel) -> Kernel:
    dtypes: dict[str, str] = {}
    rounded: dict[str, Ref] = {}  # from a value in half precision to the one in float32 that it was rounded from
    same: dict[str, Ref] = {}  # from a value in float32 to the one that stands in its place
    exact: dict[str, Ref] = {}  # from a value in half precision to the integer that it is
    sections = []
    kept = _scaled_and_added(kernel)
    for section in kernel.sections:
        statements: list[Statement] = []
        factors = _factors(section)
        for statement in section.statements:
            statement = replace_values(statement, same)
            dtypes |= dict.fromkeys(results(statement), getattr(statement, "dtype", ""))
            if isinstance(statement, Compute):
                operand = statement.operands[0] if statement.op == "convert" and statement.result not in kept else None
                if isinstance(operand, Ref) and statement.dtype in HALVES and dtypes.get(operand.name) == "float32":
                    rounded[statement.result] = operand
                elif isinstance(operand, Ref) and statement.dtype in HALVES and dtypes.get(operand.name) in _SHORT:
                    exact[statement.result] = operand
                elif isinstance(operand, Ref) and statement.dtype == "float32" and operand.name in exact:
                    statement = replace(statement, operands=(exact[operand.name],))
                elif statement.result in factors:
                    pass
                elif isinstance(operand, Ref) and statement.dtype == "float32" and operand.name in rounded:
                    same[statement.result] = rounded[operand.name]
                    continue
            statements.append(statement)
        sections.append(replace(section, statements=tuple(statements)))
    return replace(kernel, sections=_alive(sections)) if same or exact else kernel


_SHORT = frozenset(("bool", "int8", "uint8"))


def _factors(section: Section) -> set[str]:
    """The values of which a loop sums up products, each with an outer axis of its own: elements of two matrices."""
    pairs = summed_products(section.statements).values()
    along = axes_of_values(section.statements) if pairs else {}
    both = [pair for pair in pairs if all(name in along for name in pair)]
    return {name for a, b in both for name in (a, b) if along[a] - along[b] and along[b] - along[a]}


def _scaled_and_added(kernel: Kernel) -> set[str]:
    """The values that come of one loaded element by sums and products with what is read by fewer axes, a product among
    them, and that are added to what is no such thing."""
    axes: dict[str, frozenset[str]] = {}  # of what is loaded, or computed of it
    scaled: dict[str, bool] = {}  # a loaded element, with sums and products: whether there was a product
    found: set[str] = set()
    for statement in statements_of(kernel):
        if isinstance(statement, Load):
            axes[statement.result] = frozenset(axes_of(statement.index))
            scaled[statement.result] = False
        if not isinstance(statement, Compute):
            continue
        names = [operand.name for operand in statement.operands if isinstance(operand, Ref)]
        if any(name not in axes for name in names):
            continue
        axes[statement.result] = mine = frozenset().union(*(axes[name] for name in names))
        elements = [name for name in names if axes[name] == mine]
        if statement.op in ("add", "sub") and len(elements) > 1:
            found.update(name for name in elements if scaled.get(name))
        elif statement.op in ("add", "sub", "mul", "convert") and len(elements) == 1 and elements[0] in scaled:
            by_channel = statement.op == "mul" and len(names) > 1
            scaled[statement.result] = scaled[elements[0]] or by_channel
    return found


def _alive(sections: list[Section]) -> tuple[Section, ...]:
    """Without the computations that nothing uses."""
    used: set[str] = set()
    kept = []
    for section in reversed(sections):
        statements = live_statements(section.statements, lambda one: not isinstance(one, Compute), used)
        kept.append(replace(section, statements=tuple(statements)))
    return tuple(reversed(kept))
