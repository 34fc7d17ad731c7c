"""The operators of Python on values: arithmetic, comparison, truth, iteration."""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from absint.symbolic import NUMBERS
from bytecap.bytecode.rebuild import EMPTY_CELL
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall, UnsupportedValue
from bytecap.objects.arrays.numpy_arrays import ArrayValue, OutsideArray, TracedArray, is_number
from bytecap.objects.arrays.tensors import TensorValue, WrapperValue, patched_method, refuse_chosen
from bytecap.objects.base import Constant, NotConcrete, Value, collect, fold, run
from bytecap.objects.class_lookup import has_method, stranger
from bytecap.objects.containers.host_containers import SetValue, keys_of
from bytecap.objects.containers.mappings import DictValue, DictView
from bytecap.objects.containers.sequences import ListValue, Sequence, SliceValue, TupleValue
from bytecap.objects.functions import BuiltinMethod, CellValue, ClassValue, MethodValue
from bytecap.objects.identity import IdentityToken, refuse_among_numbers
from bytecap.objects.instances.objects import ObjectValue, call_special, copies_as_itself
from bytecap.objects.live import call_native, mirror_of
from bytecap.objects.numbers.open_constants import derive, open_binary
from bytecap.objects.numbers.symbolic import condition_of_data, is_symbolic
from bytecap.objects.opaque import OpaqueValue, UnguardedValue, UnknownValue, refuse_unguarded
from stagewire.capture import COMPARED


class BinaryOperator(NamedTuple):
    """A binary operator: the host function, its in-place form, and the method names it looks up."""

    function: Callable[[Any, Any], Any]
    inplace: Callable[[Any, Any], Any]
    method: str
    reflected: str
    inplace_method: str


_STEMS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
BINARY: dict[str, BinaryOperator] = {
    symbol: BinaryOperator(
        *[getattr(operator, f"__{prefix}{stem}__") for prefix in ("", "i")],
        *[f"__{prefix}{stem}__" for prefix in ("", "r", "i")],
    )
    for symbol, stem in _STEMS.items()
}
_REFLECTED = {"<": "gt", "<=": "ge", "==": "eq", "!=": "ne", ">": "lt", ">=": "le"}
COMPARE: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    symbol: (COMPARED[symbol], f"__{COMPARED[symbol].__name__}__", f"__{name}__") for symbol, name in _REFLECTED.items()
}
UNARY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
}


def _is_not_implemented(value: Value) -> bool:
    return value.python_type() is type(NotImplemented)


_WITH_METHODS = (ObjectValue, ClassValue)


def _user_binary(
    tracer: Tracer, left: Value, right: Value, method: str, reflected: str, *, ordering: bool = False
) -> Value | None:
    """The user's methods in CPython's order; arithmetic of one class never tries the reflected method."""
    if not isinstance(left, _WITH_METHODS) and not isinstance(right, _WITH_METHODS):
        return None
    left_class, right_class = left.python_type(), right.python_type()
    attempts = [(left, method, right), (right, reflected, left)]
    if left_class is right_class:
        attempts = attempts if ordering else attempts[:1]
    elif issubclass(right_class, left_class):
        for cls in (left_class, right_class):
            tracer.guards.lookup(cls, reflected)
        is_own = getattr(left_class, reflected, None) is not getattr(right_class, reflected, None)
        if ordering or is_own:
            attempts.reverse()
    for receiver, name, other in attempts:
        result = call_special(tracer, receiver, name, other)
        if result is not None and not _is_not_implemented(result):
            return result
    return None


def binary(tracer: Tracer, symbol: str, left: Value, right: Value, *, inplace: bool = False) -> Value:
    """`left symbol right`, or `left symbol= right`."""
    refuse_unguarded(left, right)
    row = BINARY[symbol]
    if isinstance(left, Constant) and isinstance(right, Constant):
        are_numbers = {left.python_type(), right.python_type()} <= {int, float}
        by_sizes = are_numbers and (is_symbolic(left) or is_symbolic(right))
        left_open = None if by_sizes else open_binary(row.function, symbol, left, right)
        if left_open is not None:
            return left_open
        return fold(tracer, row.inplace if inplace else row.function, _numbers(left, right))
    left, right = _as_number(tracer, left, right), _as_number(tracer, right, left)
    kinds = {type(left), type(right)}
    if TracedArray in kinds and not (inplace and isinstance(left, (ArrayValue, OutsideArray))):
        function = row.inplace if inplace else row.function
        return tracer.evaluate.call_on_arrays(tracer, function, [left, right], {}, function.__name__)
    if not kinds.isdisjoint(_TENSORS) and not (_is_own_kind(tracer, left, row) or _is_own_kind(tracer, right, row)):
        names = (row.inplace_method, row.method) if inplace else (row.method,)
        patched = _patched(tracer, [*((left, name, [right]) for name in names), (right, row.reflected, [left])])
        if patched is not None:
            return patched
        function = row.inplace if inplace and isinstance(left, _TENSORS) else row.function
        return tracer.evaluate.call_torch(tracer, function, [left, right], {})
    if inplace:
        result = call_special(tracer, left, row.inplace_method, right)
        if result is not None and not _is_not_implemented(result):
            return result
        if isinstance(left, (ArrayValue, OutsideArray)):
            left.write(tracer, row.inplace, right)
            return left
        if _inplace_container(tracer, symbol, left.plain(), right):
            return left
        if not isinstance(left, (Constant, SetValue)) and has_method(left, row.inplace_method):
            raise UnsupportedCall(f"operator {row.inplace.__name__} on a {left.describe()}")
    done = _user_binary(tracer, left, right, row.method, row.reflected)
    if done is None:
        if symbol == "|" and (copies_as_itself(left) or copies_as_itself(right)):
            raise UnsupportedCall(f"operator or_ on {left.describe()} and {right.describe()}")
        # `left % right` asks a subclass for its text.
        formats = symbol == "%" and issubclass(left.python_type(), (str, bytes))
        is_own = formats and not isinstance(right.plain(), TupleValue)
        done = _container_binary(tracer, symbol, left.plain(), right if is_own else right.plain())
    if done is None:
        done = _concrete_binary(tracer, symbol, row.inplace if inplace else row.function, left, right)
    return done


def _patched(tracer: Tracer, attempts: list[tuple[Value, str, list[Value]]]) -> Value | None:
    """The result of the first of these methods that the program put into torch.Tensor; None if torch's comes first."""
    for receiver, name, args in attempts:
        method = patched_method(tracer, receiver, name)
        if method is None and isinstance(receiver, _TENSORS) and has_method(receiver, name):
            return None
        result = None if method is None else method.call(tracer, args, {})
        if result is not None and not _is_not_implemented(result):
            return result
    return None


_TENSORS = (TensorValue, WrapperValue)
_NUMBERS = (*NUMBERS, complex)


def _numbers(left: Constant, right: Constant) -> tuple[Any, Any]:
    """What an operator computes with: sizes stay symbolic where both sides are numbers."""
    if is_symbolic(left) or is_symbolic(right):
        sides = left.host(), right.host()
        if all(isinstance(side, _NUMBERS) for side in sides):
            return sides
    return left.value, right.value


def _compared(left: Constant, right: Constant) -> tuple[Any, Any]:
    """What a comparison looks at: beside what is no number, any int says what a size says."""
    sides = tuple(side.host() for side in (left, right))
    if all(isinstance(side, _NUMBERS) for side in sides):
        return sides  # type: ignore[return-value]
    return tuple([side.stand_in() if is_symbolic(side) else side.host() for side in (left, right)])  # type: ignore[return-value]


def _is_own_kind(tracer: Tracer, value: Value, row: BinaryOperator) -> bool:
    """Whether the class of an object says what the operator does (a subclass of a number need not)."""
    if not isinstance(value, ObjectValue):
        return False
    names = (row.method, row.reflected, row.inplace_method, "__torch_function__")
    return not isinstance(value.base, Constant) or any(value._special(tracer, name) for name in names)


def _concrete_binary(tracer: Tracer, symbol: str, function: Any, left: Value, right: Value) -> Value:
    try:
        real_left, real_right = left.plain().concrete(), right.plain().concrete()
    except NotConcrete:
        _refuse_operands(tracer, symbol, function, left, right)
    return fold(tracer, function, (real_left, real_right))


def _refuse_operands(tracer: Tracer, symbol: str, function: Any, left: Value, right: Value) -> None:
    """Both kinds of operands are known, and neither knows the operator: CPython's TypeError."""
    if not any(isinstance(side, OpaqueValue) or type(side) is TensorValue for side in (left, right)):
        run(tracer, function, (_stand_in(left), _stand_in(right)))
    raise UnsupportedCall(f"operator {function.__name__} on {left.describe()} and {right.describe()}")


def _stand_in(value: Value) -> Any:
    """A small real object, which operators refuse as they would refuse the value."""
    if isinstance(value, Constant):
        return value.value
    cls = value.python_type()
    return cls() if cls in (list, tuple, dict, set, frozenset, deque) else stranger(value)


def _inplace_container(tracer: Tracer, symbol: str, left: Value, right: Value) -> bool:
    """Whether `left` is a container that takes `left symbol= right`, done then."""
    if isinstance(left, ListValue) and symbol == "+":
        left.call_method(tracer, "extend", [right], {})
        return True
    if isinstance(left, ListValue) and symbol == "*" and _is_count(right):
        left.mutate(tracer)
        left.replace(left.items * right.as_int(tracer))
        return True
    if isinstance(left, DictValue) and symbol == "|":
        left.call_method(tracer, "update", [right], {})
        return True
    other = right.plain()
    if symbol in _OF_SETS and isinstance(left, SetValue) and left.cls is set and isinstance(other, SetValue):
        left.mutate(tracer)
        call_native(tracer, BINARY[symbol].inplace, left.keys, other.keys)
        return True
    return False


_OF_SETS = frozenset("|&-^")


def _is_count(value: Value) -> bool:
    return hasattr(value.python_type(), "__index__") and not isinstance(value, TensorValue)


def _container_binary(tracer: Tracer, symbol: str, left: Value, right: Value) -> Value | None:
    both_sequences = isinstance(left, Sequence) and isinstance(right, Sequence)
    if symbol == "+" and both_sequences and left.builtin is right.builtin:  # type: ignore[attr-defined]
        # torch.Size and deque keep their classes, named tuples do not.
        known = (torch.Size, deque, tuple, list)
        plain = [next(base for base in known if issubclass(side.cls, base)) for side in (left, right)]  # type: ignore[attr-defined]
        return left.like([*left.values(tracer), *right.values(tracer)], type(plain[0]() + plain[1]()))
    if symbol == "*":
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, Sequence) and _is_count(count):
                return sequence.like(sequence.values(tracer) * count.as_int(tracer))
    if symbol == "|" and isinstance(left, DictValue) and isinstance(right, DictValue):
        merged = left.call_method(tracer, "copy", [], {})
        merged.call_method(tracer, "update", [right], {})
        return merged
    set_like = [side for side in (left, right) if _is_set_like(side)]
    has_view = any(isinstance(side, DictView) for side in set_like)
    if symbol == "&" and has_view:
        return _view_intersection(tracer, left, right)
    if symbol in _OF_SETS and (len(set_like) == 2 or has_view):
        sides = [keys_of(tracer, side) for side in (left, right)]
        return SetValue(tracer.objects, call_native(tracer, BINARY[symbol].function, *sides))
    if symbol == "%" and isinstance(left, Constant) and isinstance(left.value, (str, bytes)):
        is_text = isinstance(left.value, str)
        left_open = tracer.evaluate.open_percent(tracer, left.value, right) if is_text else None
        return left_open or Constant(run(tracer, operator.mod, (left.value, tracer.evaluate.printable(tracer, right))))
    return None


def _view_intersection(tracer: Tracer, left: Value, right: Value) -> SetValue:
    """CPython's _PyDictView_Intersect, which asks the larger view for single keys: no others are guarded."""
    view, other = (left, right) if isinstance(left, DictView) else (right, left)
    size = view.length(tracer)
    if isinstance(other, SetValue) and size <= other.length(tracer):
        return other.call_method(tracer, "intersection", [view], {})  # type: ignore[return-value]
    if isinstance(other, DictView) and other.length(tracer) > size:
        view, other = other, view
    return tracer.objects.new_set([item for item in collect(tracer, other) if view.contains(tracer, item)])


def _as_number(tracer: Tracer, value: Value, other: Value) -> Value:
    """One side of an operator: beside a tensor, a number of NumPy's is the Python number that it is equal to."""
    if isinstance(value, TracedArray) and isinstance(other, _TENSORS) and is_number(value.example):
        return value.call_method(tracer, "item", [], {})
    return value


def unary(tracer: Tracer, symbol: str, value: Value) -> Value:
    """`symbol value`."""
    refuse_unguarded(value)
    function, method = UNARY[symbol]
    if isinstance(value, TracedArray):
        return tracer.evaluate.call_on_arrays(tracer, function, [value], {}, function.__name__)
    if isinstance(value, _TENSORS):
        return _patched(tracer, [(value, method, [])]) or tracer.evaluate.call_torch(tracer, function, [value], {})
    if (found := call_special(tracer, value, method)) is not None:
        return found
    value = value.plain()
    if isinstance(value, Constant) and value.python_type() in (int, float) and symbol != "~":
        left_open = derive(function, value)
        if left_open is not None:
            return left_open
    if not isinstance(value, (Constant, OpaqueValue)):
        run(tracer, function, (stranger(value),))
    return fold(tracer, function, (value.host() if isinstance(value, Constant) else value.concrete(),))


def compare(tracer: Tracer, symbol: str, left: Value, right: Value) -> Value:
    """`left symbol right` for the six orderings."""
    refuse_unguarded(left, right)
    function, method, reflected = COMPARE[symbol]
    for side, other in ((left, right), (right, left)):
        if isinstance(side, IdentityToken):
            refuse_among_numbers(side, (other,))
    if isinstance(left, Constant) and isinstance(right, Constant):
        of_data = condition_of_data(symbol, left, right)
        return fold(tracer, function, _compared(left, right)) if of_data is None else of_data
    left, right = _as_number(tracer, left, right), _as_number(tracer, right, left)
    if TracedArray in (type(left), type(right)):
        return tracer.evaluate.call_on_arrays(tracer, function, [left, right], {}, function.__name__)
    if isinstance(left, _TENSORS) or isinstance(right, _TENSORS):
        other = right if isinstance(left, _TENSORS) else left
        patched = _patched(tracer, [(left, method, [right]), (right, reflected, [left])])
        if patched is not None:
            return patched
        never = isinstance(other, Constant) and issubclass(other.python_type(), (str, bytes, type(None)))
        if isinstance(other, (*_TENSORS, Constant)) and not never:
            return tracer.evaluate.call_torch(tracer, function, [left, right], {})
        if symbol in ("==", "!="):
            return Constant(symbol == "!=")
        return run(tracer, function, (stranger(left), stranger(right)))
    if isinstance(left, CellValue) and isinstance(right, CellValue) and left.real is EMPTY_CELL and symbol == "==":
        return Constant(right.is_empty(tracer))
    done = _user_binary(tracer, left, right, method, reflected, ordering=True)
    if done is None and symbol == "!=":
        done = _user_binary(tracer, left, right, "__eq__", "__eq__", ordering=True)
        if done is not None:
            return Constant(not done.truth(tracer))
    if done is not None:
        return done
    return _compare_plain(tracer, symbol, function, left.plain(), right.plain())


def _compare_plain(tracer: Tracer, symbol: str, function: Any, left: Value, right: Value) -> Value:
    scalars = (Constant, OpaqueValue)
    if isinstance(left, scalars) and isinstance(right, scalars):
        # NumPy's numbers answer with a truth value of their own.
        tracer.guards.not_same(left, right)
        return fold(tracer, function, (left.concrete(), right.concrete()))
    if isinstance(left, _ARRAYS) or isinstance(right, _ARRAYS):
        return _concrete_binary(tracer, symbol, function, left, right)
    if _is_set_like(left) and _is_set_like(right):
        return Constant(call_native(tracer, function, keys_of(tracer, left), keys_of(tracer, right)))
    if symbol in ("==", "!="):
        return Constant(plain_equal(tracer, left, right) == (symbol == "=="))
    if isinstance(left, Sequence) and isinstance(right, Sequence) and left.builtin is right.builtin:
        mirrors = mirror_of(tracer, left), mirror_of(tracer, right)
        return tracer.objects.fresh(call_native(tracer, function, *mirrors))
    try:
        real_left, real_right = left.concrete(), right.concrete()
    except NotConcrete:
        real_left, real_right = stranger(left), stranger(right)
    return fold(tracer, function, (real_left, real_right))


_ARRAYS = (ArrayValue, OutsideArray)


def _is_set_like(value: Value) -> bool:
    return isinstance(value, SetValue) or (isinstance(value, DictView) and value.what != "values")


def plain_equal(tracer: Tracer, left: Value, right: Value) -> bool:
    """`==` of objects whose classes do not define it in Python."""
    is_unbacked = isinstance(left, UnknownValue) and left.python_type().__eq__ is not object.__eq__
    if same_object(left, right) and not is_unbacked:
        return not (isinstance(left, Constant) and left.value != left.value)
    for side in (left, right):
        if isinstance(side, UnknownValue) or (isinstance(side, OpaqueValue) and side.shows_changes()):
            raise UnsupportedValue(f"== of a {side.python_type().__name__} from outside the frame")
    if isinstance(left, Sequence) and isinstance(right, Sequence):
        return call_native(tracer, operator.eq, mirror_of(tracer, left), mirror_of(tracer, right))
    if isinstance(left, DictValue) and isinstance(right, DictValue):
        return _dicts_equal(tracer, left, right)
    if _is_namespace(left) and _is_namespace(right):
        return _dicts_equal(tracer, left.attributes, right.attributes)  # type: ignore[attr-defined]
    if isinstance(left, BuiltinMethod) and isinstance(right, BuiltinMethod):
        return left.name == right.name and same_object(left.receiver, right.receiver)
    if isinstance(left, MethodValue) and isinstance(right, MethodValue):
        return same_object(left.receiver, right.receiver) and equal(tracer, left.function, right.function)
    if isinstance(left, SliceValue) and isinstance(right, SliceValue):
        return equal(tracer, *[TupleValue([side.start, side.stop, side.step]) for side in (left, right)])
    if isinstance(left, (Sequence, DictValue, SetValue)) or isinstance(right, (Sequence, DictValue, SetValue)):
        return False
    tracer.guards.not_same(left, right)
    try:
        return bool(run(tracer, operator.eq, (left.concrete(), right.concrete())))
    except NotConcrete:
        return False


def _is_namespace(value: Value) -> bool:
    return issubclass(value.python_type(), SimpleNamespace)


def _dicts_equal(tracer: Tracer, left: DictValue, right: DictValue) -> bool:
    if left.length(tracer) != right.length(tracer):
        return False
    if left.cls is OrderedDict and right.cls is OrderedDict:
        keys = [[tracer.objects.hash_key(key) for key, _ in side.pairs(tracer)] for side in (left, right)]
        if keys[0] != keys[1]:
            return False
    for key, value in left.pairs(tracer):
        other = right.lookup(tracer, key)
        if other is None or not equal(tracer, value, other):
            return False
    return True


def equal(tracer: Tracer, left: Value, right: Value) -> bool:
    """`left is right or left == right`, as containers compare items."""
    return same_object(left, right) or compare(tracer, "==", left, right).truth(tracer)


def same_object(left: Value, right: Value) -> bool:
    """`left is right`."""
    if left is right:
        return True
    refuse_unguarded(left, right)
    if isinstance(left, _TENSORS) or isinstance(right, _TENSORS):
        return False
    if isinstance(left, IdentityToken) and isinstance(right, IdentityToken):
        return left.real is right.real and left.function is right.function
    if is_symbolic(left) or is_symbolic(right):
        return left.python_type() is right.python_type() and bool(left.host() == right.host())  # type: ignore[arg-type]
    if isinstance(left, Constant) and isinstance(right, Constant):
        if left.python_type() is not right.python_type():
            return False
        if left.value is right.value or (left.source is not None and right.source is not None):
            return left.value is right.value
        return (
            type(left.value) is type(right.value) and isinstance(left.value, (int, str)) and left.value == right.value
        )
    if all(isinstance(side, TupleValue) and side.cls is tuple and not side.items for side in (left, right)):
        return True  # CPython has one empty tuple
    if type(left) is not type(right) or getattr(left, "real", None) is None:
        return False
    return left.real is right.real  # type: ignore[attr-defined]


def is_same(tracer: Tracer, left: Value, right: Value) -> bool:
    """`left is right`, guarded."""
    for side, other in ((left, right), (right, left)):
        if isinstance(side, UnguardedValue) and side is not other:
            return side.is_constant(tracer, other)
    same = same_object(left, right)
    if isinstance(left, TensorValue) and isinstance(right, TensorValue) and not same:
        refuse_chosen(tracer, left, right)
    tracer.guards.whether_same(left, right, same)
    return same
