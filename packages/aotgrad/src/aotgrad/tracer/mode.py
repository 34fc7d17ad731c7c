"""`TraceMode`: answers every op by the types of its results and records its functional form.

plain op      recorded as it is
view op       recorded as it is; the result remembers its memory and how it looks at it
writing op    recorded as the op that computes the new content; the memory's value is replaced
real tensor   becomes a constant
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from absint import AbstractMode, Meta, from_tensor
from absint.meta import CPU, contiguous
from absint.mode import asks_layout, fixed_layout
from absint.schema import OpRecord
from absint.strides import contiguous_stride, is_dense
from absint.symbolic import SizeFloat, Term
from aotgrad.errors import GeneratorArgument, MetadataMutation, NoFunctionalForm, NoInverse, UnliftedLeaf
from aotgrad.torch_capabilities import TORCH
from aotgrad.tracer.attention import attend, attend_backward, encoder_layer, multi_head_attention
from aotgrad.tracer.fused_attention import Fused, Kernels, efficient, efficient_backward
from aotgrad.tracer.mutations import HIDDEN_WRITERS, write_arguments
from aotgrad.tracer.recorder import Recorder
from aotgrad.tracer.sizes import record_number
from aotgrad.tracer.values import DATA, Memory, Step, Traced
from aotgrad.tracer.views import SPLITTERS, invert, normalize_view, path_of_strided
from stagewire.graph import Ref
from stagewire.types import overlaps

if TYPE_CHECKING:
    from torch._ops import OpOverload


aten = torch.ops.aten
_IDENTITY = frozenset(("aten.detach.default", "aten.alias.default", "aten.lift_fresh.default", "aten.lift.default"))
# What an op takes as it is, in a document and in a type rule.
_LITERAL = frozenset((int, float, bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format))

Handler = Callable[[OpRecord, tuple[Any, ...], dict[str, Any]], Any]


class TraceMode(AbstractMode):
    """Records into `recorder`.

    constants: the real tensors met, by the name of their value. fixed_inputs: inputs that are addressed from the start
    of their storage. keeps_statistics: False where nobody wants the running statistics of a batch norm. counts_writes:
    False while an op writes without moving the version counter. home: the device that "cpu" stands for in an argument:
    to C++ abstract tensors are on the CPU, wherever they are, and its own code makes tensors "on the same device".
    detours: views behind an `as_strided` of a view, with the version of their memory when they were made. given: floats
    of the caller's, by the position of the input. attentions: fused ones, by the name of their log-sum-exp. chosen: the
    kernel for the attention that comes next, where eager was asked already. symbolic: whether sizes may be symbolic.
    flex_attention: the types of devices that have kernels for FlexAttention (`AotGrad.Options`). replaces_attention:
    whether attention may be another kernel than eager's.
    """

    tensor_class = Traced

    def __init__(
        self, *, symbolic: bool = False, flex_attention: Sequence[str] = (), replaces_attention: bool = False
    ) -> None:
        super().__init__()
        self.flex_attention, self.replaces_attention = flex_attention, replaces_attention
        self.recorder = Recorder(symbolic=symbolic)
        self.constants: dict[str, torch.Tensor] = {}
        self.memories: list[Memory] = []
        self.fixed_inputs: set[int] = set()
        self.detours: list[tuple[Traced, int]] = []
        self.keeps_statistics = True
        self.counts_writes = True
        self.home: torch.device | None = None
        self.attentions: dict[str, Fused] = {}
        self.chosen: list[Kernels] = []
        self.given: dict[int | None, SizeFloat] = {}
        self.given_for: dict[str, set[str]] = {}
        self.call_start = 0  # how many nodes there were before the captured call that runs
        self._numbers: dict[tuple[Term, torch.device], Traced] = {}
        # By id, because hashing an overload runs Python; the records keep the overloads alive.
        self._handlers: dict[int, tuple[Handler, OpRecord]] = {}

    # One op.

    def on_op(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer and record one op."""
        known = self._handlers.get(id(func))
        if known is None:
            if asks_layout(func):
                return fixed_layout(func, args[0])
            record = self.record(func)
            known = self._handlers[id(func)] = (self._handler(record), record)
        handler, record = known
        return handler(record, args, kwargs)

    def _handler(self, record: OpRecord) -> Handler:
        """Who answers an op."""
        if record.is_composite:
            return lambda record, args, kwargs: self.decompose(record.func, args, kwargs)
        if record.name in _IDENTITY:
            return self._identity
        if record.name in _SPECIAL:
            return self._of_abstract(partial(_SPECIAL[record.name], self))
        if record.hidden_writes:
            raise NoFunctionalForm(f"{record.name} writes into its arguments")
        if record.changes_type:
            return self._of_abstract(self._retype_traced)
        if record.writes:
            return self._of_abstract(partial(write_arguments, self))
        if record.is_view and self.recorder.symbolic:
            return self._of_abstract(self._view)  # sizes may come as C++ hands them out
        return self._view if record.is_view else self._plain

    def _of_abstract(self, handler: Handler) -> Handler:
        """A handler that is given abstract tensors for real ones, and sizes as Python computes with them."""
        visit = self._abstract_tree
        return lambda record, args, kwargs: handler(
            record, tuple([visit(arg) for arg in args]), {key: visit(value) for key, value in kwargs.items()}
        )

    def _plain(self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        metas: list[Any] = []
        operands: list[Any] = []
        for given in args:
            kind = type(given)
            if kind is Traced:
                metas.append(given.meta)
                operands.append(given.value if given.generation == given.memory.generation else self.content(given))
            elif kind in _LITERAL:
                metas.append(given)
                operands.append(given)
            else:
                given = self._abstract_tree(given)
                metas.append(self._type(given))
                operands.append(self.refs(given))
        if kwargs:
            kwargs = {key: self._abstract_tree(value) for key, value in kwargs.items()}
            if self.home is not None and kwargs.get("device") == CPU:
                kwargs["device"] = self.home
            types = self._rule(record, tuple(metas), {key: self._type(value) for key, value in kwargs.items()})
            kwargs = {key: self.refs(value) for key, value in kwargs.items()}
        else:
            types = self._rule(record, tuple(metas), kwargs)
        return self.fresh(self.recorder.record(record.name, operands, kwargs, types), types)

    def _rule(self, record: OpRecord, metas: tuple[Any, ...], named: dict[str, Any]) -> Any:
        rule = record.rule
        return rule(*metas, **named) if rule is not None else self._slow_types(record, metas, named)

    def number(self, value: SizeFloat, device: torch.device) -> Traced:
        """A float that is computed of sizes, once for each device."""
        known = self._numbers.get((value.term, device))
        if known is None:
            ref = record_number(self.emit, value, device)
            known = self._numbers[value.term, device] = self.fresh(ref, self.recorder.metas[ref.name])
        return known

    def note_gradients(self, found: tuple[Traced | None, ...], given: tuple[Traced | None, ...]) -> None:
        """Note for what a custom function's backward returned which gradients it was given."""
        names = {self.content(gradient).name for gradient in given if gradient is not None}
        for gradient in found:
            if gradient is not None:
                self.given_for.setdefault(self.content(gradient).name, set()).update(names)

    def refs(self, value: Any) -> Any:
        """`value` with every tensor replaced by the name of its current content."""
        if isinstance(value, Traced):
            return self.content(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self.refs(item) for item in value])
        return value

    def fresh(self, refs: Any, types: Any) -> Any:
        """Tensors on memory of their own for recorded values; None and numbers are what they are."""
        if type(types) is Meta:
            return self.owner(types, refs)
        if isinstance(types, (tuple, list)):
            return type(types)([self.fresh(r, t) for r, t in zip(refs, types, strict=True)])
        return types

    def owner(self, meta: Meta, value: Ref, *, input: int | None = None, requires_grad: bool = False) -> Traced:
        """A tensor on a memory of its own, that of an input or none."""
        memory = Memory(meta, value, input)
        self.memories.append(memory)
        tensor = Traced(meta, memory, requires_grad=requires_grad)
        tensor.value = value
        tensor.generation = 0
        return tensor

    def tensors(self, refs: tuple[Ref | None, ...]) -> Any:
        """Tensors on memory of their own for recorded values; None for none."""
        return self.fresh(refs, tuple([None if ref is None else self.recorder.metas[ref.name] for ref in refs]))

    def compute(self, func: OpOverload, args: tuple[Any, ...]) -> Any:
        """Record an op that only computes, on tensors; returns fresh tensors."""
        return self._plain(self.record(func), args, {})

    def emit(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an op on values (`Ref`s); returns `Ref`s."""
        metas = self.recorder.metas
        record = self.record(func)
        types = self._rule(
            record, tuple([_types_of(metas, a) for a in args]), {k: _types_of(metas, v) for k, v in kwargs.items()}
        )
        return self.recorder.record(record.name, args, kwargs, types)

    # Views.

    def _identity(self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
        source = self._abstract(args[0])
        if self._is_just_made(record, source):
            source.memory.base = None  # the new tensor becomes it
            return self._look(source, source.meta, (), self.content(source))
        target = record.name if record.name == "aten.detach.default" else "aten.alias.default"
        step = Step(None, target, (), {}, source.meta, source.meta, torch.is_grad_enabled())
        return self._look(source, source.meta, (step,), self.content(source))

    def _is_just_made(self, record: OpRecord, source: Traced) -> bool:
        """Whether the captured call that runs made it (torch.zeros_like, torch.tensor), and hands it out detached."""
        if source is not source.memory.base or source.steps or source.requires_grad:
            return False
        if record.name == "aten.lift_fresh.default":
            return source.memory.generation == 0
        if source.value is None:
            return False
        made = self.recorder.nodes[self.call_start :]
        return len(made) == 1 and [value.name for value in made[0].results] == [source.value.name]

    def data(self, source: Traced) -> Traced:
        """`source.data`: the same memory, detached, and writes through it do not count."""
        tensor = source.detach()
        tensor.steps = (*source.steps, Step(None, DATA, (), {}, source.meta, source.meta))
        tensor.path = (*source.path, tensor.steps[-1])
        return tensor

    def _look(self, source: Traced, meta: Meta, steps: tuple[Step, ...], value: Ref) -> Traced:
        memory = source.memory
        tensor = Traced(meta, memory, (*source.steps, *steps), (*source.path, *steps))
        tensor.value = value
        tensor.generation = memory.generation
        self._note_detour(tensor, source)
        return tensor

    def _view(self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = self._abstract(args[0])
        types = self._rule(record, (source.meta, *args[1:]), kwargs)
        if type(types) is Meta:
            func, rest = normalize_view(record.func, args[1:], types)
            return self._one_view(source, func, rest, kwargs, types)
        splitter = SPLITTERS.get(record.name)
        if splitter is None:
            raise NoInverse(f"{record.name} returns several views")
        calls = splitter(source.meta, *args[1:], **kwargs)
        given = (*args[1:], *kwargs.values())
        return [
            self._one_view(source, func, rest, {}, after, (record.name, given, number))
            for number, ((func, rest), after) in enumerate(zip(calls, types, strict=True))
        ]

    def _one_view(
        self, source: Traced, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], after: Meta,
        piece: tuple[str, tuple[Any, ...], int] | None = None,
    ) -> Traced:  # fmt: skip
        if func is aten.as_strided.default:
            return self._as_strided(source, args, kwargs, after)
        step = Step(func, self.record(func).name, args, kwargs, source.meta, after, torch.is_grad_enabled(), piece)
        return self._look(source, after, (step,), self._apply(step, self.content(source), source.memory))

    def _as_strided(self, source: Traced, args: tuple[Any, ...], kwargs: dict[str, Any], after: Meta) -> Traced:
        func = aten.as_strided.default
        step = Step(func, str(func), (*args, *kwargs.values()), {}, source.meta, after, torch.is_grad_enabled())
        tensor = Traced(after, source.memory, (*source.steps, step), path_of_strided(self, source, step))
        self.content(tensor)
        self._note_detour(tensor, source)
        return tensor

    def _note_detour(self, tensor: Traced, source: Traced) -> None:
        if len(tensor.path) < len(tensor.steps):
            self.detours.append((tensor, source._version))

    def _apply(self, step: Step, value: Ref, memory: Memory) -> Ref:
        if step.func is None:
            return value
        after = step.after
        if memory.shift:
            if step.func is aten.as_strided.default and len(step.args) > 2:
                raise NoInverse(f"as_strided of a written input at storage offset {memory.shift}")
            after = self._rule(self.record(step.func), (self.recorder.metas[value.name], *step.args), step.kwargs)
        return self.recorder.record(step.target, (value, *step.args), step.kwargs, after)

    # Content.

    def content(self, tensor: Traced) -> Ref:
        """The value that holds the tensor's content now."""
        memory = tensor.memory
        if tensor.generation == memory.generation:
            return tensor.value
        value = memory.value
        for step in tensor.path:
            value = self._apply(step, value, memory)
        tensor.value = value
        tensor.generation = memory.generation
        return value

    def write(self, tensor: Traced, content: Ref) -> None:
        """Replace the content of `tensor` (in its shape and dtype), and with it that of everything on its memory."""
        memory = tensor.memory
        shown = (tensor.meta, memory.meta) if tensor.path else (tensor.meta,)
        if any(overlaps(meta.shape, meta.stride) for meta in shown):  # the order of writing would show
            raise NoInverse(f"a write into {tensor.meta}, where several elements are one memory location")
        bases = [memory.value]
        for step in tensor.path[:-1]:
            bases.append(self._apply(step, bases[-1], memory))
        new = content
        for step, base in zip(reversed(tensor.path), reversed(bases), strict=bool(tensor.path)):
            new = invert(self.emit, self.recorder.metas, step, base, new)
        memory.value = self._restride(new, memory)
        memory.generation += 1
        memory.write()
        memory.versions += self.counts_writes and all(step.target != DATA for step in tensor.steps)
        memory.written_in_backward |= self.recorder.phase == "backward"
        if not tensor.path:
            tensor.value, tensor.generation = memory.value, memory.generation
        elif same_layout(self.recorder.metas[content.name], tensor.meta):
            tensor.value, tensor.generation = content, memory.generation

    def move(self, tensor: Traced, content: Ref) -> Memory:
        """Give `tensor`, which is no view, a memory of its own with this content: no write that autograd counts."""
        old = tensor.memory
        new = Memory(old.meta, content, old.input)
        old.input = None
        new.generation, new.versions, new.base = old.generation + 1, old.versions, tensor
        new.value = self._restride(content, new)
        self.memories.append(new)
        tensor.memory = tensor._storage = new
        tensor.value, tensor.generation = new.value, new.generation
        return new

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
        self._retype(record, args, kwargs)
        step = Step(functional, str(functional), args[1:], kwargs, before, target.meta)
        is_strided = functional is aten.as_strided.default
        target.path = path_of_strided(self, target, step) if is_strided else (*target.path, step)
        target.steps = (*target.steps, step)
        target.generation = -1
        self.content(target)
        return target

    def lift(self, tensor: torch.Tensor) -> Traced:
        """A real tensor that the program made from Python numbers: a constant of the graph."""
        known = self._lifted.get(id(tensor))
        if known is not None:
            return known[1]
        if tensor.requires_grad:
            raise UnliftedLeaf(f"a real tensor {from_tensor(tensor)} that requires grad")
        meta = from_tensor(tensor)
        value = self._number(tensor, meta) if is_plain_number(meta) else self._constant(tensor, meta)
        memory = Memory(meta, value, constant=tensor)
        self.memories.append(memory)
        abstract = Traced(meta, memory)
        self._lifted[id(tensor)] = (tensor, abstract)
        return abstract

    def _number(self, tensor: torch.Tensor, meta: Meta) -> Ref:
        with TORCH.no_modes():
            number = tensor.item()
        return self.emit(aten.full.default, ([], number), {"dtype": meta.dtype, "device": meta.device})

    def _constant(self, tensor: torch.Tensor, meta: Meta) -> Ref:
        """A constant travels row-major and on the CPU; the graph brings it to its device and strides."""
        name = self.recorder.fresh_name("constant")
        value = self.recorder.define(name, contiguous(meta.shape, meta.dtype))
        self.constants[name] = tensor
        if meta.device != CPU:
            value = self.emit(aten._to_copy.default, (value,), {"device": meta.device})
        return self.with_stride(value, meta)

    def release(self) -> None:
        """Cut what ties tensors, memories and autograd nodes into cycles."""
        for memory in self.memories:
            memory.base = None
        self.detours.clear()
        self._lifted.clear()
        self._handlers.clear()
        self._numbers.clear()


def is_plain_number(meta: Meta) -> bool:
    """A 0-dim tensor that `full` can make."""
    return meta.ndim == 0 and not meta.dtype.is_complex and not meta.storage_offset


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


# Overloads for a generator, and what they are without one.
_WITHOUT_GENERATOR = {
    "aten.rand.generator": aten.rand.default,
    "aten.randn.generator": aten.randn.default,
    "aten.randint.generator": aten.randint.default,
    "aten.randint.low_generator": aten.randint.low,
    "aten.randperm.generator": aten.randperm.default,
}


def _converted(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A conversion; of a number (which vmap converts so) it is a new tensor."""
    if isinstance(args[0], torch.Tensor):
        return mode._plain(record, args, kwargs)
    given = {key: value for key, value in kwargs.items() if key in ("dtype", "device")}
    return mode._plain(mode.record(aten.full.default), ([], args[0]), given)


def _value_of(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = mode.given.get(args[0].memory.input)
    return mode.scalar_of(args[0]) if given is None else given


def _unsafe_view(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view of a tensor that nobody else holds: fresh to autograd, a view in the document."""
    source = args[0]
    after = mode._rule(record, (source.meta, *args[1:]), kwargs)
    func, rest = normalize_view(record.func, args[1:], after)
    return mode.fresh(mode.recorder.record(str(func), (mode.content(source), *rest), {}, after), after)


def _drawn(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A random op that was told explicitly to use the default generator."""
    rest = dict(kwargs)
    if rest.pop("generator", None) is not None:
        raise GeneratorArgument(f"{record.name} with a generator of its own")
    return mode._plain(mode.record(_WITHOUT_GENERATOR[record.name]), args, rest)


def _batch_norm_backward(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In training the backward of batch norm ignores the running statistics: do not keep them for it."""
    return mode._plain(record, (*args[:3], None, None, *args[5:]) if args[7] else args, kwargs)


def _cudnn_batch_norm_backward(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """That of cuDNN's batch norm, which is in training: for what `mutations` records in its place."""
    input, gradient, weight, _, _, mean, deviation, epsilon, *_ = args
    rest = (None, None, mean, deviation, True, epsilon, [True, True, True])
    return mode._plain(mode.record(aten.native_batch_norm_backward.default), (gradient, input, weight, *rest), kwargs)


def _on_cpu(elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """The CPU's fused attention, or on another device what it means."""
    return lambda mode, record, args, kwargs: (
        mode._plain(record, args, kwargs)
        if args[0].meta.device.type == "cpu"
        else elsewhere(mode, record, args, kwargs)
    )


def _written_out(form: Callable[..., Any]) -> Callable[..., Any]:
    """An op that eager has for inference alone, as the ops that it stands for."""

    def call(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with mode:
            return form(*args, **kwargs)

    return call


def _answer(mode: TraceMode, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A question about types, which forward-mode gradients ask: no node."""
    return mode.result_types(record, args, kwargs)


_SPECIAL: dict[str, Callable[..., Any]] = {
    **HIDDEN_WRITERS,
    **dict.fromkeys(_WITHOUT_GENERATOR, _drawn),
    "aten._native_multi_head_attention.default": _written_out(multi_head_attention),
    "aten._transformer_encoder_layer_fwd.default": _written_out(encoder_layer),
    "aten._to_copy.default": _converted,
    "aten._local_scalar_dense.default": _value_of,
    "aten._assert_tensor_metadata.default": lambda mode, record, args, kwargs: None,
    "aten.is_same_size.default": _answer,
    "aten._has_same_storage_numel.default": _answer,
    "aten._unsafe_view.default": _unsafe_view,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten.cudnn_batch_norm_backward.default": _cudnn_batch_norm_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _on_cpu(attend),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _on_cpu(attend_backward),
    # The memory-efficient kernel by its own name, which gives a mask a gradient.
    "aten._scaled_dot_product_efficient_attention.default": efficient,
    "aten._scaled_dot_product_efficient_attention_backward.default": efficient_backward,
}
"""By the names of ops: the functions of (mode, record, args, kwargs) that answer them."""
