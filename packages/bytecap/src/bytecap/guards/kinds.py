"""The kinds of guards, one row each: the check of the C evaluator, the condition in Python, the sentence when it fails.

Texts are templates over the guard's fields: {field} (a source as the Python that reads it), {field!r} as a literal,
{now} for the value that the guard found. A pair of texts is for a flag of the guard that is False, and that is True.
"""

from __future__ import annotations

import operator
import reprlib
import string
import sys
import weakref
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple

import torch

from bytecap.guards import native
from bytecap.guards.printing import print_literal, print_size, print_source, to_python
from bytecap.torch_capabilities import TORCH
from stagewire import capture
from stagewire.capture import Guard, Source
from stagewire.expr import Expr

Text = str | tuple[str, str] | Callable[..., str]
NO_NAMES: Mapping[str, str] = MappingProxyType({})
NO_SIZES: Mapping[str, int] = MappingProxyType({})


def type_name(value: object) -> str:
    kind = type(value)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def short(value: object) -> str:
    """A short repr of plain data; of anything else only the type, since repr may run user code."""
    if isinstance(value, bool | int | float | complex | str | bytes | tuple | list | dict | None):
        return reprlib.repr(value)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return repr(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__qualname__}"
    return f"a {type_name(value)}"


def _length(value: object) -> str:
    sized = isinstance(value, tuple | list | dict | set | frozenset | str | range)
    return str(len(value)) if sized else f"not known for {type_name(value)}"


def _keys(value: object) -> str:
    return short(tuple(value) if isinstance(value, dict | set | frozenset) else value)


# Tensors and the state of torch, a row for each thing that is compared


def _type(tensor: torch.Tensor, was: str) -> str:
    return was if type(tensor).__qualname__.rpartition(".")[2] == was.rpartition(".")[2] else type_name(tensor)


def _device(tensor: torch.Tensor, was: str) -> object:
    expected, found = torch.device(was), tensor.device
    return was if expected.type == found.type and expected.index in (None, found.index) else found


TENSOR_FACTS: tuple[tuple[str, str, str, Callable[[torch.Tensor, Any], Any]], ...] = (
    ("the type of {}", "type({}) is {}", "type_name", _type),
    ("{}.dtype", "{}.dtype is torch.{}", "type.dtype", lambda tensor, _: str(tensor.dtype).removeprefix("torch.")),
    ("{}.shape[{}]", "{}.shape == {}", "type.shape", lambda tensor, _: tensor.shape),
    ("{}.stride({})", "{}.stride() == {}", "type.stride", lambda tensor, _: tensor.stride()),
    ("{}.device", "{}.device == torch.device({!r})", "type.device", _device),
    ("{}.requires_grad", "{}.requires_grad is {}", "type.requires_grad", lambda tensor, _: tensor.requires_grad),
    ("{}.is_leaf", "{}.is_leaf is {}", "is_leaf", lambda tensor, _: tensor.is_leaf),
)
"""What the sentence calls it, the condition, the field (None: the guard does not say), what a tensor has, which is the
field's value where the two count as equal."""


def _tensor_condition(guard: capture.TensorIs) -> str:
    where, conditions = print_source(guard.source), []
    for _, condition, field, _ in TENSOR_FACTS:
        was = operator.attrgetter(field)(guard)
        if isinstance(was, tuple):
            was = f"({', '.join(map(str, was))}{',' if len(was) == 1 else ''})"
        conditions += [] if was is None else [condition.format(where, was)]
    return " and ".join(conditions)


def tensor_difference(
    guard: capture.TensorIs,
    tensor: torch.Tensor,
    known: Mapping[str, int] = NO_SIZES,
    names: Mapping[str, str] = NO_NAMES,
) -> str | None:
    """A sentence for the first fact that is another.

    known: sizes by their text, as far as other guards have found them. names: what size symbols are in the program.
    """
    where, sizes = print_source(guard.source), dict(known)
    for subject, _, field, look in TENSOR_FACTS:
        was = operator.attrgetter(field)(guard)
        with TORCH.no_subclass_function():
            now = look(tensor, was)
        if isinstance(was, tuple):
            if len(was) != len(now):
                return f"{where}.dim() was {len(was)} and is {len(now)}"
            for dim, (before, after) in enumerate(zip(was, now, strict=True)):
                size = before if isinstance(before, int) else sizes.setdefault(before.text, after)
                if size != after:
                    expected = size if isinstance(before, int) else f"{print_size(before, names)} = {size}"
                    return f"{subject.format(where, dim)} was {expected} and is {after}"
        elif was is not None and was != now:
            return f"{subject.format(where)} was {was} and is {now}"
    return None


def _tensor_sentence(guard: capture.TensorIs, value: object) -> str:
    where = print_source(guard.source)
    if not isinstance(value, torch.Tensor):
        return f"{where} was a tensor and is {type_name(value)}"
    return tensor_difference(guard, value) or f"{where} is another kind of tensor"


STATE_FACTS: tuple[tuple[str, str, str], ...] = (
    ("grad mode", "torch.is_grad_enabled() is {}", "grad_enabled"),
    ("inference mode", "torch.is_inference_mode_enabled() is {}", "inference_mode"),
    ("the default dtype", "torch.get_default_dtype() is torch.{}", "default_dtype"),
    ("deterministic algorithms", "torch.are_deterministic_algorithms_enabled() is {}", "deterministic"),
)
"""What the sentence calls it, the condition, the field."""


def _state_condition(guard: capture.GlobalState) -> str:
    conditions = [condition.format(getattr(guard, field)) for _, condition, field in STATE_FACTS]
    enabled = dict(guard.autocast)
    for device in native.AUTOCAST_DEVICES:
        conditions.append(f"torch.is_autocast_enabled({device!r}) is {device in enabled}")
        if device in enabled:
            conditions.append(f"torch.get_autocast_dtype({device!r}) is torch.{enabled[device]}")
    return " and ".join(conditions)


def _state_sentence(guard: capture.GlobalState, value: object) -> str:
    now = native.global_state()
    facts = [(name, getattr(guard, field), getattr(now, field)) for name, _, field in STATE_FACTS]
    for device in native.AUTOCAST_DEVICES:
        dtypes = [dict(state.autocast).get(device, "off") for state in (guard, now)]
        facts.append((f"autocast on {device}", *dtypes))
    for name, before, after in facts:
        if before != after:
            return f"{name} was {_on_off(before)} and is {_on_off(after)}"
    return "the active torch modes or transforms are not those of the capture"


def _on_off(value: object) -> object:
    return ("on" if value else "off") if isinstance(value, bool) else value


# Other conditions that a template does not give


def _equals_condition(guard: capture.Equals) -> str:
    where, value = print_source(guard.source), to_python(guard.value)
    if value is None or isinstance(value, bool):
        return f"{where} is {value}"
    # Where `==` says less than a guard: 1 is True inside of a tuple, 0.0 is -0.0, and nan is not itself.
    is_odd = isinstance(value, float) and (value == 0 or value != value)
    if is_odd or isinstance(value, tuple | list | dict | complex | slice):
        return f"type({where}) is {type(value).__name__} and repr({where}) == {repr(value)!r}"
    is_typed = isinstance(value, int | float | str)
    return f"type({where}) is {type(value).__name__} and " * is_typed + f"{where} == {print_literal(guard.value)}"


def _distinct_condition(guard: capture.Distinct) -> str:
    def objects(chosen: tuple[Source, ...]) -> str:
        return "{" + ", ".join(f"id({print_source(source)})" for source in chosen) + "}"

    inside = f"len({objects(guard.sources)}) == {len(guard.sources)}"
    apart = f"{objects(guard.sources)}.isdisjoint({objects(guard.others)})"
    return " and ".join([inside] * (len(guard.sources) > 1) + [apart] * bool(guard.others))


def _identity_check(builder: Any, guard: capture.IdentityIs) -> tuple[Any, ...]:
    """It keeps classes and modules alive, and what cannot be referred to weakly. Of a function it is also what calling
    it depends on besides its arguments, globals and cells: a weak reference to it, code, defaults, keyword defaults, a
    copy of these; the last three may be None."""
    named = builder.named_object(guard)
    if isinstance(named, FunctionType):
        keywords = named.__kwdefaults__
        copy = None if keywords is None else dict(keywords)
        return "function", (weakref.ref(named), named.__code__, named.__defaults__, keywords, copy)
    if isinstance(named, (type, ModuleType)) or not type(named).__weakrefoffset__:
        return "identity", named
    return "weak_identity", weakref.ref(named)


# The rows


class Kind(NamedTuple):
    """What is known of one kind of guard.

    check: the name of the check and what it takes (object, number, words), by the builder of the program and the guard;
    it stands on the last node that the guard reads. None: a relation, which is no check of a value.
    condition: the guard as Python. sentence: what it says when it fails for a value. now: how it shows that value.
    was: what the value was, where it is missing. sources: what it reads (None: the frame).
    flag: the field that says which text of a pair it is. subject: what the sentence is about. torch_name: what
    torch.compile calls a guard of the same purpose.
    """

    torch_name: str
    check: Callable[[Any, Any], tuple[Any, ...]] | None
    condition: Text
    sentence: Text = "{condition} does not hold any more"
    now: Callable[[object], str] = short
    was: str = "there"
    sources: Callable[[Any], tuple[Source | None, ...]] = lambda guard: (guard.source,)
    flag: str = ""
    subject: str = "{source}"


KINDS: dict[type[Guard], Kind] = {
    capture.TypeIs: Kind(
        "TYPE_MATCH", lambda builder, guard: ("type_is", builder.named_type(guard, guard.name)),
        "type({source}) is {name}", "the type of {source} was {name} and is {now}", now=type_name, was="a {name}",
    ),
    capture.IdentityIs: Kind(
        "ID_MATCH", _identity_check, "{source} is {name}", "{source} was {name} and is another object: {now}",
        was="{name}",
    ),
    capture.Equals: Kind(
        "EQUALS_MATCH", lambda builder, guard: ("equals", to_python(guard.value)), _equals_condition,
        "{source} was {value!r} and is {now}", was="{value!r}",
    ),
    capture.TensorIs: Kind(
        "TENSOR_MATCH", lambda builder, guard: ("tensor", *builder.tensor(guard)), _tensor_condition, _tensor_sentence,
        was="a tensor",
    ),
    capture.LengthIs: Kind(
        "SEQUENCE_LENGTH", lambda builder, guard: ("length", None, guard.length), "len({source}) == {length}",
        "len({source}) was {length} and is {now}", now=_length,
    ),
    capture.KeysAre: Kind(
        "DICT_KEYS_MATCH", lambda builder, guard: ("keys", tuple([to_python(key) for key in guard.keys])),
        "list({source}) == [{keys!r}]", "the keys of {source} were ({keys!r}) and are {now}", now=_keys,
    ),
    capture.HasKey: Kind(
        "DICT_CONTAINS", lambda builder, guard: ("has_key" if guard.present else "lacks_key", guard.key),
        ("{key!r} not in {source}", "{key!r} in {source}"),
        ("{key!r} was not in {source} and is", "{key!r} was in {source} and is not"), flag="present",
    ),
    capture.HasAttribute: Kind(
        "HASATTR",
        lambda builder, guard: ("has_attribute" if guard.present else "lacks_attribute", sys.intern(guard.name)),
        ("not hasattr({source}, {name!r})", "hasattr({source}, {name!r})"),
        ("{source} had no attribute {name!r} and has one", "{source} had an attribute {name!r} and has none"),
        flag="present",
    ),
    capture.SameObject: Kind(
        "DUPLICATE_INPUT",
        lambda builder, guard: ("same" if guard.same else "not_same", None, 0, (min(builder.apart(guard)),)),
        ("{first} is not {second}", "{first} is {second}"),
        ("{first} and {second} were two objects and are one", "{first} and {second} were one object and are two"),
        flag="same", subject="{first} or {second}", sources=lambda guard: (guard.first, guard.second),
    ),
    capture.Distinct: Kind(
        "NO_TENSOR_ALIASING", lambda builder, guard: ("distinct", None, len(guard.sources), builder.apart(guard)),
        _distinct_condition, sources=lambda guard: (*guard.sources, *guard.others),
    ),
    capture.GlobalState: Kind(
        "GLOBAL_STATE", lambda builder, guard: ("state", None, 0, native.state_codes(guard)), _state_condition,
        _state_sentence, sources=lambda guard: (None,),
    ),
    capture.Relation: Kind("SHAPE_ENV", None, "{left} {operator} {right}", sources=lambda guard: ()),
}  # fmt: skip


class _Words(string.Formatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion != "r":
            return super().convert_field(value, conversion)
        return ", ".join(map(print_literal, value)) if isinstance(value, tuple) else print_literal(value)


def _worded(text: Text, guard: Guard, names: Mapping[str, str] = NO_NAMES, *value: object) -> str:
    """A text of the row of a guard."""
    if callable(text):
        return text(guard, *value)
    row = KINDS[type(guard)]
    if isinstance(text, tuple):
        text = text[getattr(guard, row.flag)]
    words: dict[str, object] = {"now": row.now(value[0])} if value else {}
    for name in guard.__struct_fields__:
        field = getattr(guard, name)
        is_source, is_size = isinstance(field, Source), isinstance(field, Expr)
        words[name] = print_source(field) if is_source else print_size(field, names) if is_size else field
    if "{condition}" in text:
        words["condition"] = print_guard(guard, names)
    return _Words().vformat(text, (), words)


def print_guard(guard: Guard, names: Mapping[str, str] = NO_NAMES) -> str:
    """The guard as a Python condition; `names`: what stands for size symbols.

    >>> from stagewire.capture import Equals, Local
    >>> print_guard(Equals(Local("n"), 3))
    'type(n) is int and n == 3'
    """
    return _worded(KINDS[type(guard)].condition, guard, names)


def sentence(guard: Guard, value: object, names: Mapping[str, str] = NO_NAMES) -> str:
    """Why the guard does not hold for what it found."""
    return _worded(KINDS[type(guard)].sentence, guard, names, value)


def missing(guard: Guard) -> str:
    """What the guard says where there is no value."""
    row = KINDS[type(guard)]
    return _worded(f"{row.subject} was {row.was} and is missing", guard)
