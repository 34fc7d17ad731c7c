"""What ATen's kernels refuse whatever the sizes: dtypes, ranks, attributes, nothing to reduce. They are asked for it.

The overload runs once on tensors of one element, with the dtypes and ranks of the operands and the same other
arguments; what it raises is what eager raises. Answers are kept by the question. Conditions between sizes are
constraints of the rules (`rules.table`), because with symbolic sizes they have to become guards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from absint.errors import DataDependentError, refusal_class
from absint.meta import Meta, contiguous, leaves
from absint.signatures import bind
from absint.symbolic.size import is_unbacked
from absint.torch_capabilities import TORCH

if TYPE_CHECKING:
    from torch._ops import OpOverload

_LIMIT = 1 << 14
_PASSED = 1 << 10


@dataclass(frozen=True, slots=True)
class Question:
    """How a kernel is asked.

    fill: the value of each element: 1, or 0 where integers are indices.
    size: of each dimension.
    empties: dimensions without elements keep that; a symbolic size is guarded not to be 0.
    of: what stands in place of given arguments, by name, where attributes fit the sizes of the operands (a kernel's
        extent); a function of those arguments that it names.
    drops_sizes: `of` replaces each attribute that may be symbolic, so that the kernel is asked with such ones too.
    names: of the arguments of the overload, where `of` is bound to one.
    """

    fill: int = 1
    size: int = 1
    empties: bool = False
    of: Callable[..., dict[str, Any]] | None = None
    drops_sizes: bool = False
    names: tuple[str, ...] = ()

    def bound(self, func: OpOverload) -> Question:
        """The question to this overload."""
        if self.of is None or self.names:
            return self
        return replace(self, of=bind(self.of, func), names=tuple([a.name for a in func._schema.arguments]))


def ones(meta: Meta | None, empties: bool = False) -> Meta | None:
    """The type of a tensor of one element of the same dtype and rank; with `empties`, empty dimensions stay so."""
    if meta is None:
        return None
    return shaped(meta, [0 if empties and _is_zero(size) else 1 for size in meta.shape])


def shaped(meta: Meta, shape: Sequence[int]) -> Meta:
    """The type of a tensor of another shape."""
    return contiguous(shape, meta.dtype, meta.device)


def asked(func: OpOverload, rule: Callable[..., Any], question: Question) -> Callable[..., Any]:
    """The rule of an overload behind the question to its kernel."""
    question = question.bound(func)
    has_lists = "[" in str(func._schema).rpartition(" -> ")[0]
    passed: set[Any] = set()

    def answer(*args: Any, **kwargs: Any) -> Any:
        if kwargs or question.of is not None or has_lists:
            ask(func, question, args, kwargs)
            return rule(*args, **kwargs)
        # Nearly every call: answered here, in a tenth of the time.
        key = (_state(), *[_short_key(a, question.empties) for a in args])
        if key not in passed and ask(func, question, args, kwargs):
            if len(passed) == _PASSED:
                passed.clear()
            passed.add(key)
        return rule(*args)

    return answer


def ask(func: OpOverload, question: Question, args: Any, kwargs: dict[str, Any], outs: tuple[str, ...] = ()) -> bool:
    """Raise what the kernel of an overload raises for these operands (types in place of tensors), if it does.

    Gives back whether it was asked.

    outs: the names of the arguments that are written with another size than they have. Tensors of other devices than
    the CPU are not asked about.
    """
    written = []
    if _drawing(func)[0] is None:
        return False
    if question.of is not None:
        given_leaves = leaves((*args, *kwargs.values()))
        if not question.drops_sizes and any(isinstance(leaf, _OF_SIZES) for leaf in given_leaves):
            return False  # which attribute would fit the sizes is not to be decided here
        written = [(name, shaped(kwargs[name], (0,) * kwargs[name].ndim)) for name in outs if name in kwargs]
        kwargs = {name: value for name, value in kwargs.items() if name not in outs}
        question = question.bound(func)
        instead = question.of(*args, **kwargs)  # type: ignore[misc]
        args = [instead.get(name, value) for name, value in zip(question.names, args, strict=False)]
        kwargs = {name: instead.get(name, value) for name, value in kwargs.items()}
    try:
        given = tuple([_key(value, question) for value in args])
        named = tuple([(name, _key(value, _WRITTEN if name in outs else question)) for name, value in kwargs.items()])
        named += tuple([(name, _key(value, _WRITTEN)) for name, value in written])
    except _Unasked:
        return False
    error = _answer(func, question.fill, given, named, _state())
    if error is None:
        return True
    metas = (leaf for leaf in leaves((args, *kwargs.values())) if type(leaf) is Meta)
    if question.of is None and not question.empties and any(_is_zero(size) for meta in metas for size in meta.shape):
        ask(func, replace(question, empties=True), args, kwargs, outs)  # of nothing, many a kernel asks less
        return False
    raise refusal_class(type(error))((str(error).strip().splitlines() or [str(func)])[0])


def _state() -> tuple[bool, torch.dtype]:
    """What of torch's state an answer may depend on."""
    return torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype()


def _short_key(value: Any, empties: bool) -> Any:
    """An operand as far as a kept answer needs it; sizes of a capture are not kept beyond it."""
    if type(value) is Meta:
        return value.dtype, tuple([_is_zero(size) for size in value.shape]) if empties else len(value.shape)
    return (int, 1) if isinstance(value, _OF_SIZES) else (type(value), value)


class _Unasked(Exception):
    """An operand is on another device, too large, of a size that data decides, or none that a question can hold."""


_PLAIN = frozenset((int, float, bool, complex, str, torch.dtype, torch.layout, torch.memory_format))
_OF_SIZES = (torch.SymInt, torch.SymBool, torch.SymFloat)
_WRITTEN = Question(size=0)
_LARGE_RANK = 12
_MOST = 1 << 20


def _key(value: Any, question: Question) -> Any:
    """An operand as far as it matters: dtype and shape of a tensor; a number computed of sizes is taken for 1."""
    kind = type(value)
    if kind is Meta:
        if value.device.type != "cpu":
            raise _Unasked
        return value.dtype, _shape(value.shape, question)
    if kind is torch.device and value.type != "cpu":
        raise _Unasked
    if value is None or kind in (torch.Generator, torch.device):
        return None
    if kind in _PLAIN:
        return kind, value
    if kind is list or kind is tuple:
        return list, tuple([_key(item, question) for item in value])
    if isinstance(value, _OF_SIZES):
        return int, 1
    raise _Unasked


def _shape(shape: tuple[int, ...], question: Question) -> tuple[int, ...]:
    if question.of is not None:
        if any(map(is_unbacked, shape)) or math.prod(shape) > _MOST:
            raise _Unasked
        return tuple(map(int, shape))
    size = question.size if len(shape) < _LARGE_RANK else 1
    if question.empties:
        return tuple([0 if _is_zero(given) else size for given in shape])
    return (size,) * len(shape)


def _is_zero(size: Any) -> bool:
    """Whether a dimension is empty; one whose size data decides is taken not to be."""
    if type(size) is int:
        return size == 0
    try:
        return bool(size == 0)
    except DataDependentError:
        return False


@lru_cache(_LIMIT)
def _answer(func: OpOverload, fill: int, args: Any, kwargs: Any, state: Any) -> Exception | None:
    """What the kernel raises. `state` is that of torch on which it may depend."""
    with torch.no_grad(), TORCH.no_dispatch():
        operands = [_operand(key, fill) for key in args]
        named = {name: _operand(key, fill) for name, key in kwargs}
        drawing, place = _drawing(func)
        if place is not None:  # what a question draws is of no stream of the program
            if place < len(operands):
                operands[place] = torch.Generator()
            else:
                named["generator"] = torch.Generator()
        try:
            drawing(*operands, **named)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            return error.with_traceback(None)
    return None


@lru_cache(_LIMIT)
def _drawing(func: OpOverload) -> tuple[Any, int | None]:
    """The overload that is asked in the place of one, and where among its arguments its generator is (None: it draws
    nothing). No overload where each draws from the program's stream."""
    packet, name = func.overloadpacket, func._overloadname
    for one in (name, "generator" if name == "default" else f"{name}_generator"):
        if one in packet.overloads():
            overload = getattr(packet, one)
            places = [n for n, argument in enumerate(overload._schema.arguments) if argument.name == "generator"]
            if places:
                return overload, places[0]
    return (None if torch.Tag.nondeterministic_seeded in func.tags else func), None


def _operand(key: Any, fill: int) -> Any:
    if key is None:
        return None
    kind, value = key
    if isinstance(kind, torch.dtype):
        return torch.ops.aten.full.default(value, fill, dtype=kind)
    return [_operand(item, fill) for item in value] if kind is list else value
