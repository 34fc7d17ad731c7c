"""Sources, literals and sizes as Python expressions; literals as values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from absint.wire import from_arg
from bytecap.errors import GuardError
from stagewire import capture, graph
from stagewire.capture import Source, Symbol
from stagewire.expr import Expr

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**", "floordiv": "//"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# (sign, whether the float stands on its right) of methods that take a float and a number
_OF_FLOATS: dict[str, tuple[str, bool]] = {
    **{f"float.__{name}__": (sign, False) for name, sign in (_SIGNS | _COMPARISONS).items()},
    **{f"float.__r{name}__": (sign, True) for name, sign in _SIGNS.items()},
}

REGISTRIES = ("_parameters", "_buffers", "_modules")
"""Where an nn.Module keeps what is read as its attributes."""


def print_source(source: Source) -> str:
    """The Python expression that reads `source` inside the frame.

    >>> from stagewire.capture import Attribute, Item, Local
    >>> print_source(Item(Attribute(Local("self"), "layers"), 0))
    'self.layers[0]'
    >>> print_source(Item(Attribute(Item(Attribute(Local("self"), "_modules"), "layers"), "_modules"), "0"))
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
        case capture.Item(base=capture.Attribute(base=base, name=name), key=str(key)) if name in REGISTRIES:
            return print_source(base) + (
                f".{key}" if key.isidentifier() else f"[{key if key.isdecimal() else repr(key)}]"
            )
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
        case graph.DTypeArg(name=name) | graph.LayoutArg(name=name) | graph.MemoryFormatArg(name=name):
            return f"torch.{name}"
        case graph.DeviceArg(name=name):
            return f"torch.device({name!r})"
        case graph.NonFinite(text=text):
            return f"float({text!r})"
        case graph.Complex(real=real, imag=imag):
            return f"complex({print_literal(real)}, {print_literal(imag)})"
    return repr(value)


def symbol_names(symbols: Iterable[Symbol]) -> dict[str, str]:
    """What size symbols are in the program: `x.shape[0]`."""
    return {symbol.name: print_source(symbol.source) for symbol in symbols if symbol.source is not None}


def print_size(size: Expr, names: Mapping[str, str]) -> str:
    """A size, with `names` for its symbols."""
    if not names:
        return size.text
    plain = re.sub(r"(?<=\S)(%|//)", r" \1 ", re.sub(r"\((\w+)\)", r"\1", size.text))
    return re.sub(r"\b[A-Za-z_]\w*", lambda match: names.get(match.group(), match.group()), plain)


MISSING = object()
"""Stands for the value of a source that has none in the live frame."""


def to_python(value: graph.Arg) -> object:
    """The Python value of a literal; GuardError for what is not a literal (refs, handles).

    >>> to_python(graph.Tuple((1, graph.DTypeArg("float32"))))
    (1, torch.float32)
    """
    return from_arg(value, _refuse)


def _refuse(value: object) -> object:
    raise GuardError(f"{value!r} is not a literal")
