"""The meaning of a `LoopGraph`, statement by statement on whole torch tensors: slow, plain, and eager's own arithmetic.

Every value is a tensor over the points (outer axes, then the section's inner axes); memory is a flat tensor for each
buffer, without its storage offset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from absint.philox import uniform
from codegen.runtime.arguments import operator, resolve
from stagewire import index as ix
from stagewire.graph import NonFinite, Ref, references
from stagewire.loop import (
    AxisAtom,
    Compute,
    Extern,
    Index,
    IndexValue,
    Kernel,
    Load,
    LoopGraph,
    Reduce,
    Scan,
    Section,
    Statement,
    Store,
    ValueAtom,
)
from stagewire.stage import Table
from stagewire.types import TensorType

Memory = dict[str, torch.Tensor]

SAME_NAME = """
    neg abs ceil floor round trunc exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos
    atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid bitwise_not isnan isinf signbit
    logical_not add mul div remainder fmod pow atan2 hypot copysign nextafter maximum minimum fmax fmin eq ne lt le
    gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor where
    """.split()  # noqa: SIM905


OPS: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in SAME_NAME},
    "sub": lambda a, b: torch.logical_xor(a, b) if a.dtype == torch.bool else a - b,
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "sign": torch.sign,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "fma": lambda a, b, c: a * b + c,
    "check_range": lambda a, b, c: _between(a, b, c),
    "check_index": lambda a, b: _inside(a, b),
    "wrap_index": lambda a, b: _inside(torch.where(a < 0, a + b, a), b),
    "philox": lambda seed, offset, element, threads, width: uniform(
        _single(seed), _single(offset), element, _single(threads), _single(width)
    ),
}


OF_ALL = Table("stagefold.meanings", OPS)
"""With the prims of other vocabularies, which a computation names by "namespace.name"."""


def _inside(index: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    if ((index < 0) | (index >= size)).any():
        raise IndexError("an index is out of range for the dimension that it indexes")
    return index


def _between(value: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    if not ((value >= low) & (value <= high)).all():
        raise RuntimeError("a value is out of the range that the operator takes")
    return value


def _single(numbers: torch.Tensor) -> int:
    (number,) = numbers.unique().tolist()
    return number


class Points:
    """The grid of one section: `axes` maps each axis to its tensor of coordinates."""

    def __init__(self, kernel: Kernel, section: Section) -> None:
        every = (*kernel.axes, *section.axes)
        self.shape = tuple(int(axis.size) for axis in every)  # type: ignore[arg-type]
        self.inner = len(section.axes)
        self.axes: dict[str, torch.Tensor] = {}
        for position, axis in enumerate(every):
            shape = [1] * len(every)
            shape[position] = self.shape[position]
            self.axes[axis.name] = torch.arange(self.shape[position]).reshape(shape)


def run_kernel(kernel: Kernel, types: Mapping[str, TensorType], memory: Memory) -> None:
    """Run all points of a kernel."""
    outer: dict[str, torch.Tensor] = {}
    for section in kernel.sections:
        points = Points(kernel, section)
        values = {name: value.reshape((*value.shape, *[1] * points.inner)) for name, value in outer.items()}
        for statement in section.statements:
            for name, value in _run(statement, points, values, types, memory).items():
                values[name] = value
                if isinstance(statement, Reduce) or not section.axes:
                    outer[name] = value.reshape(value.shape[: len(kernel.axes)])


def _run(
    statement: Statement,
    points: Points,
    values: dict[str, torch.Tensor],
    types: Mapping[str, TensorType],
    memory: Memory,
) -> dict[str, torch.Tensor]:
    match statement:
        case Load():
            return {statement.result: _load(statement, points, values, memory)}
        case Store():
            _store(statement, points, values, memory)
            return {}
        case Compute():
            return {statement.result: _compute(statement, points, values)}
        case IndexValue(result, index, dtype):
            return {result: _index(index, points, values).to(getattr(torch, dtype))}
        case Reduce():
            return _reduce(statement, points, values)
        case Scan(result=result):
            return {result: _scan(statement, points, values)}
    raise AssertionError(statement)


def _index(index: Index, points: Points, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    def named(atom: AxisAtom | ValueAtom) -> torch.Tensor:
        return points.axes[atom.name] if isinstance(atom, AxisAtom) else values[atom.name].long()

    return ix.evaluate(index, named) + torch.zeros(points.shape, dtype=torch.int64)


def _operand(operand: Any, dtype: torch.dtype, points: Points, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if isinstance(operand, Ref):
        return values[operand.name].expand(points.shape)
    number = float(operand.text) if isinstance(operand, NonFinite) else operand
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    return torch.tensor(number, dtype=wide).expand(points.shape)


def _load(load: Load, points: Points, values: dict[str, torch.Tensor], memory: Memory) -> torch.Tensor:
    dtype = getattr(torch, load.dtype)
    place = _index(load.index, points, values)
    if load.mask is None:
        return memory[load.buffer][place].to(dtype)
    mask = values[load.mask.name].expand(points.shape)
    found = memory[load.buffer]
    inside = found[torch.where(mask, place, 0)].to(dtype) if found.numel() else torch.zeros(points.shape, dtype=dtype)
    return torch.where(mask, inside, _operand(load.other, dtype, points, values).to(dtype))


def _store(store: Store, points: Points, values: dict[str, torch.Tensor], memory: Memory) -> None:
    target = memory[store.buffer]
    place = _index(store.index, points, values)
    value = _operand(store.value, target.dtype, points, values).to(target.dtype)
    if store.mask is not None:
        mask = values[store.mask.name].expand(points.shape)
        place, value = place[mask], value[mask]
    if store.mode == "sum":
        target[place.reshape(-1)] = 0
    target.index_put_((place.reshape(-1),), value.reshape(-1), accumulate=store.mode != "set")


def _compute(statement: Compute, points: Points, values: dict[str, torch.Tensor]) -> torch.Tensor:
    dtype = getattr(torch, statement.dtype)
    if statement.op == "bitcast":
        return _operand(statement.operands[0], dtype, points, values).contiguous().view(dtype)
    if statement.op == "convert":
        return _operand(statement.operands[0], dtype, points, values).to(dtype)
    first = 1 if statement.op == "where" else 0
    kinds = [values[o.name].dtype for o in statement.operands[first:] if isinstance(o, Ref)]
    kind = kinds[0] if kinds else dtype
    operands = [_operand(o, kind, points, values) for o in statement.operands[first:]]
    wide = torch.float32 if kind in (torch.bfloat16, torch.float16) else kind
    operands = [o.to(wide) for o in operands]
    if first:
        operands.insert(0, _operand(statement.operands[0], torch.bool, points, values))
    result = _clamped(statement, operands) if kind.is_floating_point else None
    result = OF_ALL[statement.op](*operands) if result is None else result
    if result.dtype != torch.bool and statement.op != "philox":
        result = result.to(kind)
    return result.to(dtype)


def _clamped(statement: Compute, operands: list[torch.Tensor]) -> torch.Tensor | None:
    """A maximum or minimum with a number, as eager's clamp: where both are zeros, the value's own stays."""
    numbers = [at for at, o in enumerate(statement.operands) if not isinstance(o, Ref)]
    if statement.op not in ("maximum", "minimum") or len(numbers) != 1 or operands[numbers[0]].isnan().any():
        return None
    clamp = torch.clamp_min if statement.op == "maximum" else torch.clamp_max
    value, bound = operands[1 - numbers[0]], operands[numbers[0]]
    return clamp(value, bound.reshape(-1)[0].item()) if bound.numel() else value.clone()


def _reduce(statement: Reduce, points: Points, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    dtype = getattr(torch, statement.dtype)
    operand = _operand(statement.operand, dtype, points, values)
    outer = points.shape[: len(points.shape) - points.inner]
    flat = operand.reshape((*outer, math.prod(points.shape[len(outer) :])))
    if statement.reduction == "welford":
        return _welford(statement, flat.to(dtype), points)
    match statement.reduction:
        case "sum":
            found = flat.to(torch.float64 if dtype.is_floating_point else dtype).sum(-1).to(dtype)
        case "prod":
            found = flat.to(torch.float64 if dtype.is_floating_point else dtype).prod(-1).to(dtype)
        case "max" | "min" | "argmax" | "argmin" as which:
            work = flat.to(torch.int32) if flat.dtype == torch.bool else flat
            found = getattr(torch, f"a{which}" if not which.startswith("arg") else which)(work, dim=-1).to(dtype)
        case "any" | "all" as which:
            found = getattr(torch, which)(flat != 0, dim=-1).to(dtype)
        case "xor_sum":
            found = torch.zeros(outer, dtype=dtype)
            for column in flat.to(dtype).unbind(-1):
                found = found ^ column
    return {statement.results[0]: found.reshape((*outer, *[1] * points.inner))}


def _scan(statement: Scan, points: Points, values: dict[str, torch.Tensor]) -> torch.Tensor:
    dtype = getattr(torch, statement.dtype)
    outer = points.shape[: len(points.shape) - points.inner]
    flat = _operand(statement.operand, dtype, points, values).reshape((*outer, -1))
    wide = flat.double() if dtype.is_floating_point else flat
    match statement.scan:
        case "sum":
            found = wide.cumsum(-1)
        case "prod":
            found = wide.cumprod(-1)
        case "max":
            found = wide.cummax(-1).values
        case "min":
            found = wide.cummin(-1).values
        case "logaddexp":
            found = wide.logcumsumexp(-1)
    return found.to(dtype).reshape(points.shape)


def _welford(statement: Reduce, flat: torch.Tensor, points: Points) -> dict[str, torch.Tensor]:
    mean = flat.double().mean(-1)
    squares = ((flat.double() - mean[..., None]) ** 2).sum(-1)
    count = torch.full_like(mean, flat.shape[-1])
    tail = [1] * points.inner
    results = (mean, squares, count)
    return {
        name: value.to(flat.dtype).reshape((*value.shape, *tail))
        for name, value in zip(statement.results, results, strict=True)
    }


def run_graph(graph: LoopGraph, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Flat memory of every output; inputs are flat and start at their offsets. Only views share memory."""
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    types = {name: buffer.type for name, buffer in buffers.items()}
    memory: Memory = {name: _owned(tensor) for name, tensor in inputs.items()}

    def provide(name: str) -> torch.Tensor:
        buffer = buffers[name]
        if buffer.role == "view":
            assert buffer.base is not None
            start = buffer.type.storage_offset - types[buffer.base].storage_offset
            base = provide(buffer.base)
            if start < 0:  # an input that is addressed from the start of its storage
                return base.as_strided((base.numel() - start,), (1,), base.storage_offset() + start)  # type: ignore
            return base[start:]  # type: ignore[misc]
        if name not in memory:
            memory[name] = blank(buffer.type)
        return memory[name]

    for step in graph.steps:
        if isinstance(step, Kernel):
            used = [s.buffer for section in step.sections for s in section.statements if isinstance(s, Load | Store)]
            run_kernel(step, types, {name: provide(name) for name in used})
        elif isinstance(step, Extern):
            used = [name for arg in (*step.args, *step.kwargs.values()) for name in references(arg)]
            tensors = {name: windowed(provide(name), types[name]) for name in used}
            args = [resolve(arg, tensors, {}) for arg in step.args]
            made = operator(step.target)(*args, **{k: resolve(arg, tensors, {}) for k, arg in step.kwargs.items()})
            results = made if isinstance(made, tuple | list) else () if made is None else (made,)
            for name, value in zip(step.results, results, strict=True):
                if name:
                    memory[name] = flattened(value, types[name])
    return {name: provide(name)[: span(types[name])] for arg in graph.outputs for name in references(arg)}


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that stands in its storage where the tensor does in its own."""
    storage = tensor.untyped_storage().clone()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore


def windowed(flat: torch.Tensor, type_: TensorType) -> torch.Tensor:
    """Flat memory as a tensor of `type_`."""
    return flat.as_strided(type_.shape, type_.stride)  # type: ignore[arg-type]


def flattened(tensor: torch.Tensor, type_: TensorType) -> torch.Tensor:
    """The memory that a tensor would have in the strides of `type_`."""
    flat = blank(type_)
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in type_.stride)
    windowed(flat, type_)[once].copy_(tensor[once])  # where elements share memory, one of them is all
    return flat


def span(type_: TensorType) -> int:
    """How many elements of memory a tensor of this type reaches over."""
    if 0 in type_.shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(type_.shape, type_.stride, strict=True))  # type: ignore


def blank(type_: TensorType) -> torch.Tensor:
    """Zeroed flat memory for a type."""
    return torch.zeros(span(type_), dtype=getattr(torch, type_.dtype))
