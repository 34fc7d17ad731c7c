"""Side effects: what the captured code changed outside its frame, replayed after the graph.

Each changed object appears once, in the order of the first change, with its final state. All values are made
before the first store, so that nothing is read from an object that a store has changed already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bytecap.bytecode import rebuild
from bytecap.errors import UnsupportedMutation
from bytecap.objects.arrays.tensor_hooks import HookHandle
from bytecap.objects.base import Value
from bytecap.objects.cells import CellValue
from bytecap.objects.constant import Constant
from bytecap.objects.containers.deques import DequeValue
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue
from bytecap.objects.containers.sets import SetValue
from bytecap.objects.context_variables import ContextWrites
from bytecap.objects.instances.objects import writers_of
from bytecap.objects.instances.writes import ClassWrites, RaiseEffect, SlotWrites, TensorWrites
from bytecap.objects.numbers.open_constants import OpenConstant
from bytecap.objects.numbers.symbolic import is_symbolic
from bytecap.semantics.operations import same_object

if TYPE_CHECKING:
    from bytecap.replacement.emit import Emitter
    from stagewire.capture import Source

Store = Callable[[], None]


class CallEffect:
    """A call for its effect alone (print, warnings.warn, a log message), made again at each run; its result is None.

    The arguments are as they were at the call: texts and other immutable values.
    """

    __slots__ = ("args", "function", "kwargs")

    def __init__(self, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs


def counted_places(effects: Iterable[Any]) -> frozenset[Source]:
    """Where the numbers and texts are that are replaced by something that is computed from them."""
    found: set[Source] = set()
    for effect in effects:
        for place, value in _stored(effect):
            if isinstance(value, OpenConstant) and value.parts and place in value.places():
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
    stores = [store for effect in emitter.tracer.effects for store in _PLANS[type(effect)](emitter, effect)]
    if not stores:
        return
    for result in results:
        emitter.prepare(result)
    for store in stores:
        store()
    emitter.settle()


def _plan_list(emitter: Emitter, effect: ListValue | SetValue) -> list[Store]:
    if effect.is_unseen:
        return _plan_items(emitter, effect, effect.added, rebuild.add_items)
    items = effect.values(emitter.tracer) if isinstance(effect, ListValue) else effect.in_order()
    return _plan_items(emitter, effect, items, rebuild.replace_items)


def _plan_items(emitter: Emitter, target: Value, items: list[Value], helper: Any) -> list[Store]:
    emitter.prepare(target)
    for item in items:
        emitter.prepare(item)

    def store() -> None:
        for item in items:
            emitter.load(item)
        emitter.build_tuple(len(items))
        emitter.load(target)
        emitter.call_function(helper, arguments=2)
        emitter.pop()

    return [store]


def _plan_cell(emitter: Emitter, effect: CellValue) -> list[Store]:
    content = effect.content
    if content is None:
        raise UnsupportedMutation("deleting a variable of an outer function")
    emitter.prepare(content)

    def store() -> None:
        emitter.load(content)
        if effect.frame_name is not None:
            emitter.store_free(effect.frame_name)
        else:
            emitter.load_outside_cell(effect)
            emitter.store_attribute("cell_contents")

    return [store]


def _plan_call(emitter: Emitter, effect: CallEffect) -> list[Store]:
    for value in (*effect.args, *effect.kwargs.values()):
        emitter.prepare(value)

    def store() -> None:
        emitter.constant(effect.function)
        for value in effect.args:
            emitter.load(value)
        emitter.build_tuple(len(effect.args))
        for name, value in effect.kwargs.items():
            emitter.constant(name)
            emitter.load(value)
        emitter.build_map(len(effect.kwargs))
        emitter.call_function(rebuild.call_with, arguments=3)
        emitter.pop()

    return [store]


def _plan_raise(emitter: Emitter, effect: RaiseEffect) -> list[Store]:
    emitter.prepare(effect.error)

    def store() -> None:
        emitter.load(effect.error)
        emitter.raised_at(effect.line)

    return [store]


def _plan_order(emitter: Emitter, effect: DictValue) -> list[Store]:
    """A dict whose keys changed places: emptied and filled again."""
    pairs = effect.pairs(emitter.tracer)
    emitter.prepare(effect)
    for pair in pairs:
        for value in pair:
            emitter.prepare(value)

    def store() -> None:
        for pair in pairs:
            for value in pair:
                emitter.load(value)
        emitter.build_map(len(pairs))
        emitter.load(effect)
        emitter.call_function(rebuild.replace_pairs, arguments=2)
        emitter.pop()

    return [store]


def _plan_attribute_order(emitter: Emitter, effect: DictValue, owner: Value) -> list[Store]:
    """Attributes that changed places: from the first that did on, they are deleted and stored again."""
    assert effect.real is not None
    rest = [
        (emitter.tracer.objects.hash_key(emitter.tracer.objects.wrap(key, None)), key)
        for key, _ in rebuild.stored_items(effect.real)
    ]
    pairs = effect.pairs(emitter.tracer)
    moved = list(zip(effect.new, pairs, strict=True))
    stores: list[Store] = []
    emitter.prepare(owner)
    while moved and any(code == moved[0][0] for code, _ in rest):
        (code, pair), *moved = moved
        while rest[0][0] != code:
            stores.append(_delete(emitter, effect, owner, rest.pop(0)[1]))
        key = rest.pop(0)[1]
        if not _unchanged(pair[1], dict.__getitem__(effect.real, key)):
            moved.insert(0, (code, pair))
            stores.append(_delete(emitter, effect, owner, key))
            break
    stores.extend(_delete(emitter, effect, owner, key) for _, key in rest)
    for _, pair in moved:
        emitter.prepare(pair[0])
        emitter.prepare(pair[1])
        stores.append(_store(emitter, effect, owner, *pair))
    return stores


def _plan_dict(emitter: Emitter, effect: DictValue) -> list[Store]:
    assert effect.real is not None
    if effect.reordered and effect.owner is None:
        return _plan_order(emitter, effect)
    owner: Value = effect if effect.owner is None else effect.owner
    if effect.reordered:
        return _plan_attribute_order(emitter, effect, owner)
    by_code = {
        emitter.tracer.objects.hash_key(emitter.tracer.objects.wrap(key, None)): key
        for key, _ in rebuild.stored_items(effect.real)
    }
    stores: list[Store] = []
    for pair in effect.unsettled:
        emitter.prepare(pair[0])
        emitter.prepare(pair[1])
        stores.append(_store(emitter, effect, owner, *pair))
    for code in effect.written:
        pair = effect.new.get(code)
        if pair is None:
            if code in by_code:
                stores.append(_delete(emitter, effect, owner, by_code[code]))
        elif (
            code not in by_code
            or code in effect.blind
            or not _unchanged(pair[1], dict.__getitem__(effect.real, by_code[code]))
        ):
            emitter.prepare(pair[0])
            emitter.prepare(pair[1])
            stores.append(_store(emitter, effect, owner, *pair))
    if stores:
        emitter.prepare(owner)
    return stores


def _unchanged(value: Value, real: Any) -> bool:
    if isinstance(value, Constant):
        is_known = not value.is_open and not is_symbolic(value)
        return is_known and same_object(value, Constant(real))
    return real is not None and getattr(value, "real", None) is real


def _store(emitter: Emitter, effect: DictValue, owner: Value, key: Value, value: Value) -> Store:
    def store() -> None:
        emitter.load(owner)
        emitter.load(key)
        emitter.load(value)
        change = rebuild.set_item if effect.owner is None else writers_of(owner, key)[0]
        emitter.call_function(change, arguments=3)
        emitter.pop()

    return store


def _delete(emitter: Emitter, effect: DictValue, owner: Value, key: Any) -> Store:
    def store() -> None:
        emitter.load(owner)
        emitter.constant(key)
        change = rebuild.delete_item if effect.owner is None else writers_of(owner, Constant(key))[1]
        emitter.call_function(change, arguments=2)
        emitter.pop()

    return store


def _plan_class(emitter: Emitter, effect: ClassWrites) -> list[Store]:
    for value in effect.names.values():
        if value is not None:
            emitter.prepare(value)

    def store_all() -> None:
        for name, value in effect.names.items():
            if value is not None:
                emitter.load(value)
                emitter.constant(effect.cls)
                emitter.store_attribute(name)
            elif name in effect.cls.__dict__:
                emitter.call_function(delattr, effect.cls, name)
                emitter.pop()

    return [store_all]


def _plan_slots(emitter: Emitter, effect: SlotWrites) -> list[Store]:
    emitter.prepare(effect.object)
    for name in effect.names:
        value = effect.object.slots[name]
        if value is not None:
            emitter.prepare(value)

    def store_all() -> None:
        for name in effect.names:
            value = effect.object.slots[name]
            emitter.load(effect.object)
            emitter.constant(name)
            if value is not None:
                emitter.load(value)
            change: Any = object.__delattr__ if value is None else object.__setattr__
            emitter.call_function(change, arguments=2 + (value is not None))
            emitter.pop()

    return [store_all]


def _plan_tensor(emitter: Emitter, effect: TensorWrites) -> list[Store]:
    emitter.prepare(effect.tensor)
    for name in effect.names:
        emitter.prepare(effect.tensor.attributes[name])

    def store_all() -> None:
        for name in effect.names:
            emitter.load(effect.tensor.attributes[name])
            emitter.load(effect.tensor)
            emitter.store_attribute(name)

    return [store_all]


def _plan_hook(emitter: Emitter, effect: HookHandle) -> list[Store]:
    """Registered at once: nothing that is read for the stores depends on it."""
    emitter.prepare(effect)
    return []


def _plan_context(emitter: Emitter, effect: ContextWrites) -> list[Store]:
    """Set at once, as the tokens are needed for what is made."""
    effect.prepare(emitter)
    return []


_PLANS: dict[type, Callable[[Any, Any], list[Store]]] = {
    ListValue: _plan_list,
    DequeValue: _plan_list,
    SetValue: _plan_list,
    CellValue: _plan_cell,
    DictValue: _plan_dict,
    CallEffect: _plan_call,
    RaiseEffect: _plan_raise,
    ClassWrites: _plan_class,
    SlotWrites: _plan_slots,
    TensorWrites: _plan_tensor,
    HookHandle: _plan_hook,
    ContextWrites: _plan_context,
}
