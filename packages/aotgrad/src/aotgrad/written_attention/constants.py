"""Values that a program makes from literals alone, computed here: numbers, and masks such as `tril(ones(n, n))`."""

from __future__ import annotations

from typing import Any

import torch

from absint.targets import resolve
from absint.wire import from_arg
from aotgrad.written_attention.program import Program
from stagewire.expr import Expr
from stagewire.graph import Arg, DeviceArg, NonFinite, Ref, leaves, map_arg

__all__ = ["constant", "number"]

_MAKERS = frozenset(
    f"torch.{name}" for name in ("arange", "zeros", "ones", "full", "eye", "tensor", "scalar_tensor", "linspace")
)
_WORKERS = frozenset(
    f"{prefix}.{name}"
    for prefix in ("torch", "torch.Tensor")
    for name in ("tril", "triu", "to", "bool", "float", "half", "bfloat16", "type", "type_as", "int", "long", "view",
                 "reshape", "unsqueeze", "squeeze", "expand", "transpose", "permute", "contiguous", "clone",
                 "logical_not", "logical_and", "logical_or", "bitwise_not", "eq", "ne", "lt", "le", "gt", "ge", "add",
                 "sub", "mul", "neg", "masked_fill", "where", "zeros_like", "ones_like", "full_like", "new_ones",
                 "new_zeros", "new_full", "new_tensor", "expand_as", "repeat", "detach", "abs", "cumsum", "isinf")
) | frozenset(
    f"operator.{name}"
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "invert", "neg", "add", "sub", "mul", "truediv", "and_", "or_")
) | frozenset(
    f"torch.Tensor.__{name}__"
    for name in ("getitem", "eq", "ne", "lt", "le", "gt", "ge", "invert", "neg", "add", "radd", "sub", "rsub", "mul",
                 "rmul", "truediv", "and", "or")
) | {"operator.getitem", "torch.Tensor.T.__get__", "torch.Tensor.mT.__get__"}  # fmt: skip
_FULL = frozenset(("torch.full", "torch.full_like", "torch.Tensor.new_full"))
_LARGEST = 1 << 24
"""Elements of what is computed here."""


def number(program: Program, arg: Arg) -> float | None:
    """The Python number that an argument is, or that a tensor holds everywhere; None if it is not known."""
    if isinstance(arg, NonFinite):
        return float(arg.text)
    if isinstance(arg, (int, float)):
        return float(arg)
    if not isinstance(arg, Ref) or arg.name not in program.types:
        return None
    node = program.definer(arg.name)
    if node is not None and node.target in _FULL and len(node.args) > 1:
        return number(program, node.args[1]) if _stays(program, {arg.name}) else None
    found = None if program.types[arg.name].shape else constant(program, arg.name)
    return None if found is None or found.is_complex() else float(found)


def constant(program: Program, name: str) -> torch.Tensor | None:
    """The tensor `name`, on the CPU, if literals decide it and nothing may write into it; else None."""
    if name not in program.constants:
        program.constants[name] = _computed(program, name)
    return program.constants[name]


def _computed(program: Program, name: str) -> torch.Tensor | None:
    needed: dict[str, int] = {}
    if not _collect(program, name, needed) or not _stays(program, set(needed)):
        return None
    try:
        with torch.device("cpu"):
            return _run(program, needed)[name]
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None  # the program will raise as well, or means another device


def _run(program: Program, needed: dict[str, int]) -> dict[str, Any]:
    """The values whose calls are given."""
    values: dict[str, Any] = {}
    for index in sorted(set(needed.values())):
        node = program.nodes[index]
        args, kwargs = ([_here(arg) for arg in node.args], {key: _here(arg) for key, arg in node.kwargs.items()})
        result = resolve(node.target)(
            *[from_arg(arg, lambda ref: values[ref.name]) for arg in args],
            **{key: from_arg(arg, lambda ref: values[ref.name]) for key, arg in kwargs.items()},
        )
        values[node.results[0].name] = result
    return values


def _stays(program: Program, names: set[str]) -> bool:
    """Whether nothing writes into these values."""
    return next(program.writers_of(names), None) is None


def _collect(program: Program, name: str, needed: dict[str, int]) -> bool:
    """Add the calls that `name` comes from; whether all of them are known and small."""
    pending = [name]
    while pending:
        name = pending.pop()
        index = program.definers.get(name)
        if name in needed:
            continue
        if index is None:
            return False
        node, kind = program.nodes[index], program.types.get(name)
        size = 1
        for length in () if kind is None else kind.shape:
            if not isinstance(length, int):
                return False
            size *= length
        if kind is None or size > _LARGEST or len(node.results) != 1 or node.target not in _MAKERS | _WORKERS:
            return False
        found: list[str] = []
        if not all(_plain(arg, found) for arg in (*node.args, *node.kwargs.values())):
            return False
        needed[name] = index
        pending += found
    return True


def _plain(arg: Arg, found: list[str]) -> bool:
    """Whether an argument has no symbolic size; the tensors in it are added to `found`."""
    for leaf in leaves(arg):
        if isinstance(leaf, Expr):
            return False
        if isinstance(leaf, Ref):
            found.append(leaf.name)
    return True


def _here(arg: Arg) -> Arg:
    """An argument, with devices replaced by the CPU."""

    def replaced(leaf: Arg) -> Arg:
        if isinstance(leaf, str) and leaf.partition(":")[0] == "cuda":
            return "cpu"
        return DeviceArg("cpu") if isinstance(leaf, DeviceArg) else leaf

    return map_arg(arg, replaced)
