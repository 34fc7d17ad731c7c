"""Qualified names of callables, as documents write them: `target_name` and its inverse `resolve`.

    name ::= "torch." attr ("." attr)* | "operator." attr | "math." attr     # of the vocabulary, `absint.vocabulary`
           | "torch.Tensor." attr ".__get__"                                # an attribute of tensors
           | namespace "." op "." overload                                  # torch.ops, "aten.add.Tensor"
           | "torch.ops." namespace "." op                                  # a packet: torch chooses the overload

`resolve` looks a name up, and nothing is imported or evaluated: what the vocabulary does not list is refused, as are
operators that are not registered with torch's dispatcher, or that open files.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from absint.errors import UnknownTarget
from absint.torch_capabilities import TORCH
from absint.vocabulary import listed, names
from stagewire.graph import opens_files

_DEFINED_IN = {"stagefold": "absint.flex_attention", "stagefold_streams": "absint.streams"}
"""Modules that define operators of ours, which mean graphs of names: they are imported when one is asked for."""


def target_name(target: Callable[..., Any]) -> str:
    """The qualified name of a callable; `resolve` is its inverse. Raises `UnknownTarget`.

    >>> target_name(torch.nn.functional.linear), target_name(torch.Tensor.view)
    ('torch.nn.functional.linear', 'torch.Tensor.view')
    >>> target_name(torch.ops.aten.add.Tensor)
    'aten.add.Tensor'
    >>> target_name(torch.ops.aten.add)
    'torch.ops.aten.add'
    """
    if isinstance(target, TORCH.op_overload):
        return str(target)
    if isinstance(target, TORCH.op_overload_packet):
        return f"torch.ops.{target}"
    known = names().get(id(target))
    if known is None:
        raise UnknownTarget(f"{target!r} is no function that a document may name")
    return known[0]


def resolve(name: str) -> Callable[..., Any]:
    """The callable of a qualified name. Raises `UnknownTarget`.

    >>> resolve("operator.add")(1, 2)
    3
    """
    known = listed(name)
    if known is not None:
        return known
    match name.split("."):
        case ["torch", "ops", namespace, operator]:
            return _packet(name, namespace, operator)
        case [namespace, operator, overload] if namespace not in ("torch", "operator", "math"):
            return _overload(name, namespace, operator, overload)
    raise UnknownTarget(f"{name!r} is no function that a document may name")


def find(name: str) -> Callable[..., Any] | None:
    """What `resolve` gives, and None for what this torch does not have.

    >>> find("torch.no_such_function") is None
    True
    """
    try:
        return resolve(name)
    except UnknownTarget:
        return None


def _packet(name: str, namespace: str, operator: str) -> Any:
    """The operator, of which some overload is registered."""
    if opens_files(name):
        raise UnknownTarget(f"{name} opens files, which a document may not")
    if namespace in _DEFINED_IN:
        import_module(_DEFINED_IN[namespace])
    found = getattr(torch.ops, namespace, None)
    packet = getattr(found, operator, None) if isinstance(found, TORCH.op_namespace) else None
    if not isinstance(packet, TORCH.op_overload_packet):
        raise UnknownTarget(f"{name} names no operator of torch or of a library that is imported")
    if not any(_is_registered(packet, overload) for overload in packet.overloads()):
        raise UnknownTarget(f"{name} is no operator on tensors, but of TorchScript's language")
    return packet


def _overload(name: str, namespace: str, operator: str, overload: str) -> Any:
    packet = _packet(name, namespace, operator)
    found = getattr(packet, overload, None)
    if not isinstance(found, TORCH.op_overload):
        raise UnknownTarget(f"{name} names no overload; {operator} has {', '.join(packet.overloads())}")
    if not _is_registered(packet, overload):
        raise UnknownTarget(f"{name} is no operator on tensors, but of TorchScript's language")
    return found


def _is_registered(packet: Any, overload: str) -> bool:
    """Whether the dispatcher has the overload; those of TorchScript's interpreter alone print, save, call Python."""
    try:
        TORCH.find_schema(packet._qualified_op_name, "" if overload == "default" else overload)
    except RuntimeError:
        return False
    return True
