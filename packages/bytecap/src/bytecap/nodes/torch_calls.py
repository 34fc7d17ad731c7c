"""Calls of torch functions: run on abstract tensors for their result types, recorded as one node each."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

import torch

from absint import AbstractTensor, DataDependentError, abstract_call
from absint.cpu_kernels import onednn_takes_lstm
from absint.errors import SpecializedSize, TypeRuleError
from absint.symbolic.size import is_unbacked as is_open_size
from absint.targets import target_name
from absint.tensor import tensors_in
from absint.wire import to_arg
from bytecap.context_types import Tracer
from bytecap.errors import AbstractCallFailed, DataDependent, StageError, UnsupportedCall, UnsupportedValue
from bytecap.nodes import call_arguments
from bytecap.nodes.constant_tensors import note_content, with_numbers
from bytecap.nodes.data_checks import call_checked
from bytecap.nodes.torch_function import overridden_call
from bytecap.nodes.wrapper_calls import call_wrapper, holds_wrapper
from bytecap.objects.arrays.inference import refuse_writes
from bytecap.objects.arrays.numpy_arrays import TracedArray, is_number, python_number
from bytecap.objects.arrays.tensors import TensorValue, WrapperValue
from bytecap.objects.base import Constant, NotConcrete, Value
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, SliceValue, TupleValue
from bytecap.objects.instances.exceptions import UnknownText
from bytecap.objects.instances.objects import ObjectValue
from bytecap.objects.numbers.symbolic import FACT, read_number

LONGEST = 40
"""Steps, times layers and directions. Each takes about 50 ms to compile, and a fifth of eager's time to run."""

_LAYERS = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})
_RECURRENCE_FIX = "Leave it between the graphs, or capture it with fullgraph=True."


def refuse_long_recurrence(tracer: Tracer, function: Any, args: tuple[Any, ...]) -> None:
    """Raise `UnsupportedCall` where a recurrent layer is better called between two graphs."""
    if tracer.sizes.policy.whole or function not in _LAYERS or len(args) != 9:
        return
    input, _, _, _, layers, _, _, bidirectional, batch_first = args
    if not isinstance(input, AbstractTensor) or input.dim() != 3:
        return
    length = input.shape[1 if batch_first else 0]
    if not isinstance(length, int) or (function is torch.lstm and onednn_takes_lstm(input.dtype)):
        return
    steps = length * layers * (1 + bidirectional)
    if steps > LONGEST:
        raise UnsupportedCall(
            f"torch.{function.__name__} of {steps} steps, which would all be in the graph", fix=_RECURRENCE_FIX
        )


# What torch says where C++ reads the memory of an abstract tensor.
_NO_MEMORY = "its data is not allocated yet"
# What tells a size of 1 from others, where sizes that data decides are taken to be larger.
_DECIDED_BY_ONES = frozenset({"squeeze", "squeeze_", "is_contiguous", "is_non_overlapping_and_dense", "is_nonzero"})
# What torch says where C++ reads sizes as numbers that are symbolic.
_SYMBOLIC = "with symbolic sizes/strides"
# What torch says of the sizes of nested tensors.
_NESTED = "NestedTensorImpl"
# Methods and functions that read the data of a tensor.
_DATA_READERS = frozenset(
    {"_nested_tensor_from_mask_left_aligned", "numpy", "__array__", "data_ptr", "storage", "untyped_storage"}
)


def to_host(tracer: Tracer, value: Value) -> Any:
    """The argument as torch sees it: abstract tensors in plain containers."""
    if isinstance(value, (TensorValue, WrapperValue)):
        return value.abstract
    if isinstance(value, Constant):
        return python_number(value.host())
    if isinstance(value, ObjectValue) and isinstance(value.base, Constant):
        return value.base.value
    if isinstance(value, TupleValue):
        items = [to_host(tracer, item) for item in value.values(tracer)]
        if value.cls is not torch.Size:
            return tuple(items)
        if any(isinstance(item, AbstractTensor) for item in items):
            raise DataDependent("a tensor in a torch.Size")
        return torch.Size(items)
    if isinstance(value, ListValue):
        return [to_host(tracer, item) for item in value.values(tracer)]
    if isinstance(value, DictValue):
        return {k.concrete(): to_host(tracer, v) for k, v in value.pairs(tracer)}
    if isinstance(value, SliceValue):
        return slice(*(to_host(tracer, _bound(tracer, bound)) for bound in (value.start, value.stop, value.step)))
    if isinstance(value, TracedArray) and is_number(value.example):
        return to_host(tracer, value.call_method(tracer, "item", [], {}))
    try:
        return value.concrete()
    except NotConcrete:
        raise UnsupportedValue(f"a torch function was given a {value.describe()}") from None


def _bound(tracer: Tracer, bound: Value) -> Value:
    """The bound of a slice, the number in it where it is a tensor."""
    is_whole = isinstance(bound, TensorValue) and bound.abstract.dtype in call_arguments.INTEGERS
    return number_of(tracer, bound, "item", "the bound of a slice") if is_whole else bound  # type: ignore[arg-type]


def _refuse_setters(function: Any) -> None:
    """Changes of torch's own state, save those that are undone on leaving a `with`."""
    name = getattr(function, "__name__", "")
    is_setter = name.startswith(("set_", "_set_")) and not isinstance(function, (MethodDescriptorType, FunctionType))
    if is_setter and "autocast" not in name and name != "set_":
        raise UnsupportedCall(f"torch.{name} in captured code")
    module = getattr(function, "__module__", None) or ""
    if module.startswith("torch._C") and module not in _OPERATIONS and not name.startswith(_READERS):
        raise UnsupportedCall(f"{module}.{name} in captured code")


# Where torch's operations on tensors are; what else is in torch._C is about torch's own state.
_OPERATIONS = frozenset(f"torch._C._{name}" for name in ("nn", "linalg", "fft", "special", "sparse", "nested"))
_READERS = ("is_", "_is_", "get_", "_get_", "has_", "_has_", "_len_", "autocast", "_autocast", "_resolve_process_group")


def call_torch(
    tracer: Tracer,
    function: Callable[..., Any],
    args: list[Value],
    kwargs: dict[str, Value],
    *,
    target: str | None = None,
    abstract: Callable[..., Any] | None = None,
) -> Value:
    """Evaluate one torch call.

    target: names functions that do not know their own name. abstract: what is called on abstract tensors (default: the
    function).
    """
    _refuse_setters(function)
    overridden = overridden_call(tracer, function, args, kwargs, target)
    if overridden is not None:
        return overridden
    if target is None and len(args) == 1 and getattr(function, "__name__", "") == "__get__":
        return args[0].get_attribute(tracer, function.__self__.__name__)
    if any(holds_wrapper(tracer, arg) for arg in (*args, *kwargs.values())):
        return call_wrapper(tracer, function, args, kwargs)
    if function in _NUMBERS and len(args) == 1 and isinstance(args[0], TensorValue):
        return _NUMBERS[function](tracer, args[0])
    host_args = tuple(to_host(tracer, arg) for arg in args)
    host_kwargs = {key: to_host(tracer, value) for key, value in kwargs.items()}
    host_args, host_kwargs = call_arguments.with_index(tracer, function, host_args, host_kwargs)
    refuse_long_recurrence(tracer, function, host_args)
    tracer.mode.read.clear()
    writes = len(tracer.mode.written)
    try:
        known_args = call_arguments.with_known_index(function, host_args)
        result = evaluate(tracer, function if abstract is None else abstract, known_args, host_kwargs)
    except _ReadByC:
        checked = call_checked(tracer, function, host_args, host_kwargs)
        if checked is None:
            raise
        return wrap_result(tracer, checked, tracer.inputs.tensors)
    refuse_writes(tracer, writes)
    if tracer.mode.read:
        host_args, host_kwargs = with_numbers(tracer, (host_args, host_kwargs))
    if not _is_node(result):
        _guard_state(tracer, function, args, kwargs, result)
        outside = getattr(args[0], "real", None) if args and isinstance(args[0], TensorValue) else None
        is_own = outside is not None and getattr(function, "__name__", "") in _UNTYPED
        return tracer.objects.fresh(function(outside) if is_own else result)
    note_content(function, host_args, host_kwargs, result, tracer)
    return record(tracer, target or _target(function), host_args, host_kwargs, result)


class _ReadByC(DataDependent):
    """C++ reads what is in a tensor."""


# What a tensor has besides its type, and what may change where the frame itself changes it.
_UNTYPED = frozenset({"storage_offset", "_is_view"})
_SCOPED = ("grad", "autocast", "inference")


def _guard_state(tracer: Tracer, function: Any, args: list[Value], kwargs: dict[str, Value], result: Any) -> None:
    """A plain result follows from the types of tensors, or from the state of torch, which may change."""
    name = getattr(function, "__name__", "")
    if args and isinstance(args[0], TensorValue):
        # The inputs whose memory a tensor lies in are where they were in it.
        for known in tuple(tracer.inputs.tensors.values()) if name in _UNTYPED else ():
            shared = known.abstract.storage_record is args[0].abstract.storage_record
            if known.real is not None and known.source is not None and shared:
                tracer.guards.reading(function, (), function(known.real), known.source)
        return
    is_reader = isinstance(function, BuiltinFunctionType) and not any(word in name for word in _SCOPED)
    if is_reader and not kwargs and all(isinstance(arg, Constant) for arg in args):
        tracer.guards.reading(function, tuple(arg.concrete() for arg in args), result)


def evaluate(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a torch function gives on abstract tensors; what it raises is raised in the evaluated program."""
    name = getattr(function, "__name__", "")
    if args and isinstance(args[0], AbstractTensor):
        if name == "backward":
            raise UnsupportedCall("Tensor.backward() inside captured code")
        # An abstract tensor does not know whether its real one is a lazy conjugate or negation; inputs are neither.
        is_lazy_flag = name == "is_neg" or (name == "is_conj" and args[0].dtype.is_complex)
        if is_lazy_flag and tracer.inputs.tensors[id(args[0])].role == "result":
            raise UnsupportedCall(f"Tensor.{name}() of a tensor that the captured code makes")
        if name in _DATA_READERS:
            raise DataDependent(f"Tensor.{name}() needs the content of a tensor")
    is_open = bool(tracer.sizes.env.unbacked) and call_arguments.has_unbacked((*args, *kwargs.values()))
    if is_open and name in _DECIDED_BY_ONES and not _squeezes_known(name, args, kwargs):
        raise DataDependent(f"{name}() of a size that depends on data")
    tracer.sizes.env.generic = True
    try:
        if is_open:
            return call_arguments.with_equal_sizes(
                tracer, lambda: abstract_call(function, args, kwargs, mode=tracer.mode)
            )
        return abstract_call(function, args, kwargs, mode=tracer.mode)
    except DataDependentError as error:
        kind = DataDependent if is_open else _ReadByC
        raise kind(f"{name}(): {error.message}", fix=FACT if is_open else None) from None
    except SpecializedSize:
        raise
    except Exception as error:
        if is_open:
            # With the numbers of a call it may well be right.
            raise DataDependent(f"{name}(): whether its sizes fit depends on data ({error})", fix=FACT) from None
        raise _as_raised(tracer, name, (args, kwargs), error) from None
    finally:
        tracer.sizes.env.generic = False


def _squeezes_known(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it is a squeeze of dimensions whose sizes are known."""
    dims = args[1:2] or ((kwargs["dim"],) if "dim" in kwargs else ())
    if not name.startswith("squeeze") or not dims:
        return False
    wanted = dims[0] if isinstance(dims[0], (tuple, list)) else dims
    shape = args[0].meta.shape
    in_range = all(isinstance(dim, int) and -len(shape) <= dim < len(shape) for dim in wanted)
    return in_range and not any(is_open_size(shape[dim]) for dim in wanted)


# What eager raises too (a warning where a filter says "error"); anything else is a fault of the evaluator.
_EAGER = (RuntimeError, TypeError, ValueError, IndexError, OverflowError, Warning)


def _as_raised(tracer: Tracer, name: str, given: Any, error: Exception) -> Exception:
    """What a torch function raises in the evaluated program, or why that cannot be told."""
    if isinstance(error, StageError) and not isinstance(error, TypeRuleError):
        return AbstractCallFailed(f"{name}: {error.message}")
    if not isinstance(error, _EAGER):
        return error
    # The call itself may have fixed the sizes that it was given: none of them is open then any more.
    call_arguments.refuse_sizes(tracer, name, given, everything=_SYMBOLIC in str(error))
    if isinstance(error, TypeRuleError):
        return tracer.raises(error.eager, UnknownText(error))
    if _NO_MEMORY in str(error):
        return AbstractCallFailed(f"{name}() reads the content of a tensor")
    if _NESTED in str(error):
        return AbstractCallFailed(f"{name}() makes a nested tensor")
    return tracer.raises(type(error), UnknownText(error))


def _is_node(result: Any) -> bool:
    return result is None or bool(tensors_in(result))


def _target(function: Any) -> str:
    try:
        return target_name(function)
    except StageError as error:
        name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function)
        raise UnsupportedCall(f"{name}, a function of torch without a public name") from error


def record(tracer: Tracer, target: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Value:
    """Append the node and wrap its result; a tensor that went in and comes out stays the same object."""
    wire = tracer.inputs.wire_argument
    try:
        node_args = tuple(to_arg(arg, wire) for arg in args)
        node_kwargs = {key: to_arg(value, wire) for key, value in kwargs.items()}
    except StageError as error:
        raise UnsupportedValue(f"{target}: {error.message}") from None
    results = tensors_in(result)
    if tracer.sizes.env.unbacked:
        call_arguments.refuse_unread(tracer, (*node_args, *node_kwargs.values()))
    values = tracer.graph.add_node(target, node_args, node_kwargs, results, tracer.line())
    if tracer.sizes.env.unbacked:
        call_arguments.read_sizes(tracer, values, results)
    known = {id(tensor): tracer.inputs.tensor_of(tensor, name) for tensor, name in zip(results, values, strict=True)}
    return wrap_result(tracer, result, known)


def record_operator(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator on abstract tensors as a node; returns its result on them."""
    result = evaluate(tracer, function, args, kwargs)
    if _is_node(result):
        record(tracer, _target(function), args, kwargs, result)
    return result


def wrap_result(tracer: Tracer, result: Any, known: dict[int, TensorValue]) -> Value:
    """A result tree as values."""
    if isinstance(result, AbstractTensor):
        return known[id(result)]
    if isinstance(result, tuple):
        return TupleValue([wrap_result(tracer, item, known) for item in result], cls=type(result))
    if isinstance(result, list):
        return ListValue([wrap_result(tracer, item, known) for item in result])
    if isinstance(result, dict):
        return tracer.objects.new_dict({key: wrap_result(tracer, item, known) for key, item in result.items()})
    return tracer.objects.fresh(result)


def number_of(tracer: Tracer, value: TensorValue, method: str, what: str, cls: Any = None) -> Value:
    """The Python number in a tensor: known at capture time, or of the graph where that is allowed."""
    policy = tracer.sizes.policy
    is_of_graph = policy.of_data and not tracer.graph.is_body
    # Where a graph may end, a number of a buffer is guarded first: what branches on it is then captured.
    if is_of_graph and policy.whole and value.abstract.storage_record.is_deferred:
        return read_number(tracer, value, getattr(torch.Tensor, method))
    try:
        found = data_dependent_scalar(tracer, value, what)
    except DataDependent:
        if not is_of_graph:
            raise
        return read_number(tracer, value, getattr(torch.Tensor, method))
    return Constant(found if cls is None else cls(found))


def _list(tracer: Tracer, tensor: TensorValue) -> Value:
    """tolist()."""
    try:
        return tracer.objects.fresh(tracer.mode.content_of(tensor.abstract).tolist())
    except DataDependentError:
        if not tracer.sizes.policy.of_data or tensor.abstract.numel() > _LONGEST_LIST:
            raise DataDependent("Tensor.tolist() needs the content of a tensor") from None
    if not tensor.abstract.dim():
        return number_of(tracer, tensor, "item", "item()")
    rows = call_torch(tracer, torch.Tensor.unbind, [tensor, Constant(0)], {})
    return ListValue([_list(tracer, row) for row in rows.values(tracer)])  # type: ignore[attr-defined]


_LONGEST_LIST = 64
_NUMBERS: dict[Any, Callable[[Tracer, TensorValue], Value]] = {
    torch.Tensor.item: lambda tracer, tensor: number_of(tracer, tensor, "item", "item()"),
    torch.Tensor.tolist: _list,
}


def data_dependent_scalar(tracer: Tracer, value: TensorValue, what: str) -> Any:
    """The Python number in a tensor whose content is known at capture time; else a coded error."""
    try:
        return abstract_call(torch.Tensor.item, (value.abstract,), mode=tracer.mode)
    except DataDependentError:
        raise DataDependent(f"{what} ({value.describe()}) depends on its content") from None
    except (RuntimeError, TypeError, ValueError) as error:
        raise tracer.raises(type(error), UnknownText(error)) from None
