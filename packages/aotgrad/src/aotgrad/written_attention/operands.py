"""Leading sizes of scores, as a fused kernel has two of them: batch and heads."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from aotgrad.written_attention.match import Refused
from aotgrad.written_attention.program import Program
from aotgrad.written_attention.steps import Step
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.types import TensorType

__all__ = ["heads_of", "lead_beside", "tensor_type"]


def tensor_type(program: Program, name: str) -> TensorType:
    """The type of a value. Raises `Refused` for what is no tensor."""
    found = program.types.get(name)
    if found is None:
        raise Refused(f"{name} is no tensor")
    return found


def heads_of(program: Program, steps: tuple[Step, ...], lead: tuple[Dim, ...]) -> tuple[Dim, Dim]:
    """(batch, heads): the two leading sizes in which a mask differs, or in which the scores are seen somewhere."""
    forms, form = [lead], lead
    for kind, x, *_ in steps:
        if kind == "form":
            form = x
            forms.append(x)
        elif isinstance(x, Ref) and len(form) == 2 and any(size != 1 for size in program.types[x.name].shape[:-2]):
            return form[0], form[1]
    for form in forms:
        if len(form) == 2:
            return form[0], form[1]
    return (_product(lead[:-1]), lead[-1]) if lead else (1, 1)


def lead_beside(shape: tuple[Dim, ...], form: tuple[Dim, ...], heads: tuple[Dim, Dim]) -> tuple[Dim, ...]:
    """The leading sizes (batch or 1, heads or 1) of an operand of scores with leading sizes `form`."""
    lead = shape[:-2]
    lead = (1,) * (len(form) - len(lead)) + lead
    if all(size == 1 for size in lead):
        return (1, 1)
    if form == heads:
        return lead
    if lead == form:
        return heads
    if all(size == 1 for size in lead[:-1]) and lead[-1] == form[-1] == heads[1]:
        return (1, heads[1])
    raise Refused("a mask is for part of the leading sizes")


def _product(sizes: Iterable[Dim]) -> Dim:
    return reduce(lambda a, b: a * b, sizes, 1)
