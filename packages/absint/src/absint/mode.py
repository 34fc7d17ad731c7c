"""`AbstractMode`: runs any torch code on types alone.

    with AbstractMode() as mode:
        y = torch.nn.functional.linear(x, w)      # x, w: AbstractTensor

Every op that autograd leaves over arrives at `on_op`. A tracer subclasses the mode and overrides that one
method; `result_types`, `finish` and `lift` are the pieces to build it from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import torch
from msgspec.structs import replace

from absint.errors import BadMutation, DataDependentError, NoTypeRule, RefusedWrite, UnsupportedTensor
from absint.fallback import Fallback
from absint.float_forms import has_floats, with_floats
from absint.forms import symbolic_form
from absint.forms.attention import attention
from absint.kernels import Question, ask
from absint.meta import Meta, contiguous, from_tensor, map_leaves
from absint.overlap import reads_what_it_writes
from absint.promote import can_cast
from absint.schema import Answers, OpRecord, argument_value, record_of
from absint.signatures import full_name
from absint.symbolic import unwrap
from absint.symbolic.floats import SizeFloat
from absint.tensor import AbstractTensor, Storage
from absint.torch_capabilities import TORCH
from stagewire.types import numel

if TYPE_CHECKING:
    from torch._ops import OpOverload

_PLAIN = frozenset(
    (int, float, bool, type(None), str, torch.dtype, torch.device, torch.layout,
     torch.memory_format, complex)
)  # fmt: skip
# Ops that change sizes and strides of their argument in place and that the wrapper itself can do.
_RETYPING = frozenset(map(full_name, [
    "t_", "transpose_", "unsqueeze_", "squeeze_", "squeeze_.dim", "squeeze_.dims", "as_strided_", "swapdims_",
    "swapaxes_", "detach_",
]))  # fmt: skip
# Ops that eager lets write several elements into one place, because the order does not matter (or is warned of).
_WRITES_OVERLAPPING = frozenset(map(full_name, [
    "fill_.Scalar", "fill_.Tensor", "zero_", "masked_fill_.Scalar", "masked_fill_.Tensor", "index_put_",
    "index_fill_.int_Scalar", "index_fill_.int_Tensor", "tril_", "triu_", "threshold_",
]))  # fmt: skip
# What C++ says that asks an abstract tensor for its memory.
_NO_DATA = ("its data is not allocated yet", "Cannot access data pointer")
# The tangent of a Python number, which forward mode marks as one itself: C++ reads its memory then. (A gradient of zero
# without dimensions that is a double cannot be told from it.)
_ZERO, _CPU = torch.ops.aten._efficientzerotensor.default, torch.device("cpu")
_OF_NUMBERS = (torch.bool, torch.int64, torch.float64, torch.complex128)
_FRESH, _VIEW, _OTHER = Answers.FRESH, Answers.VIEW, Answers.OTHER

# What C++ asks a tensor with symbolic sizes, of which it knows nothing, or a tensor on a CUDA device.
_QUESTIONS: dict[str, Callable[[Meta], Any]] = {
    "aten::size": lambda meta: [int(size) for size in meta.shape],
    "aten::stride": lambda meta: [int(step) for step in meta.stride],
    "aten::storage_offset": lambda meta: int(meta.storage_offset),
    "aten::numel": lambda meta: int(numel(meta.shape)),
    "prim::device": lambda meta: meta.device,
}


def fixed_layout(func: OpOverload, tensor: AbstractTensor) -> Any:
    """The sizes, strides or offset of a tensor as plain ints: what is symbolic in them is fixed."""
    return _QUESTIONS[func._schema.name](tensor.meta)


def asks_layout(func: OpOverload) -> bool:
    """Whether `fixed_layout` answers."""
    return func._schema.name in _QUESTIONS


class AbstractMode(TORCH.dispatch_mode):
    """A dispatch mode that answers every op by the types of its results.

    fallback: the slow path for ops without a rule, with its counters.
    tensor_class: the class of the tensors it makes (a tracer sets its own subclass).
    """

    tensor_class: type[AbstractTensor] = AbstractTensor

    def __init__(self, *, fallback: Fallback | None = None) -> None:
        super().__init__()
        self.fallback = Fallback() if fallback is None else fallback
        # By id, because hashing an overload runs Python; the records keep the overloads alive.
        self._records: dict[int, OpRecord] = {}
        self._lifted: dict[int, tuple[torch.Tensor, AbstractTensor]] = {}
        self._storages: dict[int, Storage] = {}
        self.written: list[Storage] = []  # the memory of each write, in order
        self.read: list[AbstractTensor] = []  # each tensor whose known number was asked for, in order
        self._deferred: list[bool] = []  # per entry, whether hooks on saved tensors waited already

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would wrap __torch_dispatch__ so that the first op imports torch._dynamo.
        return False

    # torch's own notes in Python variables of the process that a mode is entered, which modes of several threads would
    # leave in the wrong order; they are for its compiler, which is asked nothing under this mode.

    def __enter__(self) -> Self:
        TORCH.enter_dispatch_mode(self)
        self._deferred.append(TORCH.defer_saved_tensors_hooks(True))  # the user's are for the tensors of the call
        return self

    def __exit__(self, *error: object) -> None:
        TORCH.defer_saved_tensors_hooks(self._deferred.pop())
        TORCH.leave_dispatch_mode(None)

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        named = {} if kwargs is None else kwargs
        if func is _ZERO and not args[0] and named.get("device") == _CPU and named.get("dtype") in _OF_NUMBERS:
            return torch.zeros((), dtype=named.get("dtype"))
        return with_floats(self, func, args, named) if has_floats(args, named) else self.on_op(func, args, named)

    def number(self, value: SizeFloat, device: torch.device) -> AbstractTensor:
        """A float that is computed of sizes, as a double in a tensor without dimensions; a tracer computes it."""
        return self.tensor_class(contiguous((), torch.float64, device))

    # The hook point.

    def on_op(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer one op; `args` and `kwargs` hold abstract tensors and, where they appear, real ones."""
        record = self._records.get(id(func))
        if record is None:
            if func._schema.name in _QUESTIONS:
                return fixed_layout(func, args[0])
            if func._schema.name == "aten::dim":  # of a wrapper, which answers for itself
                return NotImplemented
            record = self.record(func)
        rule = record.rule
        if rule is not None and (answers := record.answers) is not _OTHER:
            type_of = self._type
            cls = self.tensor_class
            metas = [a.meta if type(a) is cls else a if type(a) in _PLAIN else type_of(a) for a in args]
            result = rule(*metas, **{k: type_of(v) for k, v in kwargs.items()}) if kwargs else rule(*metas)
            if answers is _FRESH:
                return self.tensor_class(result) if type(result) is Meta else self._wrap_tree(result)
            if answers is _VIEW:
                storage = self._abstract(args[0]).storage_record
                if type(result) is Meta:
                    return self.tensor_class(result, storage)
                return [self.tensor_class(part, storage) for part in result]
        if record.is_composite and rule is None:
            return self.decompose(func, args, kwargs)
        if record.name == "aten._local_scalar_dense.default":
            return self.scalar_of(self._abstract(args[0]))
        args = tuple(self._abstract_tree(a) for a in args)
        kwargs = {k: self._abstract_tree(v) for k, v in kwargs.items()}
        types = self.result_types(record, args, kwargs)
        return self.finish(record, args, kwargs, types)

    def record(self, func: OpOverload) -> OpRecord:
        """What the schema says about an op, looked up once per mode."""
        record = self._records.get(id(func))
        if record is None:
            record = self._records[id(func)] = record_of(func)
        return record

    @property
    def may_draw(self) -> bool:
        """Whether an op that was met draws random numbers, or is a custom op, of which nothing is known."""
        return any(record.effect == "draws" or not record.name.startswith("aten.") for record in self._records.values())

    def has_met(self, names: frozenset[str]) -> bool:
        """Whether an op of one of these names was met."""
        return any(record.name in names for record in self._records.values())

    def decompose(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a CompositeImplicit op (seen whole under inference_mode) as the ops it consists of."""
        TORCH.require("runs_as", "composite")
        with self:
            return func._op_dk(TORCH.composite, *args, **kwargs)

    def scalar_of(self, tensor: AbstractTensor) -> Any:
        """The Python number of a tensor of one element whose value is known; raises `DataDependentError`."""
        number = self.content_of(tensor).item()
        self.read.append(tensor)
        return number

    def content_of(self, tensor: AbstractTensor) -> torch.Tensor:
        """The real tensor behind a constant of the program or a view of one; raises `DataDependentError`."""
        constant, meta = tensor.storage_record.known(), tensor.meta
        if constant is not None and from_tensor(constant) == meta:
            return constant
        # (Other views of a constant's memory read it as another dtype, or conjugate.)
        if constant is None or constant.dtype is not meta.dtype or meta.dtype.is_complex or not constant.numel():
            raise DataDependentError(f"the program asks for the value of {meta}")
        shape, stride = [[int(each) for each in sizes] for sizes in (meta.shape, meta.stride)]  # fixes symbols
        with TORCH.no_dispatch():
            return constant.as_strided(shape, stride, int(meta.storage_offset))

    # Types of results.

    def result_types(self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Types of the results of an op, as `Meta`s in the structure the op returns.

        `args` and `kwargs` hold abstract tensors (or real ones, which are lifted) or `Meta`s. Does not touch
        any tensor. For an in-place op this is the type of the tensor written, after checking it.
        """
        of, cls = self._type, self.tensor_class
        metas = tuple([a.meta if type(a) is cls else of(a) for a in args])
        named = {k: of(v) for k, v in kwargs.items()} if kwargs else kwargs
        if record.rule is not None:
            return record.rule(*metas, **named)
        if record.writes:
            if record.name == "aten.copy_.default" and all(isinstance(each, cls) for each in args[:2]):
                first, second = args[:2]
                if first.storage_record is second.storage_record and first.meta == second.meta:
                    return metas[0]  # the same view of the same memory, of which ATen asks nothing then
            return self._written_types(record, metas, named)
        return self._slow_types(record, metas, named)

    def _slow_types(self, record: OpRecord, metas: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not record.func._schema.returns:
            return None  # assertions and notes: nothing is known of the data, nothing comes back
        kernel = fake_kernel(record.func)
        if kernel is None:
            return self.fallback.types(record, metas, named)
        # Under a mode of its own: what the fake kernel calls is no part of the program that a tracer records.
        with (
            _FakeKernelMode(fallback=self.fallback), torch.no_grad(), _named_refusal(record.name),
            self._dynamic_sizes(record.name),
        ):  # fmt: skip
            result = kernel(*map_leaves(metas, _as_tensor), **map_leaves(named, _as_tensor))
        return self._type(result)

    @contextlib.contextmanager
    def _dynamic_sizes(self, name: str) -> Iterator[None]:
        """While a fake kernel runs, `torch.library.get_ctx()` gives what makes sizes that the data decides."""
        if not TORCH.has("fake_kernel_context"):
            yield
            return
        context = DynamicSizes(name, self.new_size)
        with TORCH.fake_kernel_context(lambda: context):
            yield

    def new_size(self, lower: int | None, upper: int | None) -> Any:
        """A size that data decides, within bounds; raises `DataDependentError`, as here all sizes are known."""
        raise DataDependentError("the size of a result depends on data")

    def _written_types(self, record: OpRecord, metas: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not record.func._schema.returns:
            return None
        if record.functional is None:
            return self._slow_types(record, metas, named)
        if record.question is not None:
            ask(record.func, record.question, metas, named, record.out_names)
        operands = {k: v for k, v in named.items() if k not in record.out_names}
        operands.pop("generator", None)
        if record.functional_rule is not None:
            computed = record.functional_rule(*metas, **operands)
        else:
            computed = self._slow_types(record_of(record.functional), metas, operands)
        if record.changes_type:
            return computed
        results = computed if isinstance(computed, tuple) else (computed,)
        targets = tuple(argument_value(write, metas, named) for write in record.writes)
        for result, target in zip(results, targets, strict=False):
            _check_write(record, result, target)
        if record.question is None:
            _check_dtypes(record, metas, named, results)
        return targets if len(targets) > 1 else targets[0]

    # Abstract results.

    def finish(self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any], types: Any) -> Any:
        """Make the results of an op from their types: written arguments, views, fresh tensors."""
        if record.writes and not record.changes_type:
            operand = reads_what_it_writes(record, args, kwargs, lambda tensor: tensor.storage_record)
            if operand is not None:
                raise NoTypeRule(f"{record.name} reads elements of {operand.meta} that it writes, which eager refuses")
        for write in record.writes:
            self._count_write(argument_value(write, args, kwargs))
        if record.changes_type:
            return self._retype(record, args, kwargs)
        for write in record.hidden_writes:
            self._count_write(argument_value(write, args, kwargs))
        if types is None:
            return None
        sources = [None if alias is None else argument_value(alias, args, kwargs) for alias in record.aliases]
        written = {id(argument_value(write, args, kwargs)) for write in record.writes}
        if len(sources) == 1:
            return self._result(types, sources[0], written)
        return tuple(self._result(item, source, written) for item, source in zip(types, sources, strict=True))

    def _result(self, types: Any, source: Any, written: set[int]) -> Any:
        if source is None:
            return self._wrap_tree(types)
        if id(source) in written:
            return source
        if isinstance(types, (tuple, list)):
            return [self.tensor_class(item, source.storage_record) for item in types]
        return self.tensor_class(types, source.storage_record)

    def _count_write(self, target: Any) -> None:
        if isinstance(target, AbstractTensor):
            self.written.append(target.storage_record)
            target.storage_record.write()
        elif isinstance(target, (list, tuple)):
            for item in target:
                self._count_write(item)

    def _retype(self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractTensor:
        if record.name not in _RETYPING:
            raise NoTypeRule(f"{record.name} changes the storage of an abstract tensor")
        target = args[0]
        with TORCH.no_dispatch():
            record.func(*args, **kwargs)
        target.meta = Meta(
            tuple([unwrap(size) for size in torch.Tensor.size(target)]),
            tuple([unwrap(step) for step in torch.Tensor.stride(target)]),
            target.dtype,
            target.meta.device,
            unwrap(torch.Tensor.storage_offset(target)),
        )
        return target

    def _wrap_tree(self, types: Any) -> Any:
        return map_leaves(types, lambda leaf: self.tensor_class(leaf) if type(leaf) is Meta else leaf)

    # Real tensors.

    def lift(self, tensor: torch.Tensor) -> AbstractTensor:
        """The abstract stand-in of a real tensor that the program brought along, one per tensor.

        Tensors that share memory get one `Storage`. A tracer overrides this to make inputs or constants.
        """
        known = self._lifted.get(id(tensor))
        if known is not None:
            return known[1]
        if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise UnsupportedTensor(f"a tensor subclass {type(tensor).__name__} with its own dispatch")
        meta = from_tensor(tensor)
        key = tensor.untyped_storage()._cdata
        storage = self._storages.get(key)
        if storage is None:
            storage = self._storages[key] = Storage(constant=tensor)
        abstract = self.tensor_class(meta, storage)
        self._lifted[id(tensor)] = (tensor, abstract)
        return abstract

    def _abstract(self, tensor: Any) -> AbstractTensor:
        if type(tensor) is complex:  # the factor of `x * 1j`, which autograd conjugates
            tensor = torch.tensor(tensor, dtype=torch.complex128)
        return tensor if isinstance(tensor, AbstractTensor) else self.lift(tensor)

    def _abstract_tree(self, value: Any) -> Any:
        kind = type(value)
        if kind is self.tensor_class or kind in _PLAIN:
            return value
        if kind is list:
            return [self._abstract_tree(item) for item in value]
        if kind is tuple:
            return tuple([self._abstract_tree(item) for item in value])
        if kind is torch.SymInt or kind is torch.SymFloat:
            return unwrap(value)
        return self._abstract(value) if isinstance(value, torch.Tensor) else value

    def _type(self, value: Any) -> Any:
        kind = type(value)
        if kind is self.tensor_class or kind is AbstractTensor:
            return value.meta
        if kind in _PLAIN:
            return value
        if kind is list:
            return [self._type(item) for item in value]
        if kind is tuple:
            return tuple([self._type(item) for item in value])
        if kind is torch.SymInt or kind is torch.SymFloat:
            return unwrap(value)
        return self._abstract(value).meta if isinstance(value, torch.Tensor) else value


class _FakeKernelMode(AbstractMode):
    """Runs fake kernels. That of a torch.library.triton_op is the operator itself: its launches tell no types."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if not isinstance(func, TORCH.op_overload):
            return None if func.name() == "triton_kernel_wrapper_mutation" else NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)


class DynamicSizes:
    """What a fake kernel is given by `torch.library.get_ctx()`. Source: torch/_library/fake_impl.py, FakeImplCtx.

    new_size: makes a size of these bounds, or raises `DataDependentError`.
    """

    def __init__(self, name: str, new_size: Callable[[int | None, int | None], Any]) -> None:
        self._name = name
        self._new_size = new_size

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:
        """A size that the data decides. Raises ValueError where the bounds are no numbers, or `min` is negative."""
        for bound in (min, max):
            if isinstance(bound, torch.SymInt):
                raise ValueError(f"{self._name}: new_dynamic_size(min={min}, max={max}): bounds are to be ints")
        if min < 0:
            raise ValueError(f"{self._name}: new_dynamic_size(min={min}): no size is negative")
        return self._new_size(min, max)

    def create_unbacked_symint(self, *, min: int = 2, max: int | None = None) -> Any:
        """The old name of `new_dynamic_size`. Its lower bound of 2 stands for programs that know of no 0 and 1; here it
        is none, as operators do return so few."""
        return self.new_dynamic_size(min=0 if min == 2 else min, max=max)


@contextlib.contextmanager
def _named_refusal(name: str) -> Iterator[None]:
    """A custom op without a fake kernel has one that says so."""
    try:
        yield
    except RuntimeError as error:
        if "no fake impl" not in str(error):
            raise
        raise NoTypeRule(f"the custom op {name} has no fake kernel") from error


def _as_tensor(leaf: Any) -> Any:
    return AbstractTensor(leaf) if type(leaf) is Meta else leaf


def fake_kernel(func: OpOverload) -> Callable[..., Any] | None:
    """The fake kernel a custom op registered with torch.library, if any."""
    if func.namespace == "aten":
        return None
    entry = TORCH.custom_operators(func.name())
    return None if entry.fake_impl.kernel is None else entry.fake_impl.kernel


def _check_write(record: OpRecord, result: Any, target: Any) -> None:
    if not isinstance(result, Meta) or not isinstance(target, Meta):
        return
    # What does not fit an out= argument eager resizes, with a warning; in place it refuses.
    error = BadMutation if record.out_names else RefusedWrite
    if result.shape != target.shape:
        raise error(f"{record.name}: a result of {list(result.shape)} does not fit {list(target.shape)}")
    if not can_cast(result.dtype, target.dtype):
        raise error(f"{record.name}: {result.dtype} is not cast to {target.dtype}")
    overlaps = (
        0 in target.stride
        and 0 not in target.shape
        and any(step == 0 and size > 1 for size, step in zip(target.shape, target.stride, strict=True))
    )
    if overlaps and record.answers is Answers.SELF and record.name not in _WRITES_OVERLAPPING:
        raise RefusedWrite(f"{record.name}: several elements of {target} are one memory location")


def _check_dtypes(record: OpRecord, metas: tuple[Any, ...], named: dict[str, Any], results: tuple[Any, ...]) -> None:
    """Some kernels take no out= argument of another dtype than their result's, though it can be cast: where one takes
    its own dtypes, it is asked about those that are given."""
    fitting = {
        name: replace(named[name], dtype=result.dtype)
        for name, result in zip(record.out_names, results, strict=False)
        if type(result) is Meta and type(named.get(name)) is Meta and named[name].dtype is not result.dtype
    }
    if not fitting:
        return
    try:
        asked = ask(record.func, Question(), metas, named | fitting, record.out_names)
    except RuntimeError:
        return  # of one element each, it refuses something else
    if asked:
        ask(record.func, Question(), metas, named, record.out_names)


def abstract_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    mode: AbstractMode,
) -> Any:
    """Run `fn` on abstract tensors under `mode`, with torch's autograd as it is set, and return its result.

    >>> x = AbstractTensor(contiguous((2, 3), torch.float32))
    >>> abstract_call(torch.transpose, (x, 0, 1), mode=AbstractMode()).stride()
    (1, 3)
    """
    if fn is torch.nn.functional.scaled_dot_product_attention:
        fn = attention
    fn = symbolic_form(fn)
    try:
        with mode:
            return fn(*args, **({} if kwargs is None else kwargs))
    except RuntimeError as error:
        if any(words in str(error) for words in _NO_DATA):
            raise DataDependentError(f"C++ behind {getattr(fn, '__name__', fn)} reads the data of a tensor") from error
        raise
