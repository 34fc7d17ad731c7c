"""Sources and guards as Python expressions and conditions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from stagewire import capture, graph
from stagewire.capture import Guard, Source, Symbol
from stagewire.types import TensorType

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# (sign, whether the float stands on its right) of methods that take a float and a number
_OF_FLOATS: dict[str, tuple[str, bool]] = {
    **{f"float.__{name}__": (sign, False) for name, sign in (_SIGNS | _COMPARISONS).items()},
    **{f"float.__r{name}__": (sign, True) for name, sign in _SIGNS.items()},
}


def print_source(source: Source) -> str:
    """The Python expression that reads `source` inside the frame.

    >>> from stagewire.capture import Attribute, Item, Local
    >>> print_source(Item(Attribute(Local("self"), "layers"), 0))
    'self.layers[0]'
    """
    match source:
        case capture.Local(name=name) | capture.Builtin(name=name):
            return name
        case capture.Global(name=name, module=module):
            return name if module is None else f"{module}.{name}"
        case capture.Cell(name=name, function=None):
            return name
        case capture.Cell(name=name, function=function):
            return f"inspect.getclosurevars({print_source(function)}).nonlocals[{name!r}]"
        case capture.Attribute(base=base, name=name) if name.isidentifier():
            return f"{print_source(base)}.{name}"
        case capture.Attribute(base=base, name=name):
            return f"getattr({print_source(base)}, {name!r})"
        case capture.Item(base=base, key=key):
            return f"{print_source(base)}[{key!r}]"
        case capture.DictKey(base=base, index=index):
            return f"list({print_source(base)})[{index}]"
        case capture.DictValue(base=base, index=index):
            return f"list({print_source(base)}.values())[{index}]"
        case capture.TypeOf(base=base):
            return f"type({print_source(base)})"
        case capture.Reading(function="torch.Tensor.size", base=base, arguments=(dim,)) if base is not None:
            return f"{print_source(base)}.shape[{dim}]"
        case capture.Reading(function=function, base=base, arguments=arguments) if function in _OF_FLOATS:
            left, right = print_source(base), *map(print_literal, arguments)  # type: ignore[arg-type]
            sign, swapped = _OF_FLOATS[function]
            return f"({right} {sign} {left})" if swapped else f"({left} {sign} {right})"
        case capture.Reading(function=function, base=base, arguments=arguments):
            given = [*([] if base is None else [print_source(base)]), *map(print_literal, arguments)]
            return f"{function}({', '.join(given)})"
        case capture.HandleSource(name=name):
            return f"handle({name!r})"
    return repr(source)


def print_literal(value: graph.Arg) -> str:
    """A literal as Python source."""
    match value:
        case graph.Tuple(items=items):
            inside = ", ".join(print_literal(item) for item in items)
            return f"({inside},)" if len(items) == 1 else f"({inside})"
        case graph.List(items=items):
            return f"[{', '.join(print_literal(item) for item in items)}]"
        case graph.Dict(items=items):
            return "{" + ", ".join(f"{k!r}: {print_literal(v)}" for k, v in items) + "}"
        case graph.Slice(start=start, stop=stop, step=step):
            return f"slice({', '.join(print_literal(part) for part in (start, stop, step))})"
        case graph.Ellipsis():
            return "..."
        case graph.DTypeArg(name=name) | graph.LayoutArg(name=name):
            return f"torch.{name}"
        case graph.MemoryFormatArg(name=name):
            return f"torch.{name}"
        case graph.DeviceArg(name=name):
            return f"torch.device({name!r})"
        case graph.NonFinite(text=text):
            return f"float({text!r})"
        case graph.Complex(real=real, imag=imag):
            return f"complex({print_literal(real)}, {print_literal(imag)})"
    return repr(value)


def print_guard(guard: Guard, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """The guard as a Python condition; `names`: what stands for size symbols.

    >>> from stagewire.capture import Equals, Local
    >>> print_guard(Equals(Local("n"), 3))
    'type(n) is int and n == 3'
    """
    match guard:
        case capture.Relation(left=left, operator=operator, right=right):
            return f"{_named(str(left), names)} {operator} {_named(str(right), names)}"
        case capture.GlobalState():
            return _print_state(guard)
        case capture.SameObject(first=first, second=second, same=same):
            operator = "is" if same else "is not"
            return f"{print_source(first)} {operator} {print_source(second)}"
        case capture.Distinct(sources=sources, others=others):
            return _print_distinct(sources, others)
    return _print_on_source(guard, print_source(guard.source))


def _print_distinct(sources: tuple[Source, ...], others: tuple[Source, ...]) -> str:
    def objects(chosen: tuple[Source, ...]) -> str:
        return "{" + ", ".join(f"id({print_source(source)})" for source in chosen) + "}"

    inside = f"len({objects(sources)}) == {len(sources)}"
    apart = f"{objects(sources)}.isdisjoint({objects(others)})"
    return " and ".join([inside] * (len(sources) > 1) + [apart] * bool(others))


def symbol_names(symbols: Iterable[Symbol]) -> dict[str, str]:
    """What size symbols are in the program: `x.shape[0]`."""
    return {symbol.name: print_source(symbol.source) for symbol in symbols if symbol.source is not None}


def _named(text: str, names: Mapping[str, str]) -> str:
    if not names:
        return text
    plain = re.sub(r"(?<=\S)(%|//)", r" \1 ", re.sub(r"\((\w+)\)", r"\1", text))
    return re.sub(r"\b[A-Za-z_]\w*", lambda match: names.get(match.group(), match.group()), plain)


def _print_on_source(guard: Guard, where: str) -> str:
    match guard:
        case capture.TypeIs(name=name):
            return f"type({where}) is {name}"
        case capture.IdentityIs(name=name):
            return f"{where} is {name}"
        case capture.Equals(value=None | bool() as value):
            return f"{where} is {value}"
        case capture.Equals(value=value):
            kind = type(value).__name__.lower()
            kind = {"nonfinite": "float"}.get(kind, kind)
            if kind in ("int", "float", "str", "tuple", "list", "dict", "complex", "slice"):
                return f"type({where}) is {kind} and {where} == {print_literal(value)}"
            return f"{where} == {print_literal(value)}"
        case capture.LengthIs(length=length):
            return f"len({where}) == {length}"
        case capture.KeysAre(keys=keys):
            return f"list({where}) == [{', '.join(print_literal(key) for key in keys)}]"
        case capture.HasKey(key=key, present=present):
            return f"{key!r} {'in' if present else 'not in'} {where}"
        case capture.HasAttribute(name=name, present=present):
            return f"{'' if present else 'not '}hasattr({where}, {name!r})"
        case capture.TensorIs(type=kind, type_name=name, is_leaf=is_leaf):
            return _print_tensor(where, kind, name, is_leaf)
    return repr(guard)


def _print_tensor(where: str, kind: TensorType, name: str, is_leaf: bool | None) -> str:
    def dims(values: tuple[object, ...]) -> str:
        return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"

    conditions = [
        f"type({where}) is {name}",
        f"{where}.dtype is torch.{kind.dtype}",
        f"{where}.shape == {dims(kind.shape)}",
        f"{where}.stride() == {dims(kind.stride)}",
        f"{where}.device == torch.device({kind.device!r})",
        f"{where}.requires_grad is {kind.requires_grad}",
    ]
    if is_leaf is not None:
        conditions.append(f"{where}.is_leaf is {is_leaf}")
    return " and ".join(conditions)


def _print_state(guard: capture.GlobalState) -> str:
    conditions = [
        f"torch.is_grad_enabled() is {guard.grad_enabled}",
        f"torch.is_inference_mode_enabled() is {guard.inference_mode}",
        f"torch.get_default_dtype() is torch.{guard.default_dtype}",
        f"torch.are_deterministic_algorithms_enabled() is {guard.deterministic}",
    ]
    enabled = dict(guard.autocast)
    for device in ("cpu", "cuda"):
        conditions.append(f"torch.is_autocast_enabled({device!r}) is {device in enabled}")
        if device in enabled:
            dtype = enabled[device]
            conditions.append(f"torch.get_autocast_dtype({device!r}) is torch.{dtype}")
    return " and ".join(conditions)
