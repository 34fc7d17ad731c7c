"""One sentence that says which guard failed: which value, what it was, what it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FunctionType

import torch

from bytecap._evalframe import FrameView, GuardProgram
from bytecap.guards.kinds import missing, print_guard, sentence, short, tensor_difference
from bytecap.guards.literals import MISSING
from bytecap.guards.printing import print_source, symbol_names
from bytecap.torch_capabilities import TORCH
from stagewire import capture
from stagewire.capture import Source, Symbol


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
    if isinstance(guard, capture.Distinct):
        said = _explain_distinct(guard, _read(program, scope, index))
    elif not found and not isinstance(guard, capture.Relation | capture.GlobalState):
        said = missing(guard)
    else:
        said = _explain_checked(program, index, value) or sentence(guard, value, symbol_names(symbols))
    if isinstance(guard, capture.GlobalState):
        said += _called(scope)
    line = getattr(guard, "line", None)
    return said if line is None else f"{said} (read at {line.file}:{line.line})"


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
            return sentence(capture.SameObject(seen[id(value)], source, same=False), value)
        if position < len(guard.sources):
            seen[id(value)] = source
    return f"{print_guard(guard)} does not hold any more"


def _explain_checked(program: GuardProgram, index: int, value: object) -> str | None:
    """What only the program knows: the state of a function, the dispatch keys of a tensor."""
    guard = program.guards[index]
    known = (check[1] for node in program.spec[0] for check in node[3] if check[2] == index)
    checked = next(known, None)
    if not isinstance(checked, tuple):
        return None
    if isinstance(guard, capture.IdentityIs) and isinstance(value, FunctionType) and checked[0]() is value:
        return _explain_function(checked, print_source(guard.source), value)
    if isinstance(guard, capture.TensorIs) and isinstance(value, torch.Tensor):
        return _explain_keys(guard, checked[2], value)
    return None


def _explain_keys(guard: capture.TensorIs, expected: int, value: torch.Tensor) -> str | None:
    """Tensors that differ in what the dispatcher makes of them: inference tensors, functional wrappers, conjugates."""
    if not TORCH.has("key_set") or tensor_difference(guard, value) is not None:
        return None
    where, before = print_source(guard.source), TORCH.key_set(expected)
    return f"the dispatch keys of {where} were {_keys_of(before)} and are {_keys_of(TORCH.dispatch_keys(value))}"


def _keys_of(keys: object) -> str:
    return str(keys).removeprefix("DispatchKeySet")


def _explain_function(state: tuple[object, ...], where: str, value: FunctionType) -> str:
    """The same function with other code or other default values."""
    if state[1] is not value.__code__:
        return f"{where}.__code__ was replaced"
    if state[2] is not value.__defaults__:
        return f"{where}.__defaults__ was {short(state[2])} and is {short(value.__defaults__)}"
    now = short(value.__kwdefaults__)
    return f"{where}.__kwdefaults__ was {short(state[4])} and is {now}"
