"""Operators of other libraries that write into their arguments, in functional form.

    twin ::= (arguments) -> (what they hold afterwards)* (what the operator returns)*

The twin of an operator is one too: it runs the operator on copies of the arguments that it writes. It is registered in
this process when a program first needs it. An argument that nobody has written yet (`torch.empty`) is not copied:
another twin is given its type (size, stride, dtype, device), and makes it.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from absint.mode import fake_kernel
from absint.schema import OpRecord, argument_value, record_of
from absint.targets import resolve
from aotgrad.tracer.values import Traced

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from aotgrad.tracer.mode import TraceMode


NAMESPACE = "aotgrad_functional"


def restore_twins(targets: Iterable[str], operators: Iterable[OpOverload]) -> bool:
    """Register the twins among the targets of a program that another process has compiled; False where one is of none
    of these operators.

    >>> restore_twins(["aten.add.Tensor"], []), restore_twins(["aotgrad_functional.mylib_fill.default"], [])
    (True, False)
    """
    operators = tuple(operators)
    wanted = {target.split(".")[1] for target in targets if target.startswith(f"{NAMESPACE}.")}
    return all(any(_restored(name, func) for func in operators) for name in wanted)


def _restored(name: str, func: OpOverload) -> bool:
    arguments = func._schema.arguments
    unwritten = tuple(position for position in _written(func) if f"_makes_{arguments[position].name}" in name)
    if name != _name(func, unwritten):
        return False
    _twin(func, unwritten)
    return True


def has_twin(record: OpRecord) -> bool:
    """Whether an operator that writes can be put so: it writes tensors, and what it returns are fresh ones."""
    schema = record.func._schema
    if record.func.namespace in ("aten", "prims") or record.functional is not None:
        return False
    written = [schema.arguments[position] for position in _written(record.func)]
    fresh = all(r.alias_info is None and str(r.type) == "Tensor" for r in schema.returns)
    typed = not schema.returns or fake_kernel(record.func) is not None
    return bool(written) and all(str(a.type) == "Tensor" for a in written) and fresh and typed


def _written(func: OpOverload) -> list[int]:
    """Positions of the arguments that an operator writes."""
    arguments = enumerate(func._schema.arguments)
    return [position for position, a in arguments if a.alias_info is not None and a.alias_info.is_write]


def run_twin(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record the twin, let the arguments have what it computes, and return what the operator returns."""
    from aotgrad.tracer.mutations import assign

    targets: list[Any] = [argument_value(write, args, kwargs) for write in record.writes]
    unwritten = tuple(
        position
        for (position, _), target in zip(record.writes, targets, strict=True)
        if 0 <= position < len(args) and _is_unwritten(mode, target)
    )
    operands: list[Any] = []
    for position, value in enumerate(args):
        if position in unwritten:
            operands += [list(value.meta.shape), list(value.meta.stride), value.meta.dtype, value.meta.device]
        else:
            operands.append(mode.refs(value))
    twin = _twin(record.func, unwritten)
    refs = mode.emit(twin, tuple(operands), {k: mode.refs(v) for k, v in kwargs.items()})
    refs = refs if isinstance(refs, tuple) else (refs,)
    for target, value in zip(targets, refs, strict=False):
        assert isinstance(target, Traced)
        assign(mode, target, value)
    rest = refs[len(targets) :]
    made = mode.tensors(rest)
    return made[0] if len(made) == 1 else made or None


def _is_unwritten(mode: TraceMode, tensor: Traced) -> bool:
    """Whether it is the whole of memory that an op has made and nobody has written."""
    node = mode.recorder.maker(mode.content(tensor).name)
    return node is not None and node.target.startswith("aten.") and record_of(resolve(node.target)).is_unwritten  # type: ignore[arg-type]


_TYPE = ("SymInt[] {}_size", "SymInt[] {}_stride", "ScalarType {}_dtype", "Device {}_device")
"""The parameters that stand for one that is not written yet."""


def _name(func: OpOverload, unwritten: tuple[int, ...]) -> str:
    made = "".join(f"_makes_{func._schema.arguments[position].name}" for position in unwritten)
    return f"{func.namespace}_{func._schema.name.rpartition('::')[2]}_{func._overloadname}{made}"


def _twin(func: OpOverload, unwritten: tuple[int, ...] = ()) -> OpOverload:
    name = _name(func, unwritten)
    with _REGISTRATION:
        packet = getattr(getattr(torch.ops, NAMESPACE), name, None)
        if packet is None:
            _register(func, name, unwritten)
            packet = getattr(getattr(torch.ops, NAMESPACE), name)
        return packet.default


_REGISTRATION = threading.RLock()
"""torch's table of operators belongs to the process: an operator is registered once, by one thread."""


def _register(func: OpOverload, name: str, unwritten: tuple[int, ...]) -> None:
    written = _written(func)
    parameters, target = [a.name for a in func._schema.arguments], str(func)

    def on_copies(copy: Any, *args: Any, **kwargs: Any) -> Any:
        rest, ahead = list(args), []
        while rest:
            width = len(_TYPE) if len(ahead) in unwritten else 1
            ahead.append(_memory(*rest[:width]) if width > 1 else rest[0])
            del rest[:width]
        given = [*ahead, *(kwargs[key] for key in parameters[len(ahead) :] if key in kwargs)]
        positional = {parameters[at]: value for at, value in enumerate(given)}
        copies = [
            positional[parameters[position]] if position in unwritten else copy(positional[parameters[position]])
            for position in written
        ]
        positional |= {parameters[position]: made for position, made in zip(written, copies, strict=True)}
        result = resolve(target)(**positional)  # as it is now: a library may have been loaded again
        returned = () if result is None else (result,) if isinstance(result, torch.Tensor) else tuple(result)
        found = (*copies, *returned)
        return found[0] if len(found) == 1 else found

    results = len(written) + len(func._schema.returns)
    returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, f"({_signature(func, unwritten)}) -> {returns}")
    torch.library.impl(qualified, "CompositeExplicitAutograd")(
        functools.partial(on_copies, lambda x: _alike(x).copy_(x))
    )
    torch.library.register_fake(qualified)(functools.partial(on_copies, _alike))


def _signature(func: OpOverload, unwritten: tuple[int, ...]) -> str:
    """The parameters of an operator, none of which is written; of some, their types."""
    text = str(func._schema)
    inside = re.sub(r"\([a-z]+!( -> )?\)", "", text[text.index("(") + 1 : text.rindex(") -> ")])
    for position in unwritten:
        name = func._schema.arguments[position].name
        inside = re.sub(rf"\bTensor {name}\b", ", ".join(one.format(name) for one in _TYPE), inside)
    return inside


def _memory(size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def _alike(x: torch.Tensor) -> torch.Tensor:
    """Memory of the same layout."""
    return _memory(x.size(), x.stride(), x.dtype, x.device)
