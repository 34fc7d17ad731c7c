"""The guards of a capture in lines for a reader; the sentence for the one that failed: what it was, what it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch

from bytecap._evalframe import FrameView, GuardProgram
from bytecap.guards.kinds import missing, print_guard, sentence, short, tensor_difference
from bytecap.guards.printing import MISSING, REGISTRIES, print_source, symbol_names
from bytecap.torch_capabilities import TORCH
from stagewire import capture
from stagewire.capture import Guard, Source, Symbol


def print_guards(guards: Iterable[Guard]) -> Iterator[str]:
    """What the guards say, a line each, with where it was read; one line for all that holds of any module or library.

    >>> from stagewire.capture import Attribute, Builtin, Equals, Global, IdentityIs, LengthIs, Local
    >>> hooks = LengthIs(Attribute(Local("self"), "_forward_hooks"), 0)
    >>> names = [IdentityIs(Global("F"), "torch.nn.functional"), IdentityIs(Builtin("len"), "builtins.len")]
    >>> print("\\n".join(print_guards([hooks, *names, Equals(Attribute(Local("self"), "rate"), 0.5)])))
    modules have the same classes and registered parts, and no hooks (1 guard on 1 module)
    names of modules and classes stand for the same objects (2 guards)
    type(self.rate) is float and self.rate == 0.5
    """
    groups: dict[str, list[Source]] = {"module": [], "name": []}
    lines = []
    for guard in guards:
        group, subject = _group(guard)
        if subject is not None:
            groups[group].append(subject)
        elif not isinstance(guard, capture.GlobalState):
            line = getattr(guard, "line", None)
            lines.append(print_guard(guard) + ("" if line is None else f"    # {line.file}:{line.line}"))
    modules, names = groups["module"], groups["name"]
    if modules:
        count = _counted(len(set(modules)), "module")
        yield (
            "modules have the same classes and registered parts, and no hooks "
            f"({_counted(len(modules), 'guard')} on {count})"
        )
    if names:
        yield f"names of modules and classes stand for the same objects ({_counted(len(names), 'guard')})"
    yield from lines


_HOOKS = frozenset(f"_{kind}{name}_hooks" for kind in ("forward", "backward") for name in ("", "_pre"))


def _group(guard: Guard) -> tuple[str, Source | None]:
    """Which group a guard belongs to, and the module or name that it speaks of; None: it is particular."""
    match guard:
        case capture.LengthIs(source=capture.Attribute(base=module, name=name)) if name in _HOOKS:
            return "module", module
        case capture.HasKey(source=capture.Attribute(base=base, name=name), present=False) if (
            name in REGISTRIES or name == "__dict__"
        ):
            return "name" if _is_name(base) else "module", base
        case capture.TypeIs(source=capture.Item(base=capture.Attribute(name="_modules")) as module):
            return "module", module
        case capture.LengthIs(source=capture.Global(module="torch.nn.modules.module") as hooks):
            return "name", hooks
        case capture.IdentityIs(source=source) | capture.HasAttribute(source=source, present=False):
            return "name", source if _is_name(source) else None
    return "name", None


def _is_name(source: Source) -> bool:
    """Whether it is a global, a builtin, or something that one holds."""
    while isinstance(source, capture.Attribute | capture.Item | capture.Cell):
        held_by = source.function if isinstance(source, capture.Cell) else source.base
        if held_by is None:
            return False
        source = held_by
    return isinstance(source, capture.Global | capture.Builtin)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


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
    checked = next((check[1] for node in program.spec[0] for check in node[3] if check[2] == index), None)
    if isinstance(guard, capture.Distinct):
        values = program.values(scope, MISSING)
        said = _explain_distinct(guard, [values[node] for node in checked[2]])
    elif not found and not isinstance(guard, capture.Relation | capture.GlobalState):
        said = missing(guard)
    else:
        names = symbol_names(symbols)
        known = _sizes_found(program, scope, index) if isinstance(guard, capture.TensorIs) else {}
        said = _explain_checked(guard, checked, value, known, names) or sentence(guard, value, names)
    if isinstance(guard, capture.GlobalState) and isinstance(scope, FrameView):  # looked at where the frame starts
        code = scope.code
        said += f" (at the call of {code.co_qualname}, {code.co_filename}:{code.co_firstlineno})"
    line = getattr(guard, "line", None)
    return said if line is None else f"{said} (read at {line.file}:{line.line})"


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


def _sizes_found(program: GuardProgram, scope: FrameView | Mapping[str, object], index: int) -> dict[int, int]:
    """What symbols are, by their numbers in the program, as far as tensors checked in front of a guard say."""
    found: dict[int, int] = {}
    for (_, _, _, checks, *_), value in zip(program.spec[0], program.values(scope, MISSING), strict=False):
        for name, (_, _, words), position in checks:
            if position == index:
                return found
            if name == "tensor":
                sizes = (*value.shape, *value.stride())
                for word, size in zip(words[len(words) - len(sizes) :], sizes, strict=True):
                    if word < 0:
                        found.setdefault(-1 - word, size)
    return found


def _explain_checked(
    guard: Guard, checked: Any, value: object, found: Mapping[int, int], names: Mapping[str, str]
) -> str | None:
    """What only the program knows: the code and default values of a function; what the dispatcher makes of a tensor
    (inference tensors, functional wrappers, conjugates), and which sizes other guards have `found` for its symbols."""
    if checked is None:
        return None
    asked, _, words = checked
    is_function = isinstance(guard, capture.IdentityIs) and isinstance(asked, tuple)
    if is_function and isinstance(value, FunctionType) and asked[0]() is value:
        where = print_source(guard.source)
        if asked[1] is not value.__code__:
            return f"{where}.__code__ was replaced"
        if asked[2] is not value.__defaults__:
            return f"{where}.__defaults__ was {short(asked[2])} and is {short(value.__defaults__)}"
        return f"{where}.__kwdefaults__ was {short(asked[4])} and is {short(value.__kwdefaults__)}"
    if not isinstance(guard, capture.TensorIs) or not isinstance(value, torch.Tensor):
        return None
    dims = (*guard.type.shape, *guard.type.stride)
    numbered = zip(dims, words[len(words) - len(dims) :], strict=True)
    known = {str(dim): found[-1 - word] for dim, word in numbered if -1 - word in found}
    difference = tensor_difference(guard, value, known, names)
    if difference is not None or not TORCH.has("key_set"):
        return difference
    keys = (TORCH.key_set(words[1]), TORCH.dispatch_keys(value))
    before, now = (str(each).removeprefix("DispatchKeySet") for each in keys)
    return f"the dispatch keys of {print_source(guard.source)} were {before} and are {now}"
