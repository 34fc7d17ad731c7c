"""The reference meaning of a Loop document, in numpy. Slow, and written to be read. Needs numpy (extra `testing`).

    interpret(graph, inputs, externs) -> outputs

Each section runs once, vectorised over a grid of its outer and inner axes. Externs come from the caller's table:
target -> function of numpy arrays and literal arguments. bfloat16 tensors are float32 arrays at this border.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from loopir.errors import NotInterpretable

try:
    import numpy as np
except ModuleNotFoundError as error:
    message = "the reference meaning is computed by numpy, which is not installed"
    raise NotInterpretable(message, fix='pip install "stagefold-loopir[testing]", or numpy.') from error

from loopir import numpy_ops
from loopir.numpy_ops import Array, held_type, rounded
from stagewire import index as ix
from stagewire import loop
from stagewire.expr import Dim, Expr, evaluate
from stagewire.graph import Arg, DTypeArg, List, NonFinite, Ref, Tuple, Value
from stagewire.loop_ops import PREDICATES
from stagewire.statements import select
from stagewire.symbols import symbol_places
from stagewire.types import ITEM_SIZE, ScalarType, TensorType, ValueType

Externs = Mapping[str, Callable[..., object]]


def interpret(
    graph: loop.LoopGraph,
    inputs: Sequence[Array],
    externs: Externs | None = None,
    symbols: Mapping[str, int] | None = None,
) -> tuple[object, ...]:
    """Run the steps in order; outputs are arrays (or the literals that the document says).

    `symbols`: values of size symbols, beside those that the inputs are and have as sizes.
    """
    memory = Memory(graph.buffers, {**(symbols or {}), **symbol_values(graph, inputs)})
    for name, value in zip(graph.inputs, inputs, strict=True):
        if name not in graph.symbols:
            memory.set(name, value)
    for step in graph.steps:
        match step:
            case loop.Kernel():
                run_kernel(step, memory)
            case loop.Extern():
                _run_extern(step, memory, {} if externs is None else externs)
            case loop.Free(buffer):
                memory.free(buffer)
    return tuple(_result(output, memory) for output in graph.outputs)


def symbol_values(graph: loop.LoopGraph, inputs: Sequence[Array]) -> dict[str, int]:
    """What the inputs say of the symbols (arrays are logical values: they have no strides)."""
    types: dict[str, ValueType] = {buffer.name: buffer.type for buffer in graph.buffers}
    types |= dict.fromkeys(graph.symbols, ScalarType("int"))
    places = symbol_places([Value(name, types[name]) for name in graph.inputs])
    return {
        name: int(inputs[place.input]) if place.what == "number" else np.shape(inputs[place.input])[place.dimension]
        for name, place in places.items()
        if place.what != "stride"
    }


def _result(output: Arg, memory: Memory) -> object:
    if isinstance(output, Expr):
        return evaluate(output, memory.symbols)
    if not isinstance(output, Ref):
        return output
    buffer = memory.buffers[output.name]
    if buffer.role == "kernel" and output.name not in memory.bytes:
        memory.allocate(output.name)
    return memory.get(output.name)


def _run_extern(step: loop.Extern, memory: Memory, externs: Externs) -> None:
    if step.target not in externs:
        raise NotInterpretable(
            f"no function for the extern {step.target}; given: {', '.join(sorted(externs)) or 'none'}"
        )
    args = [_argument(arg, memory) for arg in step.args]
    kwargs = {key: _argument(arg, memory) for key, arg in step.kwargs.items()}
    returned = externs[step.target](*args, **kwargs)
    values = returned if isinstance(returned, tuple) else (returned,)
    for name, value in zip(step.results, values, strict=True):
        if name:
            memory.set(name, np.asarray(value))


def _argument(arg: Arg, memory: Memory) -> object:
    match arg:
        case Ref(name):
            if memory.buffers[name].role == "kernel":
                memory.allocate(name)
            return memory.get(name)
        case List(items) | Tuple(items):
            return [_argument(item, memory) for item in items]
        case Expr():
            return evaluate(arg, memory.symbols)
        case NonFinite(text):
            return float(text)
        case DTypeArg(name):
            return numpy_ops.held_type(name)
    return arg


def run_kernel(kernel: loop.Kernel, memory: Memory) -> None:
    """Run all points of one kernel on memory."""
    _KernelRun(kernel, memory).run()


class _KernelRun:
    """One kernel: values by name, each an array over (outer axes, inner axes of its section)."""

    def __init__(self, kernel: loop.Kernel, memory: Memory) -> None:
        self.kernel = kernel
        self.memory = memory
        self.outer: dict[str, tuple[Array, str]] = {}
        self.inner: dict[str, tuple[Array, str]] = {}
        self.axes: dict[str, Array] = {}
        self.grid: tuple[int, ...] = ()
        self.rank = len(kernel.axes)

    def run(self) -> None:
        """All sections in order."""
        names = (s.buffer for s in select(self.kernel.sections, loop.Store))
        for name in dict.fromkeys(names):
            if self.memory.buffers[name].role == "kernel":
                self.memory.allocate(name)
        for section in self.kernel.sections:
            self._section(section)

    def _size(self, size: Dim) -> int:
        return evaluate(size, self.memory.symbols)

    def _section(self, section: loop.Section) -> None:
        axes: tuple[loop.Axis, ...] = (*self.kernel.axes, *section.axes)
        self.grid = tuple(self._size(axis.size) for axis in axes)
        self.axes = {}
        for position, axis in enumerate(axes):
            shape = [1] * len(axes)
            shape[position] = self.grid[position]
            self.axes[axis.name] = np.arange(self.grid[position], dtype=np.int64).reshape(shape)
        self.inner = {}
        for statement in section.statements:
            match statement:
                case loop.Load():
                    self._define(statement.result, self._load(statement), statement.dtype, section)
                case loop.Store():
                    self._store(statement)
                case loop.Compute():
                    self._define(statement.result, self._compute(statement), statement.dtype, section)
                case loop.IndexValue(result, index, dtype):
                    self._define(result, numpy_ops.rounded(self._index(index), dtype), dtype, section)
                case loop.Reduce():
                    self._reduce(statement)
                case loop.Scan(result, _, _, dtype):
                    self._define(result, self._scan(statement), dtype, section)

    def _define(self, name: str, value: Array, dtype: str, section: loop.Section) -> None:
        if section.axes:
            self.inner[name] = (value, dtype)
        else:
            self.outer[name] = (value, dtype)

    def _value(self, name: str) -> tuple[Array, str]:
        if name in self.inner:
            return self.inner[name]
        value, dtype = self.outer[name]
        missing = len(self.grid) - value.ndim
        return (value.reshape(value.shape + (1,) * missing) if value.ndim == self.rank else value), dtype

    def _operand(self, operand: loop.Operand, dtype: str) -> tuple[Array, str]:
        match operand:
            case Ref(name):
                return self._value(name)
            case NonFinite(text):
                return numpy_ops.rounded(np.array(float(text)), dtype), dtype
            case _:
                return numpy_ops.rounded(np.array(operand), dtype), dtype

    def _index(self, index: loop.Index) -> Array:
        return np.array(ix.evaluate(index, self._named, self._size), np.int64)

    def _named(self, atom: loop.AxisAtom | loop.ValueAtom) -> Array:
        return self.axes[atom.name] if isinstance(atom, loop.AxisAtom) else self._value(atom.name)[0].astype(np.int64)

    def _load(self, load: loop.Load) -> Array:
        flat, index = self.memory.flat(load.buffer), self._index(load.index)
        dtype = self.memory.buffers[load.buffer].type.dtype
        if load.mask is None:
            self._check(index, flat, load.buffer)
            return decode(flat[index], dtype)
        mask = self._value(load.mask.name)[0]
        index, mask = np.broadcast_arrays(index, mask)
        self._check(index[mask], flat, load.buffer)
        if flat.size == 0:
            return np.broadcast_to(self._operand(load.other, dtype)[0], mask.shape)
        values = decode(flat[np.where(mask, index, 0)], dtype)
        return np.where(mask, values, self._operand(load.other, dtype)[0])

    def _check(self, index: Array, flat: Array, buffer: str) -> None:
        if math.prod(self.grid) and index.size and (index.min() < 0 or index.max() >= flat.size):
            raise NotInterpretable(
                f"{self.kernel.name} touches element {index.min()}..{index.max()} of {buffer}, which has {flat.size}"
            )

    def _store(self, store: loop.Store) -> None:
        dtype = self.memory.buffers[store.buffer].type.dtype
        flat = self.memory.flat(store.buffer)
        value, _ = self._operand(store.value, dtype)
        index = np.broadcast_to(self._index(store.index), self.grid)
        value = np.broadcast_to(value, self.grid)
        if store.mask is not None:
            mask = np.broadcast_to(self._value(store.mask.name)[0], self.grid)
            index, value = index[mask], value[mask]
        self._check(index, flat, store.buffer)
        if store.mode == "sum":
            flat[index] = 0
        if store.mode == "set":
            flat[index] = encode(value, dtype)
        elif dtype == "bfloat16":
            wide = decode(flat, dtype).copy()
            np.add.at(wide, index, value)
            flat[...] = encode(numpy_ops.to_bfloat16(wide), dtype)
        else:
            np.add.at(flat, index, value)

    def _compute(self, statement: loop.Compute) -> Array:
        op, operands = statement.op, statement.operands
        if op == "convert":
            value, _ = self._operand(operands[0], statement.dtype)
            return numpy_ops.rounded(value, statement.dtype)
        if op == "bitcast":
            value, dtype = self._operand(operands[0], statement.dtype)
            bits = np.ascontiguousarray(encode(value, dtype))
            kind = np.uint16 if statement.dtype == "bfloat16" else numpy_ops.held_type(statement.dtype)
            return decode(bits.view(kind).reshape(np.shape(value)), statement.dtype)
        dtype = self._operand_dtype(statement)
        condition = [self._operand(operands[0], "bool")[0]] if op == "where" else []
        values = [self._operand(operand, dtype)[0] for operand in operands[len(condition) :]]
        result = numpy_ops.apply(op, condition + values, dtype)
        return result if op in PREDICATES else numpy_ops.rounded(result, statement.dtype)

    def _operand_dtype(self, statement: loop.Compute) -> str:
        if statement.op == "where":
            return statement.dtype
        for operand in statement.operands:
            if isinstance(operand, Ref):
                return self._value(operand.name)[1]
        return statement.dtype

    def _scan(self, statement: loop.Scan) -> Array:
        value, _ = self._operand(statement.operand, statement.dtype)
        outer, count = self.grid[: self.rank], math.prod(self.grid[self.rank :])
        table = np.broadcast_to(value, self.grid).reshape((*outer, count))
        found = numpy_ops.scan(statement.scan, table, statement.dtype)
        return numpy_ops.rounded(found, statement.dtype).reshape(self.grid)

    def _reduce(self, statement: loop.Reduce) -> None:
        value, _ = self._operand(statement.operand, statement.dtype)
        outer, inner = self.grid[: self.rank], self.grid[self.rank :]
        count = math.prod(inner)
        table = np.broadcast_to(value, self.grid).reshape((*outer, count))
        results = numpy_ops.reduce(statement.reduction, table, count, statement.dtype)
        for name, result in zip(statement.results, results, strict=True):
            self.outer[name] = (numpy_ops.rounded(result, statement.dtype), statement.dtype)


POISON = 0x5A


class Memory:
    """Allocates, frees and shares; values of freed and of never written memory are recognisable rubbish."""

    def __init__(self, buffers: tuple[loop.Buffer, ...], symbols: Mapping[str, int]) -> None:
        self.buffers = {buffer.name: buffer for buffer in buffers}
        self.symbols = symbols
        self.bytes: dict[str, Array] = {}

    def shape(self, type: TensorType) -> tuple[int, ...]:
        """The shape in numbers."""
        return tuple(evaluate(size, self.symbols) for size in type.shape)

    def allocate(self, name: str) -> None:
        """Memory for a kernel's or extern's buffer, or that of the buffer it takes over."""
        buffer = self.buffers[name]
        if name in self.bytes:
            return
        if buffer.reuse is not None:
            self.bytes[name] = self.bytes[buffer.reuse]
            return
        shape, stride = self.shape(buffer.type), self._stride(buffer.type)
        last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else -1
        self.bytes[name] = np.full((last + 1) * ITEM_SIZE[buffer.type.dtype], POISON, np.uint8)

    def _stride(self, type: TensorType) -> tuple[int, ...]:
        return tuple(evaluate(step, self.symbols) for step in type.stride)

    def free(self, name: str) -> None:
        """Forget the buffer; reading it later is an error."""
        memory = self.bytes.pop(name)
        memory.fill(POISON)

    def flat(self, name: str) -> Array:
        """The elements from the buffer's first on, as stored (bfloat16 as uint16 bits)."""
        buffer = self.buffers[name]
        if buffer.role == "view":
            base = self.buffers[buffer.base or ""]
            start = evaluate(buffer.type.storage_offset - base.type.storage_offset, self.symbols)
            return self.flat(base.name)[start:]
        if name not in self.bytes:
            raise NotInterpretable(f"buffer {name} has no memory here: not allocated yet, or freed")
        dtype = buffer.type.dtype
        stored = np.uint16 if dtype == "bfloat16" else held_type(dtype)
        return self.bytes[name].view(stored)

    def set(self, name: str, value: Array) -> None:
        """Give a buffer a logical value."""
        buffer = self.buffers[name]
        self.bytes.pop(name, None)
        self.allocate(name)
        shape = self.shape(buffer.type)
        if tuple(np.shape(value)) != shape:
            raise NotInterpretable(f"{name} has shape {shape}, the value {np.shape(value)}")
        self.window(name)[...] = encode(rounded(np.asarray(value), buffer.type.dtype), buffer.type.dtype)

    def get(self, name: str) -> Array:
        """The logical value of a buffer (a copy)."""
        return decode(self.window(name).copy(), self.buffers[name].type.dtype)

    def window(self, name: str) -> Array:
        """The buffer as a strided array over its memory."""
        type = self.buffers[name].type
        flat = self.flat(name)
        shape, stride = self.shape(type), self._stride(type)
        if 0 not in shape and sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) >= flat.size:
            raise NotInterpretable(
                f"{name} of shape {shape} and stride {stride} reaches beyond its {flat.size} elements"
            )
        strides = tuple(step * flat.itemsize for step in stride)
        return np.lib.stride_tricks.as_strided(flat, shape, strides)


def encode(values: Array, dtype: str) -> Array:
    """Values as stored."""
    if dtype == "bfloat16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).reshape(values.shape)
    return values


def decode(stored: Array, dtype: str) -> Array:
    """Stored elements as values."""
    if dtype == "bfloat16":
        wide = np.ascontiguousarray(stored).astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(stored.shape)
    return stored
