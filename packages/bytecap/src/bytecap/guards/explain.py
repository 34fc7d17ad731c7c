"""One sentence that says which guard failed: which value, what it was, what it is."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType

import torch

from bytecap._evalframe import FrameView, GuardProgram
from bytecap.guards import native
from bytecap.guards.compile import MISSING
from bytecap.guards.printing import print_guard, print_literal, print_source, symbol_names
from bytecap.torch_capabilities import TORCH
from stagewire import capture
from stagewire.capture import Guard, Source, Symbol
from stagewire.expr import Dim


def explain(
    program: GuardProgram, scope: FrameView | Mapping[str, object], symbols: Iterable[Symbol] = ()
) -> str | None:
    """The sentence for the first guard that does not hold in `scope`; None when all hold.

    symbols: the size symbols that the guards speak of.

    >>> from bytecap.guards.compile import compile_guards
    >>> from stagewire.capture import Equals, Local
    >>> program = compile_guards([Equals(Local("n"), 3)], {"n": 3})
    >>> explain(program, {"n": 4})
    'n was 3 and is 4'
    """
    failure = program.failure(scope)
    if failure is None:
        return None
    index, found, value = failure
    if index not in range(len(program.guards)):
        return "an input is missing"
    guard = program.guards[index]
    if isinstance(guard, capture.Relation):
        sentence = f"{print_guard(guard, symbol_names(symbols))} does not hold any more"
    elif isinstance(guard, capture.GlobalState):
        sentence = _explain_state(guard) + _called(scope)
    elif isinstance(guard, capture.Distinct):
        sentence = _explain_distinct(guard, _read(program, scope, index))
    elif not found:
        sentence = f"{_subject(guard)} was {_expected(guard)} and is missing"
    else:
        sentence = _explain_checked(program, index, value) or _explain_value(guard, value)
    line = getattr(guard, "line", None)
    return sentence if line is None else f"{sentence} (read at {line.file}:{line.line})"


def _subject(guard: Guard) -> str:
    if isinstance(guard, capture.SameObject):
        return f"{print_source(guard.first)} or {print_source(guard.second)}"
    return print_source(guard.source)


def _expected(guard: Guard) -> str:
    """What a value was, as far as its guard says."""
    match guard:
        case capture.Equals(value=value):
            return print_literal(value)
        case capture.IdentityIs(name=name):
            return name
        case capture.TypeIs(name=name):
            return f"a {name}"
        case capture.TensorIs():
            return "a tensor"
    return "there"


def _called(scope: FrameView | Mapping[str, object]) -> str:
    """Where the state of torch was looked at: at the start of the frame."""
    if not isinstance(scope, FrameView):
        return ""
    code = scope.code
    return f" (at the call of {code.co_qualname}, {code.co_filename}:{code.co_firstlineno})"


def _read(program: GuardProgram, scope: FrameView | Mapping[str, object], index: int) -> list[object]:
    """What the sources of a guard that compares several of them hold in `scope`."""
    nodes = next(check[1][0] for node in program.spec[0] for check in node[3] if check[2] == index)
    values = program.values(scope, MISSING)
    return [values[node] for node in nodes]


def _explain_distinct(guard: capture.Distinct, values: list[object]) -> str:
    """The first two sources that lead to one object."""
    seen: dict[int, Source] = {}
    for position, (source, value) in enumerate(zip((*guard.sources, *guard.others), values, strict=True)):
        where = print_source(source)
        if value is MISSING:
            return f"{where} was there and is missing"
        if id(value) in seen:
            return _became_one(print_source(seen[id(value)]), where)
        if position < len(guard.sources):
            seen[id(value)] = source
    return f"{print_guard(guard)} does not hold any more"


def _became_one(first: str, second: str) -> str:
    return f"{first} and {second} were two objects and are one"


def _explain_checked(program: GuardProgram, index: int, value: object) -> str | None:
    """What only the program knows: the state of a function, the dispatch keys of a tensor."""
    guard = program.guards[index]
    known = (check[1] for node in program.spec[0] for check in node[3] if check[2] == index)
    checked = next(known, None)
    if not isinstance(checked, tuple):
        return None
    where = _subject(guard)
    if isinstance(guard, capture.IdentityIs) and isinstance(value, FunctionType) and checked[0]() is value:
        return _explain_function(checked, where, value)
    if isinstance(guard, capture.TensorIs) and isinstance(value, torch.Tensor):
        return _explain_keys(guard, checked[2], where, value)
    return None


def _explain_keys(guard: capture.TensorIs, expected: int, where: str, value: torch.Tensor) -> str | None:
    """Tensors that differ in what the dispatcher makes of them: inference tensors, functional wrappers, conjugates."""
    if not TORCH.has("key_set") or next(_tensor_differences(guard, where, value), None) is not None:
        return None
    before = TORCH.key_set(expected)
    return f"the dispatch keys of {where} were {_keys_of(before)} and are {_keys_of(TORCH.dispatch_keys(value))}"


def _keys_of(keys: object) -> str:
    return str(keys).removeprefix("DispatchKeySet")


def _explain_function(state: tuple[object, ...], where: str, value: FunctionType) -> str:
    """The same function with other code or other default values."""
    if state[1] is not value.__code__:
        return f"{where}.__code__ was replaced"
    if state[2] is not value.__defaults__:
        return f"{where}.__defaults__ was {_short(state[2])} and is {_short(value.__defaults__)}"
    now = _short(value.__kwdefaults__)
    return f"{where}.__kwdefaults__ was {_short(state[4])} and is {now}"


def _explain_value(guard: Guard, value: object) -> str:
    where = _subject(guard)
    match guard:
        case capture.TypeIs(name=name):
            return f"the type of {where} was {name} and is {_type_name(value)}"
        case capture.IdentityIs(name=name):
            return f"{where} was {name} and is another object: {_short(value)}"
        case capture.Equals(value=expected):
            return f"{where} was {print_literal(expected)} and is {_short(value)}"
        case capture.LengthIs(length=length):
            return f"len({where}) was {length} and is {_length(value)}"
        case capture.KeysAre(keys=keys):
            return f"the keys of {where} were {_keys(keys)} and are {_short(_live_keys(value))}"
        case capture.HasKey(key=key, present=present):
            return f"{key!r} was in {where} and is not" if present else f"{key!r} was not in {where} and is"
        case capture.HasAttribute(name=name, present=True):
            return f"{where} had an attribute {name!r} and has none"
        case capture.HasAttribute(name=name):
            return f"{where} had no attribute {name!r} and has one"
        case capture.SameObject(first=first, second=second, same=same):
            one, other = print_source(first), print_source(second)
            return f"{one} and {other} were one object and are two" if same else _became_one(one, other)
        case capture.TensorIs():
            return _explain_tensor(guard, where, value)
    return f"{print_guard(guard)} does not hold any more"


def _explain_tensor(guard: capture.TensorIs, where: str, value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return f"{where} was a tensor and is {_type_name(value)}"
    for subject, before, after in _tensor_differences(guard, where, value):
        return f"{subject} was {before} and is {after}"
    return f"{where} is another kind of tensor"


def _tensor_differences(
    guard: capture.TensorIs, where: str, value: torch.Tensor
) -> Iterator[tuple[str, object, object]]:
    expected = guard.type
    if type(value).__qualname__ != guard.type_name.rpartition(".")[2]:
        yield f"the type of {where}", guard.type_name, _type_name(value)
    dtype = native.NAMES_BY_DTYPE.get(value.dtype, str(value.dtype))
    if dtype != expected.dtype:
        yield f"{where}.dtype", expected.dtype, dtype
    if len(expected.shape) != value.dim():
        yield f"{where}.dim()", len(expected.shape), value.dim()
    yield from _dim_differences(f"{where}.shape[{{}}]", expected.shape, value.shape)
    yield from _dim_differences(f"{where}.stride({{}})", expected.stride, value.stride())
    if not _same_device(expected.device, value.device):
        yield f"{where}.device", expected.device, value.device
    if value.requires_grad != expected.requires_grad:
        yield f"{where}.requires_grad", expected.requires_grad, value.requires_grad
    if guard.is_leaf is not None and value.is_leaf != guard.is_leaf:
        yield f"{where}.is_leaf", guard.is_leaf, value.is_leaf


def _dim_differences(
    template: str, expected: tuple[Dim, ...], actual: tuple[int, ...]
) -> Iterator[tuple[str, object, object]]:
    bound: dict[str, int] = {}
    for index, (before, after) in enumerate(zip(expected, actual, strict=False)):
        if isinstance(before, int):
            if before != after:
                yield template.format(index), before, after
        elif bound.setdefault(before.text, after) != after:
            yield template.format(index), f"{before} = {bound[before.text]}", after


def _same_device(expected: str, actual: torch.device) -> bool:
    device = torch.device(expected)
    return device.type == actual.type and device.index in (None, actual.index)


def _explain_state(guard: capture.GlobalState) -> str:
    now = native.read_state()
    pairs = (
        ("grad mode", guard.grad_enabled, now[0]),
        ("inference mode", guard.inference_mode, now[1]),
        ("the default dtype", guard.default_dtype, native.NAMES_BY_DTYPE[torch.get_default_dtype()]),
        ("deterministic algorithms", guard.deterministic, now[3]),
    )
    for name, before, after in pairs:
        if before != after:
            return f"{name} was {_on_off(before)} and is {_on_off(after)}"
    enabled = dict(guard.autocast)
    for device in ("cpu", "cuda"):
        on = torch.is_autocast_enabled(device)
        dtype = native.NAMES_BY_DTYPE[torch.get_autocast_dtype(device)] if on else "off"
        if enabled.get(device, "off") != dtype:
            return f"autocast on {device} was {enabled.get(device, 'off')} and is {dtype}"
    return "the active torch modes or transforms are not those of the capture"


def _on_off(value: object) -> object:
    return ("on" if value else "off") if isinstance(value, bool) else value


def _type_name(value: object) -> str:
    kind = type(value)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _short(value: object) -> str:
    """A short repr of plain data; of anything else only the type, since repr may run user code."""
    if isinstance(value, bool | int | float | complex | str | bytes | tuple | list | dict | None):
        return reprlib.repr(value)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return repr(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__qualname__}"
    return f"a {_type_name(value)}"


def _length(value: object) -> object:
    sized = isinstance(value, tuple | list | dict | set | frozenset | str | range)
    return len(value) if sized else f"not known for {_type_name(value)}"


def _live_keys(value: object) -> object:
    return tuple(value) if isinstance(value, dict | set | frozenset) else value


def _keys(keys: tuple[object, ...]) -> str:
    return f"({', '.join(print_literal(key) for key in keys)})"
