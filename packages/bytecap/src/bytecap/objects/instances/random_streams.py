"""Instances of `random.Random`.

    made    ::= a stream of the host's             the captured code made it: its state is known
    outside ::= method(arguments) -> number        called in front of the graph, in each call, in the program's order

An outside generator is not read at capture. What it gives is a symbol of the running call (`Symbols.make`), and what
the program computes of that is computed in front of the graph, too. Where the graph raises, the generator is given
back the state that it had (`bytecap.replacement.code`).
"""

from __future__ import annotations

import _random
import hashlib
import operator
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from bytecap.bytecode import rebuild
from bytecap.context_types import Emitter, Tracer
from bytecap.errors import UnsupportedCall, UnsupportedMutation
from bytecap.graph.builder import Made
from bytecap.objects.base import NONE, Constant, Value, fold, state
from bytecap.objects.containers.sequences import ListValue
from bytecap.objects.instances.objects import ObjectValue
from bytecap.objects.numbers.symbolic import as_value
from stagewire.capture import Local

_METHODS = frozenset({"random", "getrandbits", "getstate", "setstate", "seed"})


class RandomStream(Value):
    """host: None where it is seeded by the machine: what it draws is another number in each call."""

    host: Any = state(default=None)
    cls = _random.Random

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "seed" and (not args or args[0].is_none()):
            self.host = None
            return NONE
        host = _random.Random() if self.host is None and name in ("seed", "setstate") else self.host
        if host is None or name not in _METHODS:
            raise UnsupportedCall(f"{name}() of a random.Random without a seed")
        given = tuple([arg.concrete() for arg in args])
        made = fold(tracer, getattr(host, name), given, {key: value.concrete() for key, value in kwargs.items()})
        self.host = host
        return made

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_function(rebuild.random_stream, None if self.host is None else self.host.getstate())


# -- generators from outside

# What the methods give. "item", "items": of what they are given; "order": they change that; None: nothing.
_RESULTS: dict[str, Any] = {
    **dict.fromkeys(
        ("random", "uniform", "triangular", "gauss", "normalvariate", "lognormvariate", "expovariate", "betavariate",
         "gammavariate", "vonmisesvariate", "paretovariate", "weibullvariate"), float),
    **dict.fromkeys(("randint", "randrange", "getrandbits", "binomialvariate"), int),
    "choice": "item", "choices": "items", "sample": "items", "shuffle": "order", "seed": None,
}  # fmt: skip
# Each item is a number of the graph.
_MOST_ITEMS = 64
_STATE = ("gauss_next", "__dict__")


class OutsideRandom(ObjectValue):
    """A `random.Random` from outside. content: how often it has drawn."""

    content: int = state(default=0)

    def can_draw(self, tracer: Tracer) -> bool:
        """Whether a number of the running call can be a value of the graph, and this code runs once in each call."""
        return tracer.sizes.policy.of_data and not tracer.graph.is_body

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name not in _RESULTS or not self.can_draw(tracer):
            return super().call_method(tracer, name, args, kwargs)
        given = [tracer.sizes.part(arg) for arg in args]
        named = {key: tracer.sizes.part(arg) for key, arg in kwargs.items()}
        result, kind = _RESULTS[name], _RESULTS[name]
        if result == "order" and not (args and isinstance(args[0], ListValue)):
            raise UnsupportedCall("shuffle() of what is no list")
        if isinstance(result, str):
            kind = _kind_of(given[0] if given else None)
        count = _count(name, given, named) if result in ("items", "order") else 0
        bounds = _bounds(name, given)
        parts = (getattr(random.Random, name), self, tuple(given), named)
        if not self.content:
            tracer.effects.append(self)
        self.content += 1
        if result in (float, int, "item"):
            return as_value(tracer.sizes.make(kind, _call, *parts, name=name, bounds=bounds))
        place = f".made_{tracer.graph.name(name)}"
        tracer.made[place] = Made(_reorder if result == "order" else _call, parts)
        item = partial(tracer.sizes.make, kind, operator.getitem, Value(Local(place)), name=name, bounds=bounds)
        items: list[Value] = [as_value(item(number)) for number in range(count)]
        if result == "items":
            return ListValue(items)
        if result == "order":
            args[0].mutate(tracer)
            args[0].replace(items)  # type: ignore[attr-defined]
        return NONE

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name in _STATE and self.can_draw(tracer):  # else the replacement may read it when it has drawn
            raise UnsupportedCall(f"{name} of a random.Random")
        return super().get_attribute(tracer, name)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        if name in _STATE:
            raise UnsupportedMutation(f"cannot set {name} of a random.Random")
        super().set_attribute(tracer, name, value)


def _kind_of(population: Any) -> type:
    """The class of all numbers of a list or range."""
    kinds = {int} if type(population) is range else set()
    if type(population) is list:
        kinds = {item.python_type() if isinstance(item, Value) else type(item) for item in population}
    if kinds not in ({int}, {float}):
        raise UnsupportedCall("a random.Random chooses among what is neither all ints nor all floats")
    return kinds.pop()


def _count(name: str, given: list[Any], named: dict[str, Any]) -> int:
    """How many items there will be."""
    if name == "shuffle":
        count = len(given[0]) if type(given[0]) is list else None
    else:
        count = given[1] if name == "sample" and len(given) > 1 else named.get("k", 1)
    if type(count) is not int or not 0 <= count <= _MOST_ITEMS:
        raise UnsupportedCall(f"{name}() of more than {_MOST_ITEMS} items, or of a number that varies")
    return count


def _bounds(name: str, given: list[Any]) -> tuple[int | None, int | None]:
    """The least and the largest int that there can be, where that is known."""
    of = given[0] if given and isinstance(given[0], (list, range)) else given
    of = [of[0], of[-1]] if of and isinstance(of, range) else of
    if not of or any(type(part) is not int for part in of):
        return None, None
    match name, of:
        case "randint", [lower, upper]:
            bounds = lower, upper
        case "randrange", [upper]:
            bounds = 0, upper - 1
        case "randrange", [lower, upper, *_]:
            bounds = lower, upper - 1
        case "getrandbits", [count]:
            bounds = 0, (1 << max(0, min(count, 64))) - 1
        case "choice" | "choices" | "sample" | "shuffle", _:
            bounds = min(of), max(of)
        case _:
            return None, None
    if bounds[0] < -(1 << 63) or bounds[1] >= 1 << 63:
        raise UnsupportedCall(f"{name}() of numbers of more than 64 bits")
    return bounds if bounds[0] <= bounds[1] else (None, None)  # else it raises


def _call(method: Callable[..., Any], generator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return method(generator, *args, **kwargs)


def _reorder(method: Callable[..., Any], generator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    method(generator, *args, **kwargs)
    return args[0]


def _entry(name: str, function: Any) -> Callable[..., Value]:
    """A method that is written in Python: evaluated where the generator is none from outside."""

    def handler(tracer: Tracer, self: Value, *args: Value, **kwargs: Value) -> Value:
        if isinstance(self, OutsideRandom) and self.can_draw(tracer):
            return self.call_method(tracer, name, list(args), kwargs)
        if name == "seed" and len(args) == 1 and not kwargs and args[0].python_type() in (str, bytes):
            text = args[0].concrete()
            text = text.encode() if isinstance(text, str) else text
            args = (Constant(int.from_bytes(text + hashlib.sha512(text).digest(), "big")),)
        return tracer.evaluate.inline(tracer, tracer.objects.wrap(function, None), [self, *args], kwargs)

    return handler


RANDOM: dict[Any, Callable[..., Value]] = {
    function: _entry(name, function) for name, function in vars(random.Random).items() if name in _RESULTS
}
