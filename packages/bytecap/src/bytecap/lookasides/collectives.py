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
    return tensors, [_SENT.all_reduce(each.detach(), op, group.group_name) for each in tensors]


def _all_reduce_coalesced(group: Any, op: str, root: int, tensors: list[Tensor]) -> Any:
    return tensors, _SENT.all_reduce_coalesced([each.detach() for each in tensors], op, group.group_name)


def _broadcast(group: Any, op: str, root: int, tensors: list[Tensor]) -> Any:
    return tensors, [_SENT.broadcast(each.detach(), root, group.group_name) for each in tensors]


def _all_gather(group: Any, op: str, root: int, outputs: list[list[Tensor]], inputs: list[Tensor]) -> Any:
    if len(inputs) != 1 or any(each.shape != inputs[0].shape for each in outputs[0]):
        return None
    given = inputs[0].detach().unsqueeze(0)
    return outputs[0], [_SENT.all_gather_into_tensor(given, group.size(), group.group_name)]


def _all_gather_single(group: Any, op: str, root: int, output: Tensor, input: Tensor) -> Any:
    return [output], [_SENT.all_gather_into_tensor(input.detach(), group.size(), group.group_name)]


def _all_gather_coalesced(group: Any, op: str, root: int, outputs: list[Tensor], inputs: list[Tensor]) -> Any:
    given = [each.detach() for each in inputs]
    return outputs, _SENT.all_gather_into_tensor_coalesced(given, group.size(), group.group_name)


def _reduce_scatter(group: Any, op: str, root: int, outputs: list[Tensor], inputs: list[list[Tensor]]) -> Any:
    if len(outputs) != 1 or any(each.shape != outputs[0].shape for each in inputs[0]):
        return None
    given = torch.stack(inputs[0]).detach()
    return outputs, [_SENT.reduce_scatter_tensor(given, op, group.size(), group.group_name)]


def _reduce_scatter_single(group: Any, op: str, root: int, output: Tensor, input: Tensor) -> Any:
    return [output], [_SENT.reduce_scatter_tensor(input.detach(), op, group.size(), group.group_name)]


def _reduce_scatter_coalesced(group: Any, op: str, root: int, outputs: list[Tensor], inputs: list[Tensor]) -> Any:
    given = [each.detach() for each in inputs]
    return outputs, _SENT.reduce_scatter_tensor_coalesced(given, op, group.size(), group.group_name)


def _all_to_all_single(
    group: Any, op: str, root: int, output: Tensor, input: Tensor, received: list[int], sent: list[int]
) -> Any:
    size = group.size()
    received = received or [output.shape[0] // size] * size
    sent = sent or [input.shape[0] // size] * size
    return [output], [_SENT.all_to_all_single(input.detach(), received, sent, group.group_name)]


def _receive(outputs: list[Tensor], pending: list[Tensor]) -> None:
    received = [_SENT.wait_tensor(each) for each in pending]
    if len(received) != len(outputs):
        received = received[0].unbind()
    for output, each in zip(outputs, received, strict=True):
        output.data.copy_(each.view(output.shape))


_METHODS = {
    "allreduce": _all_reduce,
    "allreduce_coalesced": _all_reduce_coalesced,
    "broadcast": _broadcast,
    "allgather": _all_gather,
    "_allgather_base": _all_gather_single,
    "all_gather_single": _all_gather_single,
    "allgather_into_tensor_coalesced": _all_gather_coalesced,
    "all_gather_single_coalesced": _all_gather_coalesced,
    "reduce_scatter": _reduce_scatter,
    "_reduce_scatter_base": _reduce_scatter_single,
    "reduce_scatter_single": _reduce_scatter_single,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_coalesced,
    "reduce_scatter_single_coalesced": _reduce_scatter_coalesced,
    "alltoall_base": _all_to_all_single,
    "all_to_all_single": _all_to_all_single,
}
"""Methods of a process group, by the names of several versions of torch: the function that is evaluated."""

_OPTIONS = (
    *("AllToAllOptions", "AllgatherOptions", "AllreduceCoalescedOptions", "AllreduceOptions", "BarrierOptions"),
    *("BroadcastOptions", "GatherOptions", "ReduceOptions", "ReduceScatterOptions", "ScatterOptions"),
)


def _collective(function: Callable[..., Any]) -> Callable[..., Value]:
    name = function.__name__.lstrip("_")

    def call(tracer: Tracer, group: Value, *args: Value, opts: Value | None = None) -> Value:
        *tensors, options = args if opts is None else (*args, opts)
        if not isinstance(options, CollectiveOptions):
            raise UnsupportedCall(f"{name} of a process group without options")
        settings = Constant(_name_of_op(options.real)), Constant(getattr(options.real, "rootRank", 0))
        found = tracer.objects.wrap(function, None).call(tracer, [group, *settings, *tensors], {})
        if not isinstance(found, TupleValue):
            raise UnsupportedCall(f"{name} of tensors of several sizes")

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


def _options(cls: type) -> Callable[..., Value]:
    return lambda tracer: CollectiveOptions(cls())


COLLECTIVES: dict[Any, Callable[..., Value]] = {}
if dist.is_available():
    for _name, _function in _METHODS.items():
        _method = getattr(dist.ProcessGroup, _name, None)
        if _method is not None:  # pybind11 before 3 wraps it in an `instancemethod`
            COLLECTIVES[getattr(_method, "__func__", _method)] = _collective(_function)
    for _name in _OPTIONS:
        COLLECTIVES[getattr(dist.distributed_c10d, _name)] = _options(getattr(dist.distributed_c10d, _name))
