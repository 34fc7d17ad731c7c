"""`__torch_function__`: what a class says of torch's functions on its tensors and objects.

call ::= cls.__torch_function__(function, classes, args, kwargs)      evaluated, the first among the arguments
       | torch.Tensor's: the call as ever, its results of the class
off  ::= with torch._C.DisableTorchFunctionSubclass(): the call as ever
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from bytecap.context_types import Emitter, Tracer
from bytecap.errors import CannotRebuild, UnsupportedCall
from bytecap.guards.guard_set import is_exempt
from bytecap.objects.arrays.tensors import TensorValue, WrapperValue, is_subclassed
from bytecap.objects.base import NONE, Constant, Value
from bytecap.objects.class_lookup import static_lookup
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, Sequence, TupleValue
from bytecap.objects.functions import ClassValue
from bytecap.objects.instances.objects import ObjectValue
from bytecap.torch_capabilities import TORCH

_NAME = "__torch_function__"
_DEFAULT = vars(torch.Tensor)[_NAME].__func__
_NOTHING = TupleValue([])
# Results of these stay of the class that they have.
_NOT_CONVERTED = torch.overrides.get_default_nowrap_functions()


def overridden_call(
    tracer: Tracer, function: Any, args: list[Value], kwargs: dict[str, Value], target: str | None = None
) -> Value | None:
    """The result of the first `__torch_function__` among the arguments; None where there is none.

    target: as in `call_torch`.
    """
    overriding = list(_overriding(tracer, (*args, *kwargs.values())))
    if not overriding:
        return None
    classes = dict.fromkeys(value.cls for value in overriding)
    first = next(iter(classes))
    if any(other is not first and issubclass(other, first) for other in classes):
        raise UnsupportedCall(f"{_NAME} of a class and of its subclass in one call")
    tracer.guards.lookup(first, _NAME)
    if static_lookup(first.__mro__, _NAME)[1] is torch.Tensor:
        return _by_default(tracer, tuple(classes), function, args, kwargs, target)
    given = (
        tracer.objects.wrap(_as_torch_tells(function, args), None),
        TupleValue([ClassValue(cls) for cls in classes]),
        TupleValue(list(args)),
    )
    method = overriding[0].get_attribute(tracer, _NAME)
    result = method.call(tracer, [*given, tracer.objects.new_dict(kwargs)], {})
    if isinstance(result, Constant) and result.python_type() is type(NotImplemented):
        raise UnsupportedCall(f"{_NAME} of {first.__qualname__} that returns NotImplemented")
    return result


def _overriding(tracer: Tracer, values: tuple[Value, ...]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (TensorValue, WrapperValue)):
            if sees_calls(tracer, value):
                yield value
        elif isinstance(value, ObjectValue):
            found = static_lookup(value.cls.__mro__, _NAME)[1]
            if found is not None and not issubclass(value.cls, torch.Tensor):
                yield value
        elif isinstance(value, Sequence):
            yield from _overriding(tracer, tuple(value.values(tracer)))


def sees_calls(tracer: Tracer, value: TensorValue | WrapperValue) -> bool:
    """Whether torch's functions ask the class of a tensor."""
    # A wrapper class of torch's own is asked as the call is made, above its `__torch_dispatch__` (nodes.wrapper_calls).
    if not is_subclassed(value.cls) or (isinstance(value, WrapperValue) and is_exempt(value.cls.__module__)):
        return False
    tracer.guards.reading(TORCH.sees_torch_function, (), True)
    return not tracer.unseen


def _as_torch_tells(function: Any, args: list[Value]) -> Any:
    """What torch calls an operator: a method, as a class that only listens is told."""
    if getattr(function, "__module__", None) != operator.__name__.replace("operator", "_operator"):
        return function
    told: list[Any] = []

    class Listens(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            told.append(func)
            return args[0]

    listener = torch.zeros(1, dtype=torch.int64).as_subclass(Listens)
    function(*[listener if isinstance(arg, (TensorValue, WrapperValue)) else arg.concrete() for arg in args])
    return told[0]


def _by_default(
    tracer: Tracer,
    classes: tuple[type, ...],
    function: Any,
    args: list[Value],
    kwargs: dict[str, Value],
    target: str | None = None,
) -> Value:
    """torch.Tensor.__torch_function__, of the first of these classes."""
    cls = classes[0]
    if not all(issubclass(cls, other) for other in classes):
        name = getattr(function, "__name__", str(function))
        raise UnsupportedCall(f"{name} of tensors of classes that do not know each other")
    before = len(tracer.graph.nodes)
    with FunctionsOff(tracer):
        result = tracer.evaluate.call_torch(tracer, function, args, kwargs, target=target)
    if function in _NOT_CONVERTED:
        return result
    made = {value.name for node in tracer.graph.nodes[before:] for value in node.results}
    return _converted(tracer, result, cls, made)


def _converted(tracer: Tracer, result: Value, cls: type, made: set[str]) -> Value:
    """Tensors as tensors of the class. made: values of the graph that are new."""
    if isinstance(result, TensorValue) and not issubclass(result.cls, cls):
        if not may_change(cls):
            raise UnsupportedCall(f"a result that is no {cls.__qualname__}, which has no inner tensors then")
        if result.cls is not torch.Tensor or result.name not in made:
            result = as_subclass(tracer, result, ClassValue(cls))
        result.cls = cls
    elif isinstance(result, (TupleValue, ListValue)):
        for item in result.values(tracer):
            if _converted(tracer, item, cls, made) is not item:
                raise UnsupportedCall("a tensor among several that is an older one")
    return result


def may_change(cls: type) -> bool:
    """Whether any tensor may be one of this class."""
    return cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]


def as_subclass(tracer: Tracer, tensor: Value, cls: Value) -> Any:
    """`tensor.as_subclass(cls)`."""
    wanted = cls.concrete()
    if not isinstance(tensor, TensorValue) or not may_change(wanted):
        raise UnsupportedCall(f"as_subclass({wanted.__qualname__}) of a {tensor.describe()}")
    with FunctionsOff(tracer):
        made = tracer.evaluate.call_torch(tracer, torch.ops.aten.alias.default, [tensor], {})
    made.cls = wanted
    return made


class FunctionsOff(Value):
    """torch._C.DisableTorchFunctionSubclass(), as the program enters it, and as the evaluator does."""

    tracer: Tracer
    cls = TORCH.no_subclass_function

    def __enter__(self) -> None:
        self.tracer.unseen.append(self)

    def __exit__(self, *error: object) -> None:
        self.tracer.unseen.pop()

    methods: ClassVar = {
        "__enter__": lambda tracer, self: self.__enter__() or NONE,
        "__exit__": lambda tracer, self, *raised: self.__exit__() or NONE,
    }

    def reconstruct(self, emitter: Emitter) -> None:
        raise CannotRebuild("torch._C.DisableTorchFunctionSubclass that is entered")


def _default(
    tracer: Tracer, cls: Value, function: Value, types: Value, args: Value = _NOTHING, kwargs: Value = NONE
) -> Value:
    if not isinstance(args, TupleValue) or not isinstance(types, TupleValue):
        raise UnsupportedCall(f"torch.Tensor.{_NAME} with arguments of other kinds")
    named = dict(kwargs.pairs(tracer)) if isinstance(kwargs, DictValue) else {}
    given = {key.concrete(): value for key, value in named.items()}
    others = [each.concrete() for each in types.values(tracer)]
    classes = tuple(dict.fromkeys([cls.concrete(), *others]))
    return _by_default(tracer, classes, function.concrete(), list(args.values(tracer)), given)


def _is_enabled(tracer: Tracer) -> Value:
    found = TORCH.sees_torch_function()
    tracer.guards.reading(TORCH.sees_torch_function, (), found)
    return Constant(found and not tracer.unseen)


def _is_overridden(tracer: Tracer, *args: Value) -> Value:
    return Constant(any(True for _ in _overriding(tracer, args)))


TORCH_FUNCTION: dict[Any, Callable[..., Value]] = {
    _DEFAULT: _default,
    torch.Tensor.as_subclass: as_subclass,
    TORCH.no_subclass_function: FunctionsOff,
    TORCH.sees_torch_function: _is_enabled,
    torch.overrides.has_torch_function: _is_overridden,
    torch.overrides.has_torch_function_unary: _is_overridden,
    torch.overrides.has_torch_function_variadic: _is_overridden,
    TORCH.has_torch_function: _is_overridden,
}
