"""Names of a GraphModule's placeholders, spelled as torch.compile spells them: from where the tensor is read.

>>> from stagewire.capture import Attribute, Item, Local
>>> placeholder_name(Item(Attribute(Attribute(Local("self"), "linear"), "_parameters"), "weight"))
'L_self_linear_parameters_weight_'
"""

from __future__ import annotations

import re

from stagewire.capture import (
    Attribute,
    Builtin,
    Cell,
    DictKey,
    DictValue,
    Global,
    HandleSource,
    Item,
    Local,
    Reading,
    Source,
    TypeOf,
)


def placeholder_name(source: Source) -> str:
    """An identifier for the tensor at `source`: L_..._ for locals and cells, G_..._ for globals."""
    name = re.sub(r"[^a-zA-Z0-9]+", "_", _expression(source))
    return f"{name.rstrip('_')}_"


def _expression(source: Source | None) -> str:
    match source:
        case Local(name) | Cell(name):
            return f"L[{name}]"
        case Global(name):
            return f"G[{name}]"
        case Builtin(name):
            return f"G[{name}]"
        case HandleSource(name):
            return f"O[{name}]"
        case Attribute(base, "__dict__"):
            return _expression(base)
        case Attribute(base, name):
            return f"{_expression(base)}.{name}"
        case Item(base, key):
            return f"{_expression(base)}[{key}]"
        case DictKey(base, index):
            return f"{_expression(base)}.keys[{index}]"
        case DictValue(base, index):
            return f"{_expression(base)}.values[{index}]"
        case TypeOf(base):
            return f"type[{_expression(base)}]"
        case Reading(function, None):
            return f"O[{function}]"
        case Reading(function, base):
            return f"{_expression(base)}.{function}"
