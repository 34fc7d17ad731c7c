"""Operators about streams and events of GPUs, as a Capture has them. They compute nothing; they say on which stream
what stands behind them is queued, and what waits for what.

    current(name, device)           the current stream of the device is called `name` from now on
    set(stream)                     it becomes the current one of its device
    wait_stream(stream, other)      what is queued on `stream` from now on waits for all that `other` has by now
    record(event, stream)           `event` stands behind all that `stream` has by now
    wait_event(stream, event)       what is queued on `stream` from now on waits for the last record of `event`
    synchronize(name)               the host waits for all of a stream, or for the last record of an event
    synchronize_device(device)      the host waits for all streams of a device
    keep(tensor, stream)            `Tensor.record_stream`

Streams and events are objects of the process, by the names that `hold` gave; those that `current` names are of the
thread.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx.node import has_side_effect

from stagewire.graph import Node

NAMESPACE = "stagefold_streams"
_held: dict[str, Any] = {}
_names: dict[int, str] = {}
_count = itertools.count(1)
_thread = threading.local()
_lock = threading.Lock()


def hold(thing: Any) -> str:
    """The name of a stream or event, which is kept from now on."""
    with _lock:
        if id(thing) not in _names:
            name = f"{'event' if isinstance(thing, (torch.Event, torch.cuda.Event)) else 'stream'}_{next(_count)}"
            _names[id(thing)], _held[name] = name, thing
        return _names[id(thing)]


def mentions_streams(nodes: Iterable[Node]) -> bool:
    """Whether some node is one of the operators."""
    return any(is_about_streams(node) for node in nodes)


def is_about_streams(node: Node) -> bool:
    """Whether a node calls one of the operators."""
    return node.target.startswith(f"{NAMESPACE}.")


@contextmanager
def left_by_errors() -> Iterator[None]:
    """An exception that passes sets the streams that were current before, as leaving `with` statements does."""
    if getattr(_thread, "changed", None) is not None:  # a part of a program that sees to it
        yield
        return
    _thread.changed = {}
    try:
        yield
    except BaseException:
        for stream in _thread.changed.values():
            torch.cuda.set_stream(stream)
        raise
    finally:
        _thread.changed = None


def _find(name: str) -> Any:
    known = getattr(_thread, "current", {})
    return known[name] if name in known else _held[name]


def _current(name: str, device: int) -> None:
    if not hasattr(_thread, "current"):
        _thread.current = {}
    _thread.current[name] = torch.cuda.current_stream(device)


def _set(stream: str) -> None:
    found = _find(stream)
    changed = getattr(_thread, "changed", None)
    if changed is not None and found.device_index not in changed:
        changed[found.device_index] = torch.cuda.current_stream(found.device_index)
    torch.cuda.set_stream(found)


def _wait_stream(stream: str, other: str) -> None:
    _find(stream).wait_stream(_find(other))


def _record(event: str, stream: str) -> None:
    _find(event).record(_find(stream))


def _wait_event(stream: str, event: str) -> None:
    _find(event).wait(_find(stream))


def _synchronize(name: str) -> None:
    _find(name).synchronize()


def _synchronize_device(device: int) -> None:
    torch.cuda.synchronize(device)


def _keep(tensor: torch.Tensor, stream: str) -> None:
    tensor.record_stream(_find(stream))


LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
for _function, _parameters in (
    (_current, "str name, int device"),
    (_set, "str stream"),
    (_wait_stream, "str stream, str other"),
    (_record, "str event, str stream"),
    (_wait_event, "str stream, str event"),
    (_synchronize, "str name"),
    (_synchronize_device, "int device"),
    (_keep, "Tensor tensor, str stream"),
):
    _name = _function.__name__[1:]
    LIBRARY.define(f"{_name}({_parameters}) -> ()")
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    has_side_effect(getattr(getattr(torch.ops, NAMESPACE), _name).default)
