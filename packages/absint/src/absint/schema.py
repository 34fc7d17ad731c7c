"""What an op overload does besides computing: which arguments it writes, which results alias which.

Read from the schema's alias annotations, never from names; a table holds the writers whose schema is
silent. One `OpRecord` per overload, made once per process (`record_of` is a pure function).
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from absint.kernels import Question
from absint.rules import RULES
from absint.rules.table import TypeOf
from absint.targets import resolve
from absint.torch_capabilities import TORCH
from stagewire.graph import Effect
from stagewire.vocabulary import find, is_prim

if TYPE_CHECKING:
    from torch._ops import OpOverload

# Arguments that an op writes although its schema does not say so: (position, name).
# native_batch_norm and its kin update the running statistics when `training` is true.
HIDDEN_WRITES: dict[str, tuple[tuple[int, str], ...]] = {
    "aten.native_batch_norm.default": ((3, "running_mean"), (4, "running_var")),
    "aten.cudnn_batch_norm.default": ((3, "running_mean"), (4, "running_var")),
    "aten.miopen_batch_norm.default": ((3, "running_mean"), (4, "running_var")),
}

# Tagged as drawing random numbers in ATen, though their kernels draw none.
DRAWS_NOTHING = frozenset(
    ("aten._scaled_dot_product_flash_attention_for_cpu.default", "aten._fused_sdp_choice.default")
)

# Their results are memory that nobody has written: two calls give two values.
_UNWRITTEN = frozenset(("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"))

# In-place overloads whose functional twin has another name.
_FUNCTIONAL_EXCEPTIONS = {
    "aten.bernoulli_.float": "aten.bernoulli.p",
    "aten.bernoulli_.Tensor": "aten.bernoulli.Tensor",
    "aten.normal_.default": "aten.normal_functional.default",
    "aten.copy_.default": "aten.copy.default",
}


class Answers(Enum):
    """How the results of an op come about, from the cheapest to answer."""

    FRESH = "every result is new memory"
    VIEW = "the one result is a view of the first argument"
    SELF = "the first argument, written, is the result"
    OTHER = "anything else"


class OpRecord(msgspec.Struct, frozen=True, eq=False):
    """An overload with what the abstract interpreter asks about it.

    name: "aten.add.Tensor".
    rule: the type rule of the overload itself, or None.
    functional_rule, question: the type rule of `functional`, and how its kernel is asked.
    writes: arguments written, as (position, name); keyword-only ones have position -1.
    aliases: for each result the argument it aliases, as in `writes`, or None where it is fresh.
    is_view: some result is a view of an argument that is not written.
    functional: for in-place and out= overloads the overload that computes the same, if any.
    answers: the shape of this record, for the fast paths.
    changes_type: writes sizes or strides of its argument (t_, squeeze_, resize_, set_).
    effect: what it does besides computing, as nodes of documents state it.
    is_unwritten: its results are memory with undefined content.
    """

    func: OpOverload
    name: str
    rule: TypeOf | None
    writes: tuple[tuple[int, str], ...]
    hidden_writes: tuple[tuple[int, str], ...]
    aliases: tuple[tuple[int, str] | None, ...]
    is_view: bool
    functional: OpOverload | None
    functional_rule: TypeOf | None
    question: Question | None
    is_composite: bool
    is_data_dependent: bool
    changes_type: bool
    out_names: tuple[str, ...]
    answers: Answers
    effect: Effect | None
    is_unwritten: bool


@cache
def record_of(func: OpOverload) -> OpRecord:
    """The record of an overload.

    >>> record_of(torch.ops.aten.view.default).aliases
    ((0, 'self'),)
    """
    schema = func._schema
    name = str(func)
    arguments = schema.arguments
    position = {argument.name: -1 if argument.kwarg_only else index for index, argument in enumerate(arguments)}
    writes = tuple((position[a.name], a.name) for a in arguments if a.alias_info is not None and a.alias_info.is_write)
    sources = [_alias_source(arguments, returned) for returned in schema.returns]
    written = {name for _, name in writes}
    functional = functional_of(func) if writes else None
    is_view = any(s is not None and s not in written for s in sources)
    rule, twin = RULES.get(name), RULES.get(str(functional))
    tags = func.tags
    return OpRecord(
        func=func,
        name=name,
        rule=None if rule is None else rule.bound(func),
        writes=writes,
        hidden_writes=HIDDEN_WRITES.get(name, ()),
        aliases=tuple(None if name is None else (position[name], name) for name in sources),
        is_view=is_view,
        functional=functional,
        functional_rule=None if twin is None else twin.bound(functional),  # type: ignore[arg-type]
        question=None if twin is None else twin.question,
        is_composite=_is_composite(func),
        is_data_dependent=torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags,
        changes_type=torch.Tag.inplace_view in tags,
        out_names=tuple(a.name for a in arguments if a.is_out),
        answers=_answers(func, writes, sources),
        effect=_effect(func, writes, is_view),
        is_unwritten=func.namespace == "aten" and name.split(".")[1] in _UNWRITTEN,
    )


def _effect(func: OpOverload, writes: tuple[tuple[int, str], ...], is_view: bool) -> Effect | None:
    """ATen says by a tag which ops draw random numbers; an op that can be given a generator is one of them."""
    if func.namespace == "_c10d_functional" and not writes:
        return "waits" if func is torch.ops._c10d_functional.wait_tensor.default else "sends"
    if func.namespace not in ("aten", "prims", "stagefold"):
        return "acts"
    generators = any("Generator" in str(argument.type) for argument in func._schema.arguments)
    if (generators or torch.Tag.nondeterministic_seeded in func.tags) and str(func) not in DRAWS_NOTHING:
        return "draws"
    if writes or not func._schema.returns:  # what returns nothing raises on purpose
        return "acts"
    return "aliases" if is_view else None


@cache
def effect_of(target: str) -> Effect | None:
    """What nodes that call `target` state as their effect: its record says so of a prim, ATen's schema of others.

    >>> effect_of("aten.bernoulli.p"), effect_of("aten.view.default"), effect_of("aten.mm.default")
    ('draws', 'aliases', None)
    """
    if is_prim(target):
        op = find(target)
        return None if op is None else op.effect
    return record_of(resolve(target)).effect  # type: ignore[arg-type]


def _answers(func: OpOverload, writes: tuple[tuple[int, str], ...], sources: list[str | None]) -> Answers:
    if str(func) in HIDDEN_WRITES:
        return Answers.OTHER
    if not writes and all(source is None for source in sources):
        return Answers.FRESH
    first = func._schema.arguments[0].name
    if sources != [first] or torch.Tag.inplace_view in func.tags:
        return Answers.OTHER
    return Answers.SELF if writes == ((0, first),) else Answers.VIEW if not writes else Answers.OTHER


def _is_composite(func: OpOverload) -> bool:
    """Does autograd see other ops instead of this one (an own CPU kernel keeps it whole)."""
    has_kernel = TORCH.has_kernel
    name = func.name()
    if not TORCH.has_kernels(name):  # of TorchScript alone, as aten.dim is in torch 2.11
        return False
    return has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CPU")


def _alias_source(arguments: Any, returned: Any) -> str | None:
    """Name of the argument that a result aliases."""
    if returned.alias_info is None:
        return None
    wanted = returned.alias_info.before_set
    for argument in arguments:
        info = argument.alias_info
        if info is not None and (not wanted or info.before_set & wanted):
            return argument.name
    return None


def functional_of(func: OpOverload) -> OpOverload | None:
    """The overload that computes what an in-place or out= overload writes, or None.

    >>> str(functional_of(torch.ops.aten.add_.Tensor)), str(functional_of(torch.ops.aten.add.out))
    ('aten.add.Tensor', 'aten.add.Tensor')
    """
    exception = _FUNCTIONAL_EXCEPTIONS.get(str(func))
    namespace = getattr(torch.ops, func.namespace)
    if exception is not None:
        _, packet, overload = exception.split(".")
        return getattr(getattr(namespace, packet), overload)
    packet_name = func._schema.name.split("::")[1]
    outs = [a.name for a in func._schema.arguments if a.is_out]
    if not outs:
        if not packet_name.endswith("_") or packet_name.endswith("__"):
            return None
        packet_name = packet_name.removesuffix("_")
    packet = getattr(namespace, packet_name, None)
    if packet is None:
        return None
    wanted = _signature(func)
    for overload_name in packet.overloads():
        candidate = getattr(packet, overload_name)
        if not candidate._schema.is_mutable and _signature(candidate) == wanted:
            return candidate
    return None


def _signature(func: OpOverload) -> list[tuple[str, str]]:
    arguments = [(a.name, str(a.type)) for a in func._schema.arguments if not a.is_out]
    return [(name, kind) for name, kind in arguments if kind != "Optional[Generator]"]


def argument_value(write: tuple[int, str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The value passed for a (position, name) pair of an `OpRecord`, or None."""
    position, name = write
    if 0 <= position < len(args):
        return args[position]
    return kwargs.get(name)
