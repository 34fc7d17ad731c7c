"""The autograd function round the two halves, written as straight-line Python for one binding.

forward  ::= run save* return                      (ctx, *inputs) -> results that the caller may see
backward ::= (second order)? tangent* run return   (ctx, *grads)  -> gradients of the inputs

Autograd has one node for the program, and frees what it saves with the first backward. Eager has a node for each call,
and runs the backward of one result after that of another as long as no node that was freed is needed again: so may
saved tensors outlive a backward of some of the results (`Held`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from absint.executor import Executor
from aotgrad.batched import for_each_row
from aotgrad.errors import ForeignTangent
from aotgrad.higher_order import Program, differentiable_gradients, kept_inputs, random_states, room_for, versions_of
from aotgrad.torch_capabilities import TORCH
from stagewire.expr import evaluate
from stagewire.grad import Binding, SavedInput, SavedSize, Tangent, public_results
from stagewire.symbols import size_reader
from stagewire.types import contiguous_stride

Partial = Callable[[tuple[bool, ...]], Executor | None]
"""From which tangents arrived to the backward for these, on one list; None where there is none, or none yet."""


def make_function(
    binding: Binding,
    forward: Executor,
    backward: Executor,
    gradient: Callable[[], Program] | None,
    constants: tuple[torch.Tensor, ...],
    *,
    takes_list: bool = False,
    partial: Partial | None = None,
) -> Executor:
    """A callable over the inputs that returns the visible results, with the backward as their history."""
    TORCH.require("keeps_graph")
    names: dict[str, Any] = {
        "__name__": __name__,
        "run_forward": forward,
        "run_backward": backward,
        "constants": constants,
        "is_grad_enabled": torch.is_grad_enabled,
        "versions_of": versions_of,
        "keeps_graph": TORCH.keeps_graph,
        "Tensor": torch.Tensor,
        "for_each_row": for_each_row,
        "second_order": differentiable_gradients(binding, gradient, backward),
        "run_partial": partial,
        "read_sizes": size_reader(binding.inputs),
        "random_states": random_states(binding.gradient_devices),
    }
    kept = kept_inputs(binding) if gradient is not None else ()
    draws = gradient is not None and bool(binding.gradient_devices)
    lines = [*_forward_lines(binding, kept, draws, names), *_backward_lines(binding, kept, draws, takes_list, names)]
    exec(compile("\n".join(lines), "<aotgrad.function>", "exec"), names)
    members = {"forward": staticmethod(names["forward"]), "backward": staticmethod(names["backward"])}
    function = type(torch.autograd.Function)("Compiled", (torch.autograd.Function,), members)
    # Function.apply itself is Python that looks for functorch wrappers in every argument; this is what it calls.
    return super(torch.autograd.Function, function).apply


def visible_results(binding: Binding) -> int:
    """How many of the forward's first results outputs and mutations use."""
    return max(public_results(binding), default=-1) + 1


def _forward_lines(binding: Binding, kept: tuple[int, ...], draws: bool, names: dict[str, Any]) -> list[str]:
    visible = visible_results(binding)
    differentiable = {tangent.result for tangent in binding.tangents}
    written = {mutation.result for mutation in binding.mutations if mutation.in_place}
    shown = [None if number in written else f"results[{number}]" for number in range(visible)]
    closed = [text for number, text in enumerate(shown) if text is not None and number not in differentiable]
    saved = [_saved(slot, len(binding.inputs)) for slot in binding.saved if not isinstance(slot, SavedSize)]
    reads = None if names["read_sizes"] is None else "read_sizes(inputs)"
    lines = ["def forward(ctx, *inputs):", f"    ctx.sizes = {reads}"]
    if draws:
        lines.append("    ctx.random = random_states()")
    if binding.closed_by:
        lines.append("    ctx.held = None")
    lines += [
        f"    results = run_forward(*inputs{', *constants' if binding.constants else ''})",
        f"    ctx.save_for_backward({', '.join(saved)})",
        "    ctx.set_materialize_grads(False)",
    ]
    if kept:
        # Not among the saved tensors: a first-order backward must not mind what became of these.
        lines += [
            f"    ctx.inputs = ({''.join(f'inputs[{number}], ' for number in kept)})",
            "    ctx.versions = versions_of(ctx.inputs)",
        ]
    if closed:
        lines.append(f"    ctx.mark_non_differentiable({', '.join(closed)})")
    return [*lines, f"    return ({''.join(f'{text}, ' for text in shown)})"]


def _saved(slot: Any, inputs: int) -> str:
    if not isinstance(slot, SavedInput):
        return f"results[{slot.result}]"
    return f"inputs[{slot.input}]" if slot.input < inputs else f"constants[{slot.input - inputs}]"


def _backward_lines(
    binding: Binding, kept: tuple[int, ...], draws: bool, takes_list: bool, names: dict[str, Any]
) -> list[str]:
    grads = ", ".join(f"grad{number}" for number in range(visible_results(binding)))
    tangents = [f"grad{tangent.result}" for tangent in binding.tangents]
    given, there = ", ".join(["*saved", *tangents]), ", ".join(f"{name} is not None" for name in tangents)
    order = ["None" if number is None else f"found[{number}]" for number in binding.input_gradients]
    returned = f"return ({''.join(f'{text}, ' for text in order)})"
    saved = f"saved_tensors(ctx, ({there}), closed_by, keeps_graph)" if binding.closed_by else "ctx.saved_tensors"
    names |= {"saved_tensors": saved_tensors, "closed_by": binding.closed_by}
    # As torch's own functions: where no gradient arrives none leaves, and parameters keep None.
    lines = [
        f"def backward(ctx, {grads}):",
        f"    if {' is '.join([*tangents, 'None'])}:",
        f"        return ({'None, ' * len(binding.input_gradients)})",
        f"    saved = {saved}",
    ]
    if numbers := [slot.symbol for slot in binding.saved if isinstance(slot, SavedSize)]:
        lines += ["    sizes = ctx.sizes", f"    saved = (*saved, {', '.join(f'sizes[{name!r}]' for name in numbers)})"]
    readers = "".join(f"read_{name}, " for name in tangents)
    if TORCH.has("is_batched"):
        names["is_batched"] = TORCH.is_batched
        lines += [
            f"    if {' or '.join(f'({name} is not None and is_batched({name}))' for name in tangents)}:",
            "        def of_row(rows):",
            f"            given = tuple([read(grad, ctx.sizes) for read, grad in zip(({readers}), rows)])",
            "            return second_order(ctx, saved, given) if is_grad_enabled() else run_backward(*saved, *given)",
            f"        found = for_each_row(of_row, ({''.join(f'{name}, ' for name in tangents)}))",
            f"        {returned}",
        ]
    if len(tangents) > 1 and names["run_partial"] is not None:
        # Where some tangents do not arrive, the backward for the others, if there is one by now.
        lines += [
            f"    if ({' or '.join(f'{name} is None' for name in tangents)}) and not is_grad_enabled():",
            f"        found = run_partial(({there}))",
            "        if found is not None:",
            f"            pairs = zip(({readers}), ({', '.join(tangents)}))",
            "            given = [*saved, *[read(grad, ctx.sizes) for read, grad in pairs if grad is not None]]",
            "            saved = pairs = None",
            "            ctx.maybe_clear_saved_tensors()",
            "            found = found(given)",
            f"            {returned}",
        ]
    if binding.gradient_tangents:
        lines.append(f"    arrived = ({there})")
    for tangent, name in zip(binding.tangents, tangents, strict=True):
        names[f"read_{name}"] = _tangent_reader(tangent)
        names[f"stride_{name}"] = tuple(tangent.type.stride)
        differs = f"type({name}) is not Tensor or {name}.stride() != stride_{name}"
        if not tangent.type.is_static:
            is_dense = tangent.type.stride == contiguous_stride(tangent.type.shape)
            differs = f"type({name}) is not Tensor or not {name}.is_contiguous()" if is_dense else "True"
        lines += [f"    if {name} is None or {differs}:", f"        {name} = read_{name}({name}, ctx.sizes)"]
    lines += [
        "    if is_grad_enabled():",
        f"        found = second_order(ctx, saved, ({''.join(f'{name}, ' for name in tangents)}))",
        "    else:",
    ]
    if takes_list:
        # With the saved tensors given up here, the list is what holds them: each goes once the backward has read it.
        lines += [
            f"        given = [{given}]",
            "        saved = None",
            "        ctx.maybe_clear_saved_tensors()",
            "        found = run_backward(given)",
        ]
    else:
        lines.append(f"        found = run_backward({given})")
    if kept or draws:
        is_over = "not keeps_graph()" if not binding.closed_by else "ctx.held is not None and ctx.held.tensors is None"
        lines += [f"    if {is_over}:", f"        {'ctx.inputs = ' * bool(kept)}ctx.random = None"]
    if binding.gradient_tangents:
        names["sources"] = binding.gradient_tangents
        lines += [
            "    if not all(arrived):",
            "        found = [g if any([arrived[i] for i in s]) else None for g, s in zip(found, sources)]",
        ]
    return [*lines, f"    {returned}"]


def _tangent_reader(tangent: Tangent) -> Callable[[torch.Tensor | None, dict[str, int]], torch.Tensor]:
    """Makes what autograd hands over the tensor that the backward expects: zeros for none, the expected strides."""
    expected = tangent.type
    is_static = expected.is_static

    def read(given: torch.Tensor | None, sizes: dict[str, int]) -> torch.Tensor:
        if given is None:
            return room_for(expected, sizes).zero_()
        if type(given).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise ForeignTangent(f"a gradient of class {type(given).__qualname__} for a plain result")
        stride = expected.stride if is_static else tuple([evaluate(step, sizes) for step in expected.stride])
        if all(n == 1 or a == b for n, a, b in zip(given.shape, given.stride(), stride, strict=True)):
            return given
        return _restride(given, stride)

    return read


def _restride(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The same elements in dense memory of these strides."""
    order = sorted(range(tensor.ndim), key=lambda d: (-stride[d], -tensor.shape[d], d))
    inverse = [order.index(d) for d in range(tensor.ndim)]
    turned = tensor.permute(order)
    if tensor.is_cuda and not any(tensor.stride()) and type(tensor) is torch.Tensor:
        return repeated(turned).permute(inverse)
    return turned.contiguous().permute(inverse)


def repeated(tensor: torch.Tensor) -> torch.Tensor:
    """An expanded scalar, as the gradient of a sum is, in dense memory. Written 16 bytes at a time: to copy elements of
    two bytes from one place takes a GPU five times as long as to fill memory."""
    together = 16 // tensor.element_size()
    if together < 2 or tensor.numel() == 0 or tensor.numel() % together:
        return tensor.contiguous()
    found = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    piece = tensor.as_strided((together,), (0,)).contiguous().view(torch.complex128)
    found.view(-1).view(torch.complex128).copy_(piece.expand(tensor.numel() // together))
    return found


Saved = tuple[torch.Tensor | None, ...]
_OVERWRITTEN = "one of the variables needed for gradient computation has been modified by an inplace operation"


class Held:
    """What a call has saved, behind a backward that has freed it.

    closed: the tangents whose backward needs what was freed. tensors: None where that is all of them.
    """

    def __init__(self, tensors: Saved | None, closed: frozenset[int]) -> None:
        self.tensors = tensors
        self.closed = closed
        self.versions = [] if tensors is None else versions_of(_present(tensors))


def saved_tensors(
    ctx: Any, arrived: tuple[bool, ...], closed_by: tuple[tuple[int, ...], ...], keeps_graph: Callable[[], bool]
) -> Saved:
    """The saved tensors of a call, for the backward of those results whose tangents arrived.

    ctx.held is None, or a `Held` from then on. Raises RuntimeError, as autograd does, where they have been freed for
    this backward, or were written since.
    """
    held: Held | None = ctx.held
    running = frozenset(number for number, is_there in enumerate(arrived) if is_there)
    if held is None or held.tensors is None or not held.closed.isdisjoint(running):
        saved: Saved = ctx.saved_tensors
    else:
        saved = held.tensors
        if versions_of(_present(saved)) != held.versions:
            raise RuntimeError(_OVERWRITTEN)
    if not keeps_graph():
        closed = (frozenset() if held is None else held.closed).union(*(closed_by[number] for number in running))
        is_open = len(closed) < len(closed_by)
        # A result that is saved would hold the node that holds it.
        apart = [one.detach() if one is not None and one.grad_fn is ctx else one for one in saved if is_open]
        ctx.held = Held(tuple(apart) if is_open else None, closed)
    return saved


def _present(tensors: Saved) -> tuple[torch.Tensor, ...]:
    return tuple([tensor for tensor in tensors if tensor is not None])
