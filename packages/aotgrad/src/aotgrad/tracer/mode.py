"""`TraceMode`: answers every op by the types of its results and records its functional form.

plain op      recorded as it is
view op       recorded as it is; the result remembers its memory and how it looks at it
writing op    recorded as the op that computes the new content; the memory's value is replaced
real tensor   becomes a constant
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from absint import AbstractMode, Meta, from_tensor
from absint.meta import contiguous_stride
from absint.schema import OpRecord, record_of
from absint.strides import is_dense
from aotgrad.errors import MetadataMutation, NoInverse, UnliftedLeaf
from aotgrad.tracer.mutations import HIDDEN_WRITERS, write_arguments
from aotgrad.tracer.recorder import Recorder
from aotgrad.tracer.values import Memory, Step, Traced
from aotgrad.tracer.views import SPLITTERS, invert, normalize_view
from stagewire.graph import Ref

__all__ = ["TraceMode"]

aten = torch.ops.aten
_IDENTITY = frozenset((aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.lift.default))
_REINTERPRETED = frozenset((aten._unsafe_view.default,))
_DROPPED = frozenset((aten._assert_tensor_metadata.default,))


def _without_running_statistics(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """In training the backward of batch norm ignores the running statistics: do not keep them for it."""
    return (*args[:3], None, None, *args[5:]) if args[7] else args


_REWRITES = {aten.native_batch_norm_backward.default: _without_running_statistics}


class TraceMode(AbstractMode):
    """Records into `recorder`. `constants`: the real tensors met, by the name of their value."""

    tensor_class = Traced

    def __init__(self) -> None:
        super().__init__()
        self.recorder = Recorder()
        self.constants: dict[str, torch.Tensor] = {}
        self.memories: list[Memory] = []

    # One op.

    def on_op(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer and record one op."""
        record = record_of(func)
        if record.is_composite:
            return self.decompose(func, args, kwargs)
        if func in _IDENTITY:
            return self._identity(func, self._abstract(args[0]))
        if record.name == "aten._local_scalar_dense.default":
            return self.scalar_of(self._abstract(args[0]))
        args = tuple([self._abstract_tree(a) for a in args])
        if kwargs:
            kwargs = {k: self._abstract_tree(v) for k, v in kwargs.items()}
        rewrite = _REWRITES.get(func)
        if rewrite is not None:
            args = rewrite(args)
        if record.hidden_writes:
            return HIDDEN_WRITERS[record.name](self, record, args, kwargs)
        if record.changes_type:
            return self._retype_traced(record, args, kwargs)
        if record.writes:
            return write_arguments(self, record, args, kwargs)
        types = self.result_types(record, args, kwargs)
        if record.is_view:
            return self._view(record, args, kwargs, types)
        if func in _DROPPED:
            return None
        return self._plain(func, args, kwargs, types)

    def _plain(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], types: Any) -> Any:
        operands = tuple([self.refs(a) for a in args])
        named = {k: self.refs(v) for k, v in kwargs.items()} if kwargs else kwargs
        if func in _REINTERPRETED:
            func, rest = normalize_view(func, operands[1:], types)
            operands = (operands[0], *rest)
        refs = self.recorder.record(str(func), operands, named, types)
        return self.fresh(refs, types)

    def refs(self, value: Any) -> Any:
        """`value` with every tensor replaced by the name of its current content."""
        if isinstance(value, Traced):
            return self.content(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self.refs(item) for item in value])
        return value

    def fresh(self, refs: Any, types: Any) -> Any:
        """Tensors on memory of their own for recorded values."""
        if type(types) is Meta:
            memory = Memory(types, refs)
            self.memories.append(memory)
            tensor = Traced(types, memory)
            tensor.value = refs
            tensor.generation = 0
            return tensor
        if isinstance(types, (tuple, list)):
            return type(types)([self.fresh(r, t) for r, t in zip(refs, types, strict=True)])
        return None

    def emit(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an op on values (`Ref`s); returns `Ref`s."""
        metas = self.recorder.metas
        types = self.result_types(
            record_of(func),
            tuple([_types_of(metas, a) for a in args]),
            {k: _types_of(metas, v) for k, v in kwargs.items()},
        )
        return self.recorder.record(str(func), args, kwargs, types)

    # Views.

    def _identity(self, func: OpOverload, source: Traced) -> Traced:
        step = Step(None, (), {}, source.meta, source.meta)
        return self._look(source, source.meta, step, self.content(source))

    def _look(self, source: Traced, meta: Meta, step: Step, value: Ref | None) -> Traced:
        memory = source.memory
        tensor = Traced(meta, memory, (*source.steps, step))
        if value is not None:
            tensor.value = value
            tensor.generation = memory.generation
        return tensor

    def _view(self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any], types: Any) -> Any:
        source: Traced = args[0]
        splitter = SPLITTERS.get(record.name)
        if splitter is not None:
            calls = splitter(source.meta, *args[1:], **kwargs)
            return [
                self._one_view(source, func, rest, {}, after) for (func, rest), after in zip(calls, types, strict=True)
            ]
        if type(types) is not Meta:
            raise NoInverse(f"{record.name} returns several views")
        func, rest = normalize_view(record.func, args[1:], types)
        return self._one_view(source, func, rest, kwargs, types)

    def _one_view(
        self, source: Traced, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], after: Meta
    ) -> Traced:
        if func is aten.as_strided.default:
            return self._as_strided(source, args, kwargs, after)
        step = Step(func, args, kwargs, source.meta, after)
        return self._look(source, after, step, self._apply(step, self.content(source), source.memory.shift))

    def _as_strided(self, source: Traced, args: tuple[Any, ...], kwargs: dict[str, Any], after: Meta) -> Traced:
        # as_strided addresses the memory, not the view: it starts again from the base.
        memory = source.memory
        step = Step(aten.as_strided.default, (*args[:2], after.storage_offset), {}, memory.meta, after)
        tensor = Traced(after, memory, (step,))
        self.content(tensor)
        return tensor

    def _apply(self, step: Step, value: Ref, shift: int) -> Ref:
        if step.func is None:
            return value
        after = step.after
        if shift:
            offset = after.storage_offset - shift
            after = Meta(after.shape, after.stride, after.dtype, after.device, offset)
            if step.func is aten.as_strided.default:
                raise NoInverse(f"as_strided of a written input at storage offset {shift}")
        return self.recorder.record(str(step.func), (value, *step.args), step.kwargs, after)

    # Content.

    def content(self, tensor: Traced) -> Ref:
        """The value that holds the tensor's content now."""
        memory = tensor.memory
        if tensor.generation == memory.generation:
            return tensor.value
        value = memory.value
        for step in tensor.steps:
            value = self._apply(step, value, memory.shift)
        tensor.value = value
        tensor.generation = memory.generation
        return value

    def write(self, tensor: Traced, content: Ref) -> None:
        """Replace the content of `tensor` (in its shape and dtype), and with it that of everything on its memory."""
        memory = tensor.memory
        bases = [memory.value]
        for step in tensor.steps[:-1]:
            bases.append(self._apply(step, bases[-1], memory.shift))
        new = content
        for step, base in zip(reversed(tensor.steps), reversed(bases), strict=bool(tensor.steps)):
            new = invert(self.emit, self.recorder.metas, step, base, new)
        memory.value = self._restride(new, memory)
        memory.generation += 1
        memory.write()
        memory.written_in_backward |= self.recorder.phase == "backward"
        if not tensor.steps:
            tensor.value, tensor.generation = memory.value, memory.generation
        elif same_layout(self.recorder.metas[content.name], tensor.meta):
            tensor.value, tensor.generation = content, memory.generation

    def _restride(self, value: Ref, memory: Memory) -> Ref:
        """`value` in the strides of the memory's base, on which later views rely."""
        return self.with_stride(value, memory.meta, memory.value)

    def with_stride(self, value: Ref, meta: Meta, like: Ref | None = None) -> Ref:
        """`value` copied into the strides of `meta` if it has others; `like` is any value of that layout."""
        if same_layout(self.recorder.metas[value.name], meta):
            return value
        if meta.stride == contiguous_stride(meta.shape):
            return self.emit(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
        if is_dense(meta.shape, meta.stride):
            order = sorted(range(meta.ndim), key=lambda d: (-meta.stride[d], -meta.shape[d], d))
            inverse = [order.index(d) for d in range(meta.ndim)]
            value = self.emit(aten.permute.default, (value, order), {})
            value = self.emit(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
            return self.emit(aten.permute.default, (value, inverse), {})
        if like is None:
            like = self.emit(
                aten.empty_strided.default,
                (list(meta.shape), list(meta.stride)),
                {"dtype": meta.dtype, "device": meta.device},
            )
        return self.emit(aten.copy.default, (like, value), {})

    # Tensors of other kinds.

    def _retype_traced(self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
        target: Traced = args[0]
        functional = record.functional
        if target.memory.input is not None or functional is None or record.writes[0][0] != 0:
            raise MetadataMutation(f"{record.name} on {target.meta}")
        before = target.meta
        value = self.content(target)
        self._retype(record, args, kwargs)
        step = Step(functional, args[1:], kwargs, before, target.meta)
        if target is target.memory.base:
            target.memory.base = None
        target.value = self._apply(step, value, target.memory.shift)
        target.generation = target.memory.generation
        target.steps = (*target.steps, step)
        return target

    def lift(self, tensor: torch.Tensor) -> Traced:
        """A real tensor that the program made from Python numbers: a constant of the graph."""
        known = self._lifted.get(id(tensor))
        if known is not None:
            return known[1]
        if tensor.requires_grad:
            raise UnliftedLeaf(f"a real tensor {from_tensor(tensor)} that requires grad")
        meta = from_tensor(tensor)
        if meta.ndim == 0 and not meta.dtype.is_complex and not meta.storage_offset:
            with torch.utils._python_dispatch._disable_current_modes():
                number = tensor.item()
            options = {"dtype": meta.dtype, "device": meta.device}
            value = self.emit(aten.full.default, ([], number), options)
        else:
            value = self.recorder.define(self.recorder.fresh_name("constant"), meta)
            self.constants[value.name] = tensor
        memory = Memory(meta, value, constant=tensor)
        self.memories.append(memory)
        abstract = Traced(meta, memory)
        self._lifted[id(tensor)] = (tensor, abstract)
        return abstract

    def release(self) -> None:
        """Cut what ties tensors, memories and autograd nodes into cycles."""
        for memory in self.memories:
            memory.base = None
        self._lifted.clear()


def same_layout(first: Meta, second: Meta) -> bool:
    """Equal strides wherever a stride matters."""
    return first.stride == second.stride or all(
        a == b or n == 1 for a, b, n in zip(first.stride, second.stride, second.shape, strict=True)
    )


def _types_of(metas: dict[str, Meta], value: Any) -> Any:
    if type(value) is Ref:
        return metas[value.name]
    if isinstance(value, (list, tuple)):
        return type(value)([_types_of(metas, item) for item in value])
    return value


Handler = Callable[[TraceMode, OpRecord, tuple[Any, ...], dict[str, Any]], Any]
