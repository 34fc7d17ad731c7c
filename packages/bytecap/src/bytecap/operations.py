"""The operators of Python on values: arithmetic, comparison, truth, iteration."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bytecap.errors import UnsupportedCall
from bytecap.fold import fold, run
from bytecap.signals import End, NotConcrete
from bytecap.values.base import IteratorValue, Value
from bytecap.values.constant import Constant
from bytecap.values.mappings import DictValue, DictView, SetValue
from bytecap.values.objects import ExceptionValue, ObjectValue
from bytecap.values.sequences import ListValue, Sequence, TupleValue
from bytecap.values.tensors import TensorValue

if TYPE_CHECKING:
    from bytecap.tracer import Tracer


class BinaryOperator(NamedTuple):
    """A binary operator: the host function, its in-place form, and the method names it looks up."""

    function: Callable[[Any, Any], Any]
    inplace: Callable[[Any, Any], Any]
    method: str
    reflected: str
    inplace_method: str


def _row(name: str, inplace: str, stem: str) -> BinaryOperator:
    return BinaryOperator(
        getattr(operator, name), getattr(operator, inplace), f"__{stem}__", f"__r{stem}__", f"__i{stem}__"
    )


BINARY: dict[str, BinaryOperator] = {
    "+": _row("add", "iadd", "add"),
    "-": _row("sub", "isub", "sub"),
    "*": _row("mul", "imul", "mul"),
    "/": _row("truediv", "itruediv", "truediv"),
    "//": _row("floordiv", "ifloordiv", "floordiv"),
    "%": _row("mod", "imod", "mod"),
    "**": _row("pow", "ipow", "pow"),
    "@": _row("matmul", "imatmul", "matmul"),
    "&": _row("and_", "iand", "and"),
    "|": _row("or_", "ior", "or"),
    "^": _row("xor", "ixor", "xor"),
    "<<": _row("lshift", "ilshift", "lshift"),
    ">>": _row("rshift", "irshift", "rshift"),
}
COMPARE: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}
UNARY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
}


def _user_method(tracer: Tracer, value: Value, name: str) -> Value | None:
    from bytecap.attributes import special_method

    return special_method(tracer, value, name) if isinstance(value, ObjectValue) else None


def _is_not_implemented(value: Value) -> bool:
    return isinstance(value, Constant) and value.value is NotImplemented


def _user_binary(tracer: Tracer, left: Value, right: Value, method: str, reflected: str) -> Value | None:
    attempts = [(left, method, right), (right, reflected, left)]
    right_first = left.python_type() is not right.python_type() and issubclass(right.python_type(), left.python_type())
    for receiver, name, other in reversed(attempts) if right_first else attempts:
        bound = _user_method(tracer, receiver, name)
        if bound is not None:
            result = bound.call(tracer, [other], {})
            if not _is_not_implemented(result):
                return result
    return None


def binary(tracer: Tracer, symbol: str, left: Value, right: Value, *, inplace: bool = False) -> Value:
    """`left symbol right`, or `left symbol= right`."""
    from bytecap.torch_calls import call_torch

    row = BINARY[symbol]
    kinds = {type(left), type(right)}
    if TensorValue in kinds and not any(issubclass(kind, ObjectValue) for kind in kinds):
        function = row.inplace if inplace and isinstance(left, TensorValue) else row.function
        return call_torch(tracer, function, [left, right], {})
    if inplace:
        bound = _user_method(tracer, left, row.inplace_method)
        if bound is not None:
            result = bound.call(tracer, [right], {})
            if not _is_not_implemented(result):
                return result
        done = _inplace_container(tracer, symbol, left, right)
        if done is not None:
            return done
    done = _user_binary(tracer, left, right, row.method, row.reflected)
    if done is None:
        done = _container_binary(tracer, symbol, _plain(left), _plain(right))
    if done is None:
        done = _concrete_binary(tracer, row.function, left, right)
    return done


def _plain(value: Value) -> Value:
    return value.base if isinstance(value, ObjectValue) and value.base is not None else value


def _concrete_binary(tracer: Tracer, function: Any, left: Value, right: Value) -> Value:
    try:
        real_left, real_right = left.concrete(), right.concrete()
    except NotConcrete:
        raise UnsupportedCall(f"operator {function.__name__} on {left.describe()} and {right.describe()}") from None
    return fold(tracer, function, (real_left, real_right))


def _inplace_container(tracer: Tracer, symbol: str, left: Value, right: Value) -> Value | None:
    if isinstance(left, ListValue) and symbol == "+":
        left.call_method(tracer, "extend", [right], {})
        return left
    if isinstance(left, ListValue) and symbol == "*":
        left.mutate(tracer)
        left.items[:] = left.items * as_int(tracer, right)
        return left
    if isinstance(left, DictValue) and symbol == "|":
        left.call_method(tracer, "update", [right], {})
        return left
    if isinstance(left, SetValue) and left.cls is set and symbol in _SET_METHODS:
        left.call_method(tracer, _SET_METHODS[symbol] + "_update", [right], {})
        return left
    return None


_SET_METHODS = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}


def _container_binary(tracer: Tracer, symbol: str, left: Value, right: Value) -> Value | None:
    both_sequences = isinstance(left, Sequence) and isinstance(right, Sequence)
    if symbol == "+" and both_sequences and left.builtin is right.builtin:  # type: ignore[attr-defined]
        cls = _sum_class(left.cls, right.cls)
        return type(left)([*left.values(tracer), *right.values(tracer)], cls=cls)
    if symbol == "*":
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, Sequence) and isinstance(count, Constant):
                return type(sequence)(sequence.values(tracer) * as_int(tracer, count))
    if symbol == "|" and isinstance(left, DictValue) and isinstance(right, DictValue):
        merged = left.call_method(tracer, "copy", [], {})
        merged.call_method(tracer, "update", [right], {})
        return merged
    if symbol in _SET_METHODS and isinstance(left, (SetValue, DictView)):
        as_set = left if isinstance(left, SetValue) else tracer.new_set(collect(tracer, left))
        return as_set.call_method(tracer, _SET_METHODS[symbol], [right], {})
    if symbol == "%" and isinstance(left, Constant) and isinstance(left.value, str):
        return Constant(run(tracer, operator.mod, (left.value, printable(tracer, right))))
    return None


def _sum_class(left: type, right: type) -> type:
    """The class of `left() + right()`: torch.Size and deque keep theirs, named tuples do not."""
    plain = [next(base for base in (torch.Size, deque, tuple, list) if issubclass(cls, base)) for cls in (left, right)]
    return type(plain[0]() + plain[1]())


def printable(tracer: Tracer, value: Value) -> Any:
    """A host object that formats as the value does."""
    if isinstance(value, TensorValue):
        raise UnsupportedCall("formatting a tensor needs its content")
    try:
        return value.concrete()
    except NotConcrete:
        twin = value.twin() if isinstance(value, ExceptionValue) else None
        if twin is not None:
            return twin
        if isinstance(value, TupleValue) and value.cls is tuple:
            return tuple(printable(tracer, item) for item in value.values(tracer))
        if isinstance(value, ListValue) and value.cls in (list, deque):
            return value.cls(printable(tracer, item) for item in value.values(tracer))
        if isinstance(value, DictValue) and value.cls is dict:
            return {printable(tracer, key): printable(tracer, item) for key, item in value.pairs(tracer)}
        raise UnsupportedCall(f"formatting a {value.describe()}") from None


def unary(tracer: Tracer, symbol: str, value: Value) -> Value:
    """`symbol value`."""
    from bytecap.torch_calls import call_torch

    function, method = UNARY[symbol]
    if isinstance(value, TensorValue):
        return call_torch(tracer, function, [value], {})
    bound = _user_method(tracer, value, method)
    if bound is not None:
        return bound.call(tracer, [], {})
    return fold(tracer, function, (value.concrete(),))


def compare(tracer: Tracer, symbol: str, left: Value, right: Value) -> Value:
    """`left symbol right` for the six orderings."""
    from bytecap.torch_calls import call_torch

    function, method, reflected = COMPARE[symbol]
    if isinstance(left, TensorValue) or isinstance(right, TensorValue):
        other = right if isinstance(left, TensorValue) else left
        if isinstance(other, (TensorValue, Constant)) and not _never_tensor(other):
            return call_torch(tracer, function, [left, right], {})
        return Constant(symbol == "!=") if symbol in ("==", "!=") else _type_error(tracer, symbol, left, right)
    done = _user_binary(tracer, left, right, method, reflected)
    if done is None and symbol == "!=":
        done = _user_binary(tracer, left, right, "__eq__", "__eq__")
        if done is not None:
            return Constant(not truth(tracer, done))
    if done is not None:
        return done
    return _compare_plain(tracer, symbol, function, _plain(left), _plain(right))


def _never_tensor(value: Value) -> bool:
    return isinstance(value, Constant) and isinstance(value.value, (str, bytes, type(None)))


def _type_error(tracer: Tracer, symbol: str, left: Value, right: Value) -> Value:
    raise tracer.raises(
        TypeError,
        f"'{symbol}' not supported between instances of '{left.python_type().__name__}' "
        f"and '{right.python_type().__name__}'",
    )


def _compare_plain(tracer: Tracer, symbol: str, function: Any, left: Value, right: Value) -> Value:
    if symbol in ("==", "!="):
        return Constant(plain_equal(tracer, left, right) == (symbol == "=="))
    if isinstance(left, Sequence) and isinstance(right, Sequence) and left.builtin is right.builtin:
        for a, b in zip(left.values(tracer), right.values(tracer), strict=False):
            if not truth(tracer, compare(tracer, "==", a, b)):
                return compare(tracer, symbol, a, b)
        return Constant(function(len(left.items), len(right.items)))
    if isinstance(left, SetValue) and isinstance(right, SetValue):
        return Constant(function(set(left.members), set(right.members)))
    return _concrete_binary(tracer, function, left, right)


def plain_equal(tracer: Tracer, left: Value, right: Value) -> bool:
    """`==` of objects whose classes do not define it in Python."""
    if same_object(left, right):
        return not (isinstance(left, Constant) and left.value != left.value)
    if isinstance(left, Sequence) and isinstance(right, Sequence):
        return (
            left.builtin is right.builtin
            and len(left.items) == len(right.items)
            and all(equal(tracer, a, b) for a, b in zip(left.values(tracer), right.values(tracer), strict=True))
        )
    if isinstance(left, DictValue) and isinstance(right, DictValue):
        return _dicts_equal(tracer, left, right)
    if isinstance(left, (SetValue, DictView)) and isinstance(right, (SetValue, DictView)):
        sets = [{tracer.hash_key(v) for v in collect(tracer, side)} for side in (left, right)]
        return sets[0] == sets[1]
    if isinstance(left, (Sequence, DictValue, SetValue)) or isinstance(right, (Sequence, DictValue, SetValue)):
        return False
    tracer.guard_distinct(left, right, tracer.line())
    try:
        return bool(run(tracer, operator.eq, (left.concrete(), right.concrete())))
    except NotConcrete:
        return False


def _dicts_equal(tracer: Tracer, left: DictValue, right: DictValue) -> bool:
    if left.length(tracer) != right.length(tracer):
        return False
    for key, value in left.pairs(tracer):
        other = right.lookup(tracer, key)
        if other is None or not equal(tracer, value, other):
            return False
    return True


def equal(tracer: Tracer, left: Value, right: Value) -> bool:
    """`left is right or left == right`, as containers compare items."""
    return same_object(left, right) or truth(tracer, compare(tracer, "==", left, right))


def same_object(left: Value, right: Value) -> bool:
    """`left is right`."""
    if left is right:
        return True
    if isinstance(left, TensorValue) or isinstance(right, TensorValue):
        return False
    if isinstance(left, Constant) and isinstance(right, Constant):
        return left.value is right.value or (
            type(left.value) is type(right.value) and isinstance(left.value, (int, str)) and left.value == right.value
        )
    if type(left) is not type(right) or getattr(left, "real", None) is None:
        return False
    return left.real is right.real  # type: ignore[attr-defined]


def truth(tracer: Tracer, value: Value) -> bool:
    """bool(value)."""
    return value.truth(tracer)


def contains_by_iteration(tracer: Tracer, container: Value, item: Value) -> bool:
    """`item in container` by comparing each item."""
    return any(equal(tracer, member, item) for member in iterate_host(tracer, container))


def next_value(tracer: Tracer, iterator: Value) -> Any:
    """The next Value, or an `End`."""
    from bytecap.values.protocols import ObjectIterator

    if isinstance(iterator, IteratorValue):
        return iterator.next(tracer)
    return ObjectIterator(iterator).next(tracer)


def next_or_raise(tracer: Tracer, iterator: Value) -> Value:
    """next(iterator)."""
    return result_or_stop(tracer, next_value(tracer, iterator))


def result_or_stop(tracer: Tracer, result: Any) -> Value:
    """The value, or StopIteration raised in the evaluated program."""
    if isinstance(result, End):
        raise tracer.raises(StopIteration, *([] if result.value is None else [result.value]))
    return result


def iterate_host(tracer: Tracer, value: Value) -> Any:
    """A host generator over the items of any iterable value."""
    if isinstance(value, Sequence):
        index = 0
        while index < len(value.items):
            yield value.item(tracer, index)
            index += 1
        return
    iterator = value.iterate(tracer)
    while not isinstance(item := next_value(tracer, iterator), End):
        yield item


def collect(tracer: Tracer, value: Value) -> list[Value]:
    """list(value)."""
    return list(iterate_host(tracer, value))


def as_index(tracer: Tracer, key: Value) -> Any:
    """An int or slice of ints for a sequence subscript."""
    from bytecap.torch_calls import data_dependent_scalar
    from bytecap.values.sequences import SliceValue

    if isinstance(key, SliceValue):
        bounds = [None if is_none(bound) else as_int(tracer, bound) for bound in (key.start, key.stop, key.step)]
        return slice(*bounds)
    if isinstance(key, TensorValue):
        return int(data_dependent_scalar(tracer, key, "a tensor used as an index"))
    if isinstance(key, Constant) and isinstance(key.value, str):
        raise tracer.raises(TypeError, "sequence indices must be integers or slices, not str")
    return as_int(tracer, key)


def is_none(value: Value) -> bool:
    """Whether the value is None."""
    return isinstance(value, Constant) and value.value is None


def as_int(tracer: Tracer, value: Value) -> int:
    """operator.index(value)."""
    from bytecap.torch_calls import data_dependent_scalar

    if isinstance(value, TensorValue):
        return int(data_dependent_scalar(tracer, value, "a tensor used as an integer"))
    bound = _user_method(tracer, value, "__index__")
    if bound is not None:
        return as_int(tracer, bound.call(tracer, [], {}))
    try:
        return run(tracer, operator.index, (value.concrete(),))
    except NotConcrete:
        raise tracer.raises(
            TypeError, f"'{value.python_type().__name__}' object cannot be interpreted as an integer"
        ) from None
