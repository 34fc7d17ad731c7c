"""Which results have one right value, bit by bit, and the comparison of these."""

from __future__ import annotations

import torch

from stagewire import loop
from stagewire.graph import Ref
from stagewire.statements import used_values

ROUNDED_ONCE = frozenset(
    """
    neg abs sign ceil floor round trunc reciprocal add sub mul div copysign nextafter fmod where isnan isinf signbit
    logical_not eq ne lt le gt ge logical_and logical_or logical_xor convert bitcast check_range check_index wrap_index
    """.split()  # noqa: SIM905
)
"""Of floats, the ops that IEEE 754 gives one result; a maximum does where a number bounds it (of two zeros, which?)."""
BOUNDED = frozenset(("maximum", "minimum"))
EXACT_REDUCTIONS = frozenset(("argmax", "argmin", "any", "all"))


def exact_buffers(graph: loop.LoopGraph) -> set[str]:
    """The buffers of which each element is computed exactly, or rounded once, from such ones."""
    types = {buffer.name: buffer.type.dtype for buffer in graph.buffers}
    inexact: set[str] = set()
    for step in graph.steps:
        if isinstance(step, loop.Kernel):
            _follow(step, types, inexact)
    return set(types) - inexact


def _follow(kernel: loop.Kernel, types: dict[str, str], inexact: set[str]) -> None:
    """Add the buffers that a kernel makes inexact."""
    dtypes: dict[str, str] = {}
    values: set[str] = set()
    for statement in (s for section in kernel.sections for s in section.statements):
        known = not used_values(statement) & values
        match statement:
            case loop.Load(result, buffer, _, dtype):
                known, names = known and buffer not in inexact, (result,)
            case loop.Compute(result, op, operands, dtype):
                kinds = {dtypes[one.name] for one in operands if isinstance(one, Ref)} | {dtype}
                is_bound = op in BOUNDED and not all(isinstance(one, Ref) for one in operands)
                known = known and (op in ROUNDED_ONCE or is_bound or not any("float" in kind for kind in kinds))
                names = (result,)
            case loop.Reduce(names, reduction, _, dtype):
                known = known and (reduction in EXACT_REDUCTIONS or "float" not in dtype)
            case loop.Store(buffer, mode=mode):
                inexact |= set() if known and (mode == "set" or "float" not in types[buffer]) else {buffer}
                continue
            case loop.IndexValue(result, _, dtype):
                names = (result,)
            case loop.Scan(result, _, _, dtype):
                known, names = known and "float" not in dtype, (result,)
        dtypes |= dict.fromkeys(names, dtype)
        values |= set() if known else set(names)


def assert_identical(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal dtype, shape and bits; any nan is like another."""
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    if found.dtype.is_floating_point:
        signs = [torch.signbit(one) & ~torch.isnan(one) for one in (found, expected)]
        assert torch.equal(*signs), "a zero has the other sign"
