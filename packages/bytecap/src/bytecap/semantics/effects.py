"""Side effects: what the captured code changed outside its frame, replayed after the graph.

Each changed object appears once, in the order of the first change, with its final state. All values are made
before the first store, so that nothing is read from an object that a store has changed already.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from bytecap.bytecode import rebuild
from bytecap.context_types import Emitter
from bytecap.errors import UnsupportedMutation
from bytecap.guards.printing import print_source
from bytecap.objects.arrays.tensor_hooks import HookHandle
from bytecap.objects.base import Constant, Declared, Value
from bytecap.objects.containers.host_containers import DequeValue, SetValue
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue
from bytecap.objects.distributed import Work
from bytecap.objects.functions import CellValue
from bytecap.objects.instances.exceptions import RaiseEffect
from bytecap.objects.instances.objects import AttributeWrites, writers_of
from bytecap.objects.instances.random_streams import OutsideRandom
from bytecap.objects.numbers.open_constants import OpenConstant
from bytecap.objects.numbers.symbolic import is_symbolic
from bytecap.objects.opaque import ContextToken, Reset
from bytecap.objects.outside_iterators import OutsideIterator
from bytecap.semantics.operations import same_object
from stagewire.capture import Source

Call = tuple[Any, ...]
"""A function, and what it is called with: values, tuples and dicts of them, constants."""


class CallEffect(metaclass=Declared):
    """A call for its effect alone (print, warnings.warn, a log message), made again at each run; its result is None.

    The arguments are as they were at the call: texts and other immutable values.
    """

    function: Callable[..., Any]
    args: list[Value]
    kwargs: dict[str, Value]


class SeedEffect(CallEffect):
    """A call that seeds random streams, of which the graph has drawn nothing yet: made before it (`driver.undo`)."""


def counted_places(effects: Iterable[Any]) -> frozenset[Source]:
    """Where the numbers and texts are that are replaced by something that is computed from them."""
    found: set[Source] = set()
    for effect in effects:
        for place, value in _stored(effect):
            is_open = place is not None and isinstance(value, OpenConstant) and bool(value.parts)
            if is_open and any(leaf.source == place for leaf in value.leaves):  # type: ignore[union-attr]
                found.add(place)
    return frozenset(found)


def _stored(effect: Any) -> Iterator[tuple[Source | None, Value | None]]:
    """(place, value stored there) for what a dict or cell holds afterwards."""
    match effect:
        case CellValue():
            yield effect.content_source, effect.content
        case DictValue(item_source=place_of) if place_of is not None:
            for key, value in effect.new.values():
                if isinstance(key, Constant):
                    yield place_of(key.value, None), value


def emit_effects(emitter: Emitter, results: Iterable[Value]) -> None:
    """Emit every side effect; what is needed afterwards, `results`, is made ready first if there is any."""
    calls: list[Call] = []
    for effect in emitter.tracer.effects:
        planned = _PLANS[type(effect)](emitter, effect)
        emitter.prepare([part for call in planned for part in call[1:]])
        calls += planned
        if planned or isinstance(effect, (HookHandle, ContextToken, Reset, SeedEffect, OutsideRandom)):
            emitter.tracer.replayed.append(_described(effect))
    if not calls:
        return
    emitter.prepare(list(results))
    for function, *parts in calls:
        emitter.call_with(function, *parts)
        emitter.pop()
    emitter.settle()


def _described(effect: Any) -> tuple[str, str]:
    """("call", function) or ("write", what is written), for people."""
    match effect:
        case CallEffect():
            return "call", getattr(effect.function, "__qualname__", repr(effect.function))
        case CellValue(content_source=source) if source is not None:
            return "write", print_source(source)
        case AttributeWrites(target=type()):
            return "write", f"class {effect.target.__qualname__}"
    changed = next((one for name in ("owner", "target", "variable") if (one := getattr(effect, name, None))), effect)
    source = getattr(changed, "source", None)
    return "write", type(effect).__name__ if source is None else print_source(source)


def _plan_list(emitter: Emitter, effect: ListValue | SetValue) -> list[Call]:
    if effect.is_unseen:
        return [(rebuild.add_items, effect, tuple(effect.added))]
    items = effect.values(emitter.tracer) if isinstance(effect, ListValue) else effect.in_order()
    return [(rebuild.replace_items, effect, tuple(items))]


def _plan_cell(emitter: Emitter, effect: CellValue) -> list[Call]:
    if effect.content is None:
        raise UnsupportedMutation("deleting a variable of an outer function")
    return [(setattr, effect, "cell_contents", effect.content)]


def _plan_raise(emitter: Emitter, effect: RaiseEffect) -> list[Call]:
    emitter.is_seen = True
    return [(rebuild.raised_in_caller, effect.error, effect.line)]


def _refuse_work(emitter: Emitter, effect: Work) -> list[Call]:
    raise UnsupportedMutation(
        "a collective that is not waited for where the graph ends", fix="Call wait() of its work."
    )


def _plan_iterator(emitter: Emitter, effect: OutsideIterator) -> list[Call]:
    match effect.taken + effect.ended:
        case 0:
            return []
        case 1:
            return [(next, effect, None)]
        case times:
            return [(rebuild.advance, effect, times)]


def _plan_attribute_order(emitter: Emitter, effect: DictValue) -> list[Call]:
    """Attributes that changed places: from the first that did on, they are deleted and stored again."""
    rest = _stored_keys(emitter, effect)
    moved = list(zip(effect.new, effect.pairs(emitter.tracer), strict=True))
    calls: list[Call] = []
    while moved and moved[0][0] in rest:
        code, (_, value) = moved[0]
        while next(iter(rest)) != code:
            calls.append(_delete(effect, rest.pop(next(iter(rest)))))
        key = rest.pop(code)
        if not _unchanged(value, dict.__getitem__(effect.real, key)):
            calls.append(_delete(effect, key))
            break
        moved.pop(0)
    calls.extend(_delete(effect, key) for key in rest.values())
    return calls + [_store(effect, *pair) for _, pair in moved]


def _plan_dict(emitter: Emitter, effect: DictValue) -> list[Call]:
    if effect.reordered and effect.owner is None:  # emptied and filled again
        return [(rebuild.replace_pairs, effect, dict(effect.pairs(emitter.tracer)))]
    if effect.reordered:
        return _plan_attribute_order(emitter, effect)
    by_code = _stored_keys(emitter, effect)
    calls = [_store(effect, *pair) for pair in effect.unsettled]
    for code in effect.written:
        pair = effect.new.get(code)
        if pair is None:
            calls += [_delete(effect, by_code[code])] if code in by_code else []
        elif (
            code not in by_code
            or code in effect.blind
            or not _unchanged(pair[1], dict.__getitem__(effect.real, by_code[code]))
        ):
            calls.append(_store(effect, *pair))
    return calls


def _stored_keys(emitter: Emitter, effect: DictValue) -> dict[Hashable, Any]:
    """The keys that are in an outside dict, by their host keys."""
    objects = emitter.tracer.objects
    return {objects.hash_key(objects.wrap(key, None)): key for key, _ in rebuild.stored_items(effect.real)}  # type: ignore[arg-type]


def _unchanged(value: Value, real: Any) -> bool:
    if isinstance(value, Constant):
        is_known = not value.is_open and not is_symbolic(value)
        return is_known and same_object(value, Constant(real))
    return real is not None and getattr(value, "real", None) is real


def _store(effect: DictValue, key: Value, value: Value) -> Call:
    if effect.owner is None:
        return rebuild.set_item, effect, key, value
    return writers_of(effect.owner, key)[0], effect.owner, key, value


def _delete(effect: DictValue, key: Any) -> Call:
    if effect.owner is None:
        return rebuild.delete_item, effect, Constant(key)
    return writers_of(effect.owner, Constant(key))[1], effect.owner, Constant(key)


def _plan_attributes(emitter: Emitter, effect: AttributeWrites) -> list[Call]:
    target = effect.target
    return [
        (effect.delete, target, name) if value is None else (effect.store, target, name, value)
        for name, value in effect.names.items()
        if value is not None or not isinstance(target, type) or name in target.__dict__
    ]


def _plan_reset(emitter: Emitter, effect: Reset) -> list[Call]:
    effect.variable.check_unread()
    emitter.call_with(ContextVar.reset, effect.variable, effect.token)
    emitter.pop()
    return []


_PLANS: dict[type, Callable[[Any, Any], list[Call]]] = {
    ListValue: _plan_list,
    DequeValue: _plan_list,
    SetValue: _plan_list,
    CellValue: _plan_cell,
    DictValue: _plan_dict,
    CallEffect: lambda emitter, effect: [(rebuild.call_with, effect.function, tuple(effect.args), effect.kwargs)],
    SeedEffect: lambda emitter, effect: [] if emitter.tracer.graph.nodes else _PLANS[CallEffect](emitter, effect),
    OutsideRandom: lambda emitter, effect: [],  # it has drawn in front of the graph
    RaiseEffect: _plan_raise,
    AttributeWrites: _plan_attributes,
    # Done at once: nothing that is read for the stores depends on a hook, and tokens are needed for what is made.
    **dict.fromkeys((HookHandle, ContextToken), lambda emitter, effect: emitter.prepare(effect) or []),
    Reset: _plan_reset,
    Work: _refuse_work,
    OutsideIterator: _plan_iterator,
}
