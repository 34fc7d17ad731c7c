"""Collectives that write into tensors: functional ones, as documents have them, whose results are copied.

dist.all_reduce(x)  ::= torch's Python around it, down to  work = group.allreduce([x], options); work.wait()
group.allreduce     ::= pending = _c10d_functional.all_reduce(x)        at once
work.wait           ::= x.copy_(_c10d_functional.wait_tensor(pending))

What is sent is the same, so that a process that runs plain and one that does not still meet (but for gloo's
reduce_scatter, of which the functional form is another algorithm). As in eager, gradients do not see it.
A collective without such a form (barrier, send, gather, scatter, reduce) ends the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.objects.base import Constant, Value
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.distributed import CollectiveOptions, Work

_SENT = torch.ops._c10d_functional if dist.is_available() else None


def _all_reduce(group: Any, op: str, root: int, tensors: list[Tensor]) -> Any:
    return tensors, tensors, (op,)


def _broadcast(group: Any, op: str, root: int, tensors: list[Tensor]) -> Any:
    return tensors, tensors, (root,)


def _all_gather(group: Any, op: str, root: int, outputs: list[list[Tensor]], inputs: list[Tensor]) -> Any:
    if len(inputs) != 1 or any(each.shape != inputs[0].shape for each in outputs[0]):
        return None
    return _all_gather_into(group, op, root, outputs[0], [inputs[0].unsqueeze(0)])


def _all_gather_into(group: Any, op: str, root: int, outputs: Any, inputs: Any) -> Any:
    """The functional form ends the process (torch 2.11) where gloo is given tensors of a GPU."""
    if (inputs if isinstance(inputs, Tensor) else inputs[0]).is_cuda and group._get_backend_name() == "gloo":
        return None
    return outputs, inputs, (group.size(),)


def _reduce_scatter(group: Any, op: str, root: int, outputs: list[Tensor], inputs: list[list[Tensor]]) -> Any:
    if len(outputs) != 1 or any(each.shape != outputs[0].shape for each in inputs[0]):
        return None
    return outputs, [torch.stack(inputs[0])], (op, group.size())


def _reduce_scatter_into(group: Any, op: str, root: int, outputs: Any, inputs: Any) -> Any:
    return outputs, inputs, (op, group.size())


def _all_to_all_single(
    group: Any, op: str, root: int, output: Tensor, input: Tensor, received: list[int], sent: list[int]
) -> Any:
    size = group.size()
    return output, input, (received or [output.shape[0] // size] * size, sent or [input.shape[0] // size] * size)


def _send(send: Any, is_coalesced: bool, function: Callable[..., Any], group: Any, *args: Any) -> Any:
    """Tensors that are written, and what the functional collective gives for them; None where there is none."""
    found = function(group, *args)
    if found is None:
        return None
    outputs, inputs, settings = found
    if isinstance(outputs, Tensor):
        outputs, inputs = [outputs], [inputs]
    given = [each.detach() for each in inputs]
    if is_coalesced:
        return outputs, send(given, *settings, group.group_name)
    return outputs, [send(each, *settings, group.group_name) for each in given]


def _receive(outputs: list[Tensor], pending: list[Tensor]) -> None:
    received = [_SENT.wait_tensor(each) for each in pending]
    if len(received) != len(outputs):
        received = received[0].unbind()
    for output, each in zip(outputs, received, strict=True):
        output.data.copy_(each.view(output.shape))


_GATHER, _SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"
_METHODS = {
    "allreduce": ("all_reduce", _all_reduce),
    "allreduce_coalesced": ("all_reduce_coalesced", _all_reduce),
    "broadcast": ("broadcast", _broadcast),
    "allgather": (_GATHER, _all_gather),
    **dict.fromkeys(("_allgather_base", "all_gather_single"), (_GATHER, _all_gather_into)),
    **dict.fromkeys(
        ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"), (f"{_GATHER}_coalesced", _all_gather_into)
    ),
    "reduce_scatter": (_SCATTER, _reduce_scatter),
    **dict.fromkeys(("_reduce_scatter_base", "reduce_scatter_single"), (_SCATTER, _reduce_scatter_into)),
    **dict.fromkeys(
        ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
        (f"{_SCATTER}_coalesced", _reduce_scatter_into),
    ),
    **dict.fromkeys(("alltoall_base", "all_to_all_single"), ("all_to_all_single", _all_to_all_single)),
}
"""Methods of a process group, by the names of several versions of torch: the functional collective, and the function
that is evaluated for the tensors that are written, those that are sent, and its other arguments."""

_OPTIONS = (
    *("AllToAllOptions", "AllgatherOptions", "AllreduceCoalescedOptions", "AllreduceOptions", "BarrierOptions"),
    *("BroadcastOptions", "GatherOptions", "ReduceOptions", "ReduceScatterOptions", "ScatterOptions"),
)


def _collective(name: str, function: Callable[..., Any]) -> Callable[..., Value]:
    def call(tracer: Tracer, group: Value, *args: Value, opts: Value | None = None) -> Value:
        *tensors, options = args if opts is None else (*args, opts)
        if not isinstance(options, CollectiveOptions):
            raise UnsupportedCall(f"{name} of a process group without options")
        settings = Constant(_name_of_op(options.real)), Constant(getattr(options.real, "rootRank", 0))
        send, evaluated, form = (tracer.objects.wrap(each, None) for each in (_send, function, getattr(_SENT, name)))
        is_coalesced = Constant(name.endswith("_coalesced"))
        found = send.call(tracer, [form, is_coalesced, evaluated, group, *settings, *tensors], {})
        if not isinstance(found, TupleValue):
            raise UnsupportedCall(f"{name} of tensors of several sizes, or of a GPU by gloo")

        def finish() -> None:
            tracer.objects.wrap(_receive, None).call(tracer, found.values(tracer), {})

        work = Work(finish, dist.Work)
        tracer.effects.append(work)
        return work

    return call


def _name_of_op(options: Any) -> str:
    op = getattr(options, "reduceOp", dist.ReduceOp.SUM)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        if op == getattr(dist.ReduceOp, name):
            return name.lower()
    raise UnsupportedCall(f"{op} of a collective, which is not among those of functional collectives")


COLLECTIVES: dict[Any, Callable[..., Value]] = {}
if dist.is_available():
    for _name, _row in _METHODS.items():
        _method = getattr(dist.ProcessGroup, _name, None)
        if _method is not None:  # pybind11 before 3 wraps it in an `instancemethod`
            COLLECTIVES[getattr(_method, "__func__", _method)] = _collective(*_row)
    for _cls in (getattr(dist.distributed_c10d, name) for name in _OPTIONS):
        COLLECTIVES[_cls] = lambda tracer, cls=_cls: CollectiveOptions(cls())
