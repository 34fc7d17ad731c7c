"""The callables that a document may name: functions of torch on tensors, methods of tensors, `operator` and `math`.

A closed list, made of torch's own lists: what it registers as ATen functions, what it defines in modules of nothing but
tensor functions, and the few others named here. So a document cannot reach the modules that torch has imported, nor
functions that read files, compile or run code.
"""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from absint.torch_capabilities import TORCH
from stagewire.graph import opens_files

_IN_C = ("nn", "special", "linalg", "fft", "sparse", "nested")
"""Modules of ATen's functions in torch._C."""

NAMESPACES: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.Tensor", torch.Tensor),
    ("torch.special", torch.special),
    ("torch.linalg", torch.linalg),
    ("torch.fft", torch.fft),
    *[(f"torch._C._{name}", getattr(TORCH, name)) for name in _IN_C if TORCH.has(name)],
    ("torch.nn.init", torch.nn.init),
    ("torch.functional", torch.functional),
    *[("torch.masked._ops", TORCH.masked_functions)] * TORCH.has("masked_functions"),
    ("torch.random", torch.random),
    ("operator", operator),
    ("math", math),
)
"""Where names are looked for, best name first: a function found twice is written by the first one's name."""

_NAMESPACE_OF = dict(NAMESPACES)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_IN_PYTHON = _words(
    "torch.nn.functional torch.functional torch.masked._ops torch.nn.init torch.random torch._tensor torch._lowrank "
    "torch._lobpcg"
)
"""Modules whose functions compute tensors from tensors (or the state of a generator)."""

_OTHERS = _words(
    "torch.Tensor torch.Size torch.from_numpy torch.autograd.grad torch.autograd.backward "
    "torch.autograd.forward_ad.make_dual torch.autograd.forward_ad.unpack_dual torch.nn.parameter.Parameter "
    "torch._C._set_grad_enabled torch.amp.autocast_mode._enter_autocast torch.amp.autocast_mode._exit_autocast "
    "torch.set_autocast_enabled torch.set_autocast_dtype torch.set_autocast_cache_enabled torch.clear_autocast_cache "
    "torch.autocast_increment_nesting torch.autocast_decrement_nesting torch.sym_int torch.sym_float torch.sym_max "
    "torch.sym_min torch.sym_not torch.sym_sum torch.sym_ite torch._sym_sqrt"
)
"""Others, by name; with them the types of tensors (`torch.FloatTensor`) and the methods of `_is_method`."""

_NO_FUNCTIONS = frozenset(("attrgetter", "itemgetter", "methodcaller", "call", "__call__"))
"""Of `operator`: they take names or functions."""

_SPECIAL_METHODS = _words(
    "abs add and bool complex contains delitem div eq float floordiv ge getitem gt iadd iand idiv ifloordiv ilshift "
    "imod imul index int invert ior ipow irshift isub iter itruediv ixor le len long lshift lt matmul mod mul ne neg "
    "nonzero or pos pow radd rand rdiv reversed rfloordiv rlshift rmatmul rmod rmul ror rpow rrshift rshift rsub "
    "rtruediv rxor setitem sub truediv xor"
)
"""Operators of tensors, as methods, without underscores."""

_NO_METHODS = _words(
    "_clear_non_serializable_cached_data _dtensor__new__ _make_subclass _make_wrapper_subclass _reduce_ex_internal "
    "_typed_storage apply_ data_ptr map2_ map_ module_load numpy register_hook register_post_accumulate_grad_hook "
    "share_memory_ storage storage_type untyped_storage"
)
"""Of tensors: they call functions, make other objects, or hand memory out."""

_WRITTEN = frozenset(("data", "grad", "imag", "real", "requires_grad"))
"""Attributes of tensors that may be set."""


def listed(name: str) -> Callable[..., Any] | None:
    """The callable of a name, and None for one that is not of the vocabulary; operators (`torch.ops`) have their own.

    >>> listed("torch.relu") is torch.relu, listed("torch.os.system"), listed("torch.load")
    (True, None, None)
    """
    if name in _OTHERS:
        return _at(name)
    prefix, _, last = name.rpartition(".")
    namespace = _NAMESPACE_OF.get(prefix)
    # A module's own names: torch imports others where they are asked for.
    value = vars(namespace).get(last) if isinstance(namespace, types.ModuleType) else getattr(namespace, last, None)
    return value if value is not None and _is_listed(prefix, last, value) else _attribute_access(name)


@cache
def names() -> dict[int, tuple[str, Any]]:
    """The name that documents write, by identity; the callable is kept so that its identity stays its own."""
    table: dict[int, tuple[str, Any]] = {}
    others = ((name, value) for name in sorted(_OTHERS) if (value := _at(name)) is not None)
    for name, value in (*_entries(), *others):
        known = table.get(id(value))
        if known is None or (known[0].rpartition(".")[2].startswith("_") and _is_better(name, known[0])):
            table[id(value)] = (name, value)
    return table


def _is_better(name: str, known: str) -> bool:
    """A public name in the same namespace is better than a private one."""
    prefix, _, last = name.rpartition(".")
    return known.rpartition(".")[0] == prefix and not last.startswith("_")


def _attribute_access(name: str) -> Callable[..., Any] | None:
    """`torch.Tensor.<attribute>.__get__` or `.__set__`; None where it is no name of that form, or not for documents."""
    head, _, access = name.rpartition(".")
    prefix, _, attribute = head.rpartition(".")
    is_listed = access == "__get__" or (access == "__set__" and attribute in _WRITTEN)
    if prefix != "torch.Tensor" or attribute.startswith("_") or not is_listed:
        return None
    descriptor = getattr(torch.Tensor, attribute, None)
    return getattr(descriptor, access) if isinstance(descriptor, types.GetSetDescriptorType | property) else None


def _entries() -> Iterator[tuple[str, Any]]:
    """What the namespaces have; an absent or changing attribute is none."""
    for prefix, namespace in NAMESPACES:
        for name in sorted(dir(namespace)):
            try:
                value = getattr(namespace, name)
            except (AttributeError, RuntimeError):
                continue
            if _is_listed(prefix, name, value) and getattr(namespace, name) is value:
                yield f"{prefix}.{name}", value


@cache
def _of_aten() -> frozenset[int]:
    homes = [getattr(TORCH, name) for name in ("variable_functions", *_IN_C) if TORCH.has(name)]
    functions = (getattr(home, name) for home in homes for name in dir(home) if not name.startswith("__"))
    return frozenset(id(function) for function in functions if isinstance(function, types.BuiltinFunctionType))


def _is_listed(prefix: str, name: str, value: Any) -> bool:
    match prefix:
        case "torch.Tensor":
            return _is_method(name, value)
        case "operator" | "math":
            return isinstance(value, types.BuiltinFunctionType) and name not in _NO_FUNCTIONS
        case _ if isinstance(value, types.FunctionType):
            return value.__module__ in _IN_PYTHON
        case _:
            is_type = isinstance(value, type) and type(value).__name__ == "tensortype"
            return is_type or (id(value) in _of_aten() and not opens_files(f"{prefix}.{name}"))


def _is_method(name: str, value: Any) -> bool:
    if not isinstance(value, types.FunctionType | types.MethodDescriptorType | types.WrapperDescriptorType):
        return False
    if name.startswith("__"):
        return name.strip("_") in _SPECIAL_METHODS
    return name not in _NO_METHODS


def _at(name: str) -> Any:
    """What stands under a name of `_OTHERS`; None in a torch without it."""
    value: Any = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
    return value
