"""Streams and events of GPUs, under fullgraph=True: what a program does with them is nodes (`absint.streams`).

    stream ::= from outside | made here | current        the one that was current when the program began
    event  ::= from outside | made here

What is made here is made once, at capture, and used in every call: a stream is one of torch's pool in any case, and an
event is recorded before it is waited for. So none of them may leave the program. Without fullgraph the graph ends at
these calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from absint import streams
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.nodes.call_arguments import current_gpu
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import NONE, Constant, Value, run
from bytecap.objects.functions import BuiltinMethod

STREAMS = (torch.Stream, torch.cuda.Stream)
EVENTS = (torch.Event, torch.cuda.Event)


class _Queue(Value):
    """A stream or an event. name: in nodes."""

    kind: type
    name: str

    def python_type(self) -> type:
        return self.kind

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if self.methods is not None and name in self.methods:
            return BuiltinMethod(self, name)
        if name == "__class__":
            return super().get_attribute(tracer, name)
        raise UnsupportedCall(f"{name!r} of a {self.describe()} in captured code")

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        method = (self.methods or {}).get(name)
        if method is None:
            raise UnsupportedCall(f"{name!r} of a {self.describe()} in captured code")
        return method(tracer, self, *args, **kwargs)  # type: ignore[no-any-return]


class StreamValue(_Queue):
    """A stream of a GPU."""

    device: torch.device = torch.device("cuda", 0)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "device":
            return Constant(self.device)
        return super().get_attribute(tracer, name)


class EventValue(_Queue):
    """An event."""


class Current:
    """Of one device: the stream that is current now (None: nobody has asked yet), and those that `with` statements go
    back to."""

    def __init__(self) -> None:
        self.now: StreamValue | None = None
        self.entered: list[StreamValue] = []


def may_be_nodes(tracer: Tracer) -> bool:
    """Whether the graph may not end, and the back end runs a program in parts."""
    return tracer.sizes.policy.whole and tracer.sizes.policy.of_data


def wrap_queue(tracer: Tracer, real: Any, source: Any) -> Value:
    """One from outside, guarded by identity."""
    tracer.guards.identity(source, real)
    return _value(tracer, real, source)


def _value(tracer: Tracer, real: Any, source: Any = None) -> Value:
    tracer.places.handle(real)
    name = streams.hold(real)
    if isinstance(real, EVENTS):
        return EventValue(kind=type(real), name=name, source=source)
    device = torch.device(real.device)
    return StreamValue(kind=type(real), name=name, device=device, source=source)


def _state(tracer: Tracer, device: torch.device) -> Current:
    return tracer.streams.setdefault(device.index or 0, Current())


def _current(tracer: Tracer, device: torch.device) -> StreamValue:
    """The stream that is current here."""
    state = _state(tracer, device)
    if state.now is None:
        name = tracer.graph.name("stream_before")
        _node(tracer, "current", name, device.index or 0)
        tracer.places.held = True
        state.now = StreamValue(kind=torch.cuda.Stream, name=name, device=device)
    return state.now


def _set(tracer: Tracer, stream: StreamValue) -> Value:
    state = _state(tracer, stream.device)
    if (stream.device.index or 0) != current_gpu(tracer).index:
        raise UnsupportedCall("entering a stream of another GPU than the current one in captured code")
    if _current(tracer, stream.device) is not stream:
        _node(tracer, "set", stream)
        state.now = stream
    return NONE


def _node(tracer: Tracer, name: str, *args: Any) -> Value:
    """One of the operators: of streams and events by name, tensors, names and numbers."""
    _refuse_elsewhere(tracer)
    given = tuple([arg.name if isinstance(arg, _Queue) else arg for arg in args])
    tracer.evaluate.record(tracer, f"{streams.NAMESPACE}.{name}.default", given, {}, None)
    return NONE


def _refuse_elsewhere(tracer: Tracer) -> None:
    if not may_be_nodes(tracer) or tracer.graph.is_body:
        raise UnsupportedCall("streams and events of a GPU", fix="Capture the program with fullgraph=True.")


def _enter(tracer: Tracer, stream: StreamValue) -> Value:
    _state(tracer, stream.device).entered.append(_current(tracer, stream.device))
    _set(tracer, stream)
    return stream


def _leave(tracer: Tracer, stream: StreamValue, *raised: Value) -> Value:
    return _set(tracer, _state(tracer, stream.device).entered.pop())


def _record_event(tracer: Tracer, stream: StreamValue, event: Value = NONE) -> Value:
    event = _new(tracer, torch.cuda.Event, (), {}) if event.is_none() else _event(event)
    _node(tracer, "record", event, stream)
    return event


StreamValue.methods = {
    "wait_stream": lambda tracer, self, stream: _node(tracer, "wait_stream", self, _stream(tracer, stream)),
    "wait_event": lambda tracer, self, event: _node(tracer, "wait_event", self, _event(event)),
    "record_event": _record_event,
    "synchronize": lambda tracer, self: _node(tracer, "synchronize", self),
    "__enter__": _enter,
    "__exit__": _leave,
}
EventValue.methods = {
    "record": lambda tracer, self, stream=NONE: _node(tracer, "record", self, _stream(tracer, stream)),
    "wait": lambda tracer, self, stream=NONE: _node(tracer, "wait_event", _stream(tracer, stream), self),
    "synchronize": lambda tracer, self: _node(tracer, "synchronize", self),
}


def _stream(tracer: Tracer, value: Value) -> StreamValue:
    """A stream that is given; the current one in the place of None."""
    if value.is_none():
        return _current(tracer, current_gpu(tracer))
    if not isinstance(value, StreamValue):
        raise UnsupportedCall(f"a {value.describe()} in the place of a stream")
    return value


def _event(value: Value) -> EventValue:
    if not isinstance(value, EventValue):
        raise UnsupportedCall(f"a {value.describe()} in the place of an event")
    return value


def _new(tracer: Tracer, kind: Any, args: Any, kwargs: Any) -> Value:
    _refuse_elsewhere(tracer)
    given = tuple([arg.concrete() for arg in args])
    return _value(tracer, run(tracer, kind, given, {name: arg.concrete() for name, arg in kwargs.items()}))


def _made(kind: Any) -> Callable[..., Value]:
    return lambda tracer, *args, **kwargs: _new(tracer, kind, args, kwargs)


def _device(tracer: Tracer, device: Value) -> torch.device:
    """The GPU that an argument of a function of torch.cuda names."""
    if device.is_none():
        return current_gpu(tracer)
    wanted = device.concrete()
    wanted = torch.device("cuda", wanted) if isinstance(wanted, int) else torch.device(wanted)
    return wanted if wanted.index is not None else current_gpu(tracer)


def _current_device(tracer: Tracer) -> Value:
    if not torch.cuda.is_available():
        raise UnsupportedCall("torch.cuda.current_device() without a GPU")
    return Constant(current_gpu(tracer).index)


def _current_stream(tracer: Tracer, device: Value = NONE) -> Value:
    _refuse_elsewhere(tracer)
    return _current(tracer, _device(tracer, device))


def _default_stream(tracer: Tracer, device: Value = NONE) -> Value:
    _refuse_elsewhere(tracer)
    return _value(tracer, run(tracer, torch.cuda.default_stream, (_device(tracer, device),)))


def _set_stream(tracer: Tracer, stream: Value) -> Value:
    return NONE if stream.is_none() else _set(tracer, _stream(tracer, stream))


def _synchronize(tracer: Tracer, device: Value = NONE) -> Value:
    return _node(tracer, "synchronize_device", _device(tracer, device).index or 0)


def _record_stream(tracer: Tracer, tensor: TensorValue, stream: Value) -> Value:
    return _node(tracer, "keep", tensor.abstract, _stream(tracer, stream))


STREAM_CALLS: dict[Any, Callable[..., Value]] = {
    **{kind: _made(kind) for kind in (*STREAMS, *EVENTS)},
    torch.cuda.current_device: _current_device,
    torch.cuda.current_stream: _current_stream,
    torch.cuda.default_stream: _default_stream,
    torch.cuda.set_stream: _set_stream,
    torch.cuda.synchronize: _synchronize,
    torch.accelerator.current_stream: _current_stream,
    torch.accelerator.set_stream: _set_stream,
    torch.accelerator.synchronize: _synchronize,
    torch.Tensor.record_stream: _record_stream,
}
