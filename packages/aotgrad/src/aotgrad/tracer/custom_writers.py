"""Operators of other libraries that write into their arguments, in functional form.

    twin ::= (arguments) -> (what they hold afterwards)* (what the operator returns)*

The twin of an operator is one too: it runs the operator on copies of the arguments that it writes, tensors and lists of
them. It is registered in this process when a program first needs it. An argument that nobody has written yet
(`torch.empty`) is not copied: another twin is given its type (size, stride, dtype, device), and makes it. Where an
optional argument is not given, another twin writes the rest.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from absint.meta import map_leaves
from absint.mode import fake_kernel
from absint.overlap import shares_elements
from absint.schema import OpRecord, argument_value, record_of
from absint.targets import resolve
from aotgrad.errors import NoInverse
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
    form = Form(*(
        tuple(position for position in _written(func) if f"_{word}_{arguments[position].name}" in name)
        for word in Form._fields
    ))  # fmt: skip
    if name != _name(func, form):
        return False
    _twin(func, form)
    return True


class Form(NamedTuple):
    """Which twin of an operator: the positions of written arguments that it makes, and of those that are not given."""

    makes: tuple[int, ...] = ()
    without: tuple[int, ...] = ()


NO_FORM = Form()
_WRITABLE = ("Tensor", "Optional[Tensor]", "List[Tensor]")


def has_twin(record: OpRecord) -> bool:
    """Whether an operator that writes can be put so: it writes tensors, and what it returns are fresh ones."""
    schema = record.func._schema
    if record.func.namespace in ("aten", "prims") or record.functional is not None:
        return False
    written = [schema.arguments[position] for position in _written(record.func)]
    fresh = all(r.alias_info is None and str(r.type) == "Tensor" for r in schema.returns)
    typed = not schema.returns or fake_kernel(record.func) is not None
    return bool(written) and all(str(a.type) in _WRITABLE for a in written) and fresh and typed


def _written(func: OpOverload) -> list[int]:
    """Positions of the arguments that an operator writes."""
    arguments = enumerate(func._schema.arguments)
    return [position for position, a in arguments if a.alias_info is not None and a.alias_info.is_write]


def run_twin(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record the twin, let the arguments have what it computes, and return what the operator returns."""
    from aotgrad.tracer.mutations import assign

    given: dict[int, Any] = {
        position: argument_value((place, name), args, kwargs)
        for position, (place, name) in zip(_written(record.func), record.writes, strict=True)
    }
    targets = [value for value in given.values() if value is not None]
    _refuse_overlap(record, targets)
    form = Form(
        tuple(at for at, value in given.items() if at < len(args) and _is_unwritten(mode, value)),
        tuple(at for at, value in given.items() if value is None),
    )
    operands: list[Any] = []
    for position, value in enumerate(args):
        if position in form.makes:
            operands += [list(value.meta.shape), list(value.meta.stride), value.meta.dtype, value.meta.device]
        else:
            operands.append(mode.refs(value))
    twin = _twin(record.func, form)
    refs = mode.emit(twin, tuple(operands), {k: mode.refs(v) for k, v in kwargs.items()})
    refs = (refs,) if len(twin._schema.returns) == 1 else refs
    for target, value in zip(targets, refs, strict=False):
        if isinstance(target, Traced):
            assign(mode, target, value)
        else:
            for one, its in zip(target, value, strict=True):
                assign(mode, one, its)
    made = mode.tensors(tuple(refs[len(targets) :]))
    return made[0] if len(made) == 1 else made or None


def _refuse_overlap(record: OpRecord, targets: list[Any]) -> None:
    """Refuse a call that writes some memory by two arguments: copies would not see each other's numbers."""
    written = [one for target in targets for one in ([target] if isinstance(target, Traced) else target)]
    for place, one in enumerate(written):
        for other in written[:place]:
            if one.memory is other.memory and shares_elements(one.meta, other.meta):
                raise NoInverse(f"{record.name} writes some memory by two of its arguments")


def _is_unwritten(mode: TraceMode, tensor: Any) -> bool:
    """Whether it is the whole of memory that an op has made and nobody has written."""
    if not isinstance(tensor, Traced):
        return False
    node = mode.recorder.maker(mode.content(tensor).name)
    return node is not None and node.target.startswith("aten.") and record_of(resolve(node.target)).is_unwritten  # type: ignore[arg-type]


_TYPE = ("SymInt[] {}_size", "SymInt[] {}_stride", "ScalarType {}_dtype", "Device {}_device")
"""The parameters that stand for one that is not written yet."""


def _name(func: OpOverload, form: Form) -> str:
    arguments = func._schema.arguments
    kind = "".join(f"_{word}_{arguments[at].name}" for word in Form._fields for at in getattr(form, word))
    return f"{func.namespace}_{func._schema.name.rpartition('::')[2]}_{func._overloadname}{kind}"


def _twin(func: OpOverload, form: Form = NO_FORM) -> OpOverload:
    name = _name(func, form)
    with _REGISTRATION:
        packet = getattr(getattr(torch.ops, NAMESPACE), name, None)
        if packet is None:
            _register(func, name, form)
            packet = getattr(getattr(torch.ops, NAMESPACE), name)
        return packet.default


_REGISTRATION = threading.RLock()
"""torch's table of operators belongs to the process: an operator is registered once, by one thread."""


def _register(func: OpOverload, name: str, form: Form) -> None:
    written = [position for position in _written(func) if position not in form.without]
    parameters, target = [a.name for a in func._schema.arguments], str(func)

    def on_copies(copy: Callable[[Any], Any], *args: Any, **kwargs: Any) -> Any:
        rest, ahead = list(args), []
        while rest:
            width = len(_TYPE) if len(ahead) in form.makes else 1
            ahead.append(_memory(*rest[:width]) if width > 1 else rest[0])
            del rest[:width]
        given = dict(zip(parameters, ahead, strict=False)) | kwargs
        copies = [
            given[parameters[position]] if position in form.makes else copy(given[parameters[position]])
            for position in written
        ]
        given |= {parameters[position]: made for position, made in zip(written, copies, strict=True)}
        result = resolve(target)(**given)  # as it is now: a library may have been loaded again
        returned = () if result is None else (result,) if isinstance(result, torch.Tensor) else tuple(result)
        found = (*copies, *returned)
        return found[0] if len(found) == 1 else found

    is_list = [str(func._schema.arguments[position].type) == "List[Tensor]" for position in written]
    results = [*("Tensor[]" if many else "Tensor" for many in is_list), *["Tensor"] * len(func._schema.returns)]
    returns = results[0] if len(results) == 1 else f"({', '.join(results)})"
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, f"({_signature(func, form.makes)}) -> {returns}")
    torch.library.impl(qualified, "CompositeExplicitAutograd")(
        functools.partial(on_copies, lambda tree: map_leaves(tree, lambda x: _alike(x).copy_(x)))
    )
    torch.library.register_fake(qualified)(functools.partial(on_copies, lambda tree: map_leaves(tree, _alike)))


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
