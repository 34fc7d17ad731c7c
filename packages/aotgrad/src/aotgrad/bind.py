"""`bind`: compiled halves and a `Binding` become one callable over the caller's tensors.

    call     ::= (check overlap)? run mutation* output* | plain
    run      ::= forward | Function.apply(forward, backward)

A call that raises has left its inputs as they were (`forward` and `plain` must do so), or raises `PartlyDone` of what
it met.

The callable is straight-line Python, written per binding: see `call_lines`.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch

from absint.executor import Executor
from absint.targets import resolve
from absint.wire import from_arg
from aotgrad.errors import AliasedMutation, OtherOffset
from aotgrad.function import Partial, make_function
from aotgrad.higher_order import Program
from aotgrad.torch_capabilities import TORCH
from stagewire.errors import PartlyDone, StageError
from stagewire.expr import Expr, evaluate
from stagewire.grad import Binding, BoundConstant, Constant, Fresh, Literally, Mutation, SameAsInput, ViewOf
from stagewire.graph import Arg, leaves
from stagewire.symbols import size_reader
from stagewire.types import TensorType, reach

_MOST_STEPS = 8
"""From here on, setting a version counter is quicker than moving it step by step."""


def bind(
    binding: Binding,
    forward: Executor,
    backward: Executor | None = None,
    *,
    gradient: Callable[[], Program] | None = None,
    plain: Callable[..., tuple[Any, ...]] | None = None,
    takes_list: bool = False,
    partial: Partial | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """The program as a callable over its inputs.

    forward, backward: see the calling convention of `stagewire.grad`. Without `backward` no autograd function is made.
    gradient: makes the gradient's own program, bound (`Options(gradient_order=n + 1)` of the same capture), for a
    backward with create_graph=True; asked once, by the first such backward. Without it that is a `DoubleBackward`.
    plain: the captured calls, for inputs that the graphs were not made for: a mutated one shares memory with another,
    or an input that `as_strided` addresses starts elsewhere in its storage. Without it these are errors.
    takes_list: `backward` also takes one list of its inputs, and lets go of each of them as soon as it can.
    partial: makes the backward for some of the tangents (`aotgrad.partial`), on such a list.
    """
    TORCH.require("copy_all", "set_grad_enabled")
    constants = tuple(read_constant(constant) for constant in binding.constants)
    names: dict[str, Any] = {
        "constants": constants,
        "copy_all": TORCH.copy_all,
        "set_grad": TORCH.set_grad_enabled,
        "is_grad_enabled": torch.is_grad_enabled,
    }
    if backward is None:
        names["run"] = forward
    else:
        names["run"] = make_function(
            binding, forward, backward, gradient and _once(gradient), constants, takes_list=takes_list, partial=partial
        )
    if binding.mutations and len(binding.inputs) > 1:
        names["check"] = _overlap_check(binding)
    names["plain"] = plain
    lines = call_lines(binding, names, differentiable=backward is not None)
    exec(compile("\n".join(lines), "<aotgrad.bind>", "exec"), names)
    return names["call"]


def _once(make: Callable[[], Program]) -> Callable[[], Program]:
    """What `make` returns, or raises, made by the first call; backwards may run in several threads."""
    made: list[Program | StageError] = []
    lock = threading.RLock()  # a finalizer may run a backward, too

    def get() -> Program:
        with lock:
            if not made:
                try:
                    made.append(make())
                except StageError as error:
                    made.append(error.with_traceback(None))
        if isinstance(made[0], StageError):
            raise made[0]
        return made[0]

    return get


def call_lines(binding: Binding, names: dict[str, Any], *, differentiable: bool) -> list[str]:
    """The lines of the callable; objects that they use are put into `names`."""
    lines = ["def call(*inputs):"]
    for number, given in enumerate(binding.inputs):
        if given.fixed_offset:
            names["refuse_offset"] = _refuse_offset
            refuse = f"refuse_offset({given.name!r}, {given.type.storage_offset}, inputs[{number}])"
            lines += [
                f"    if inputs[{number}].storage_offset() != {given.type.storage_offset}:",
                f"        return {'plain(*inputs)' if names['plain'] else refuse}",
            ]
    if "check" in names:
        refuse = "plain(*inputs)" if names["plain"] else "refuse_overlap(overlap)"
        names["refuse_overlap"] = _refuse_overlap
        lines += ["    overlap = check(inputs)", "    if overlap is not None:", f"        return {refuse}"]
    lines += _run_lines(binding, differentiable)
    ending = [*_mutation_lines(binding, names), *_output_lines(binding, names)]
    if not binding.mutations:
        return [*lines, *ending]
    # Until here the inputs are as they were.
    names["PartlyDone"] = PartlyDone
    return [
        *lines,
        "    try:",
        *(f"    {line}" for line in ending),
        "    except Exception as error:",
        "        raise PartlyDone(error) from error",
    ]


def _refuse_offset(name: str, expected: int, tensor: torch.Tensor) -> None:
    raise OtherOffset(f"the input {name} starts at element {tensor.storage_offset()} of its storage, not {expected}")


def _run_lines(binding: Binding, differentiable: bool) -> list[str]:
    if differentiable:
        return ["    results = run(*inputs)"]
    call = f"results = run(*inputs{', *constants' if binding.constants else ''})"
    # The graph does not say where the program detached, so autograd must not look on.
    return [
        "    if is_grad_enabled():",
        "        set_grad(False)",
        "        try:",
        f"            {call}",
        "        finally:",
        "            set_grad(True)",
        "    else:",
        f"        {call}",
    ]


def _output_lines(binding: Binding, names: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    outputs: list[str] = []
    calls: dict[tuple[str, str, bool], str] = {}
    for number, output in enumerate(binding.outputs):
        match output:
            case Fresh(result=result):
                outputs.append(f"results[{result}]")
            case SameAsInput(input=index):
                outputs.append(f"inputs[{index}]")
            case ViewOf(same_as=None):
                lines += _size_lines(output, binding, names)
                lines += _view_lines(output, number, names, calls)
                outputs.append(f"output{number}")
            case ViewOf(same_as=other):
                outputs.append(f"output{other}")
            case Literally(value=value):
                names[f"literal{number}"] = from_arg(value, lambda leaf: leaf)
                outputs.append(f"literal{number}")
    return [*lines, f"    return ({''.join(text + ', ' for text in outputs)})"]


def _view_lines(
    output: ViewOf, number: int, names: dict[str, Any], calls: dict[tuple[str, str, bool], str]
) -> list[str]:
    """The view as `output{number}`. calls: what has made several views of something; grows."""
    lines, text = [], f"{'inputs' if output.of == 'input' else 'results'}[{output.base}]"
    pieces = dict(output.pieces)
    for position, (target, args) in enumerate(output.chain):
        name = f"view{number}_{position}"
        key = text, f"{target}{args}", position in output.other_mode
        if position in pieces and key in calls:
            text = f"{calls[key]}[{pieces[position]}]"
            continue
        names[name] = _in_other_mode(resolve(target)) if position in output.other_mode else resolve(target)
        if _has_sizes(args):
            names[f"{name}_args"] = functools.partial(_evaluated, args)
            text = f"{name}({text}, *{name}_args(sizes))"
        else:
            names[f"{name}_args"] = tuple([from_arg(arg, lambda ref: ref) for arg in args])
            text = f"{name}({text}, *{name}_args)"
        if position in pieces:
            calls[key] = f"pieces{number}_{position}"
            lines.append(f"    {calls[key]} = {text}")
            text = f"{calls[key]}[{pieces[position]}]"
    return [*lines, f"    output{number} = {text}"]


def _in_other_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with gradients recorded where they are not, and the other way round."""

    def call(*args: Any) -> Any:
        with torch.set_grad_enabled(not torch.is_grad_enabled()):
            return function(*args)

    return call


def _has_sizes(args: tuple[Arg, ...]) -> bool:
    return any(isinstance(leaf, Expr) for arg in args for leaf in leaves(arg))


def _size_lines(output: ViewOf, binding: Binding, names: dict[str, Any]) -> list[str]:
    """Reads the values of the symbols, once, for a view whose arguments are size expressions."""
    if "read_sizes" in names or not any(_has_sizes(args) for _, args in output.chain):
        return []
    names["read_sizes"] = size_reader(binding.inputs)
    return ["    sizes = read_sizes(inputs)"]


def _evaluated(args: tuple[Arg, ...], sizes: dict[str, int]) -> list[Any]:
    return [from_arg(arg, lambda size: evaluate(size, sizes)) for arg in args]


def _refuse_overlap(overlap: tuple[int, int]) -> None:
    raise AliasedMutation(f"inputs {overlap[0]} and {overlap[1]} share memory, and the program writes into one")


def _mutation_lines(binding: Binding, names: dict[str, Any]) -> list[str]:
    visible = [m for m in binding.mutations if m.under_grad]
    hidden = [m for m in binding.mutations if not m.under_grad and not m.in_place]
    lines = [f"    inputs[{m.input}].copy_(results[{m.result}])" for m in visible]
    lines += _version_lines(binding, names)
    if not hidden:
        return lines
    copies = _copy_lines(hidden)
    if not any(binding.inputs[m.input].requires_grad for m in hidden):
        return [*copies, *lines]
    # A write that autograd did not see in the program must not be seen here.
    return ["    mode = is_grad_enabled()", "    set_grad(False)", *copies, "    set_grad(mode)", *lines]


def _version_lines(binding: Binding, names: dict[str, Any]) -> list[str]:
    """Copying moves a version counter by one, a result that is written in place does not; lines that put it where the
    program's own writes would have."""
    alike: dict[int, list[str]] = {}
    for one in binding.mutations:
        alike.setdefault(one.versions - (not one.in_place), []).append(f"inputs[{one.input}]")
    alike.pop(0, None)
    if alike:
        TORCH.require("increment_version", "set_versions")
    names["move_versions"] = _move_versions
    return [f"    move_versions([{', '.join(written)}], {move})" for move, written in alike.items()]


def _move_versions(written: list[torch.Tensor], move: int) -> None:
    """Moves the version counters, of which views of one memory share one."""
    counted = [tensor for tensor in written if not tensor.is_inference()]
    if 0 < move <= _MOST_STEPS:
        for _ in range(move):
            TORCH.increment_version(counted)
        return
    for tensor in counted:
        TORCH.set_versions((tensor,), (tensor._version + move,))


def _copy_lines(mutations: list[Mutation]) -> list[str]:
    if len(mutations) == 1:
        return [f"    inputs[{mutations[0].input}].copy_(results[{mutations[0].result}])"]
    targets = ", ".join(f"inputs[{m.input}]" for m in mutations)
    values = ", ".join(f"results[{m.result}]" for m in mutations)
    return [f"    copy_all(({targets}), ({values}))"]


def _overlap_check(binding: Binding) -> Callable[[tuple[Any, ...]], tuple[int, int] | None]:
    """Finds two inputs that share memory, of which one is mutated: the graph took them as separate.

    The addresses of the last call that passed (and its sizes, where they may change) are remembered, so that a steady
    state pays for reading them only, and for a look at what is written if only other inputs lie elsewhere now.
    """
    passed: list[list[Any]] = [[]]
    lengths: dict[int, int] = {}
    fixed: list[tuple[int, int]] = []  # what is written, apart from each other: in the order of starts and ends
    fixed_ends: list[int] = []
    written = frozenset(mutation.input for mutation in binding.mutations)
    # (Each call makes the tensors for its numbers anew.)
    places = tuple(
        i for i, given in enumerate(binding.inputs) if isinstance(given.type, TensorType) and given.role != "number"
    )
    has_sizes = bool(binding.symbols)

    def check(inputs: tuple[Any, ...]) -> tuple[int, int] | None:
        seen: list[Any] = [inputs[i].data_ptr() for i in places]
        starts = seen
        if has_sizes:
            seen = [*starts, *[inputs[i].shape for i in places]]
        if seen == passed[0] or (lengths and are_apart(seen)):
            return None
        spans = sorted((start, start + _span(inputs[i]), i) for start, i in zip(starts, places, strict=True))
        reach, owner = -1, -1
        for start, end, index in spans:
            if start == end:
                continue
            if start < reach and (index in written or owner in written):
                return owner, index
            if end > reach or index in written:
                reach, owner = max(end, reach), index
        passed[0] = seen
        if not has_sizes:
            lengths.update((i, end - start) for start, end, i in spans)
            fixed[:] = [(start, end) for start, end, i in spans if i in written and start < end]
            fixed_ends[:] = [end for _, end in fixed]
        return None

    def are_apart(starts: list[int]) -> bool:
        """Whether no written input has moved, and no moved one meets memory that is written."""
        for start, i, before in zip(starts, places, passed[0], strict=True):
            if start != before:
                following = bisect_right(fixed_ends, start)
                if i in written or (following < len(fixed) and fixed[following][0] < start + lengths[i]):
                    return False
        return True

    return check


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    return reach(tensor.shape, tensor.stride()) * tensor.element_size()  # type: ignore[no-any-return]


def read_constant(bound: BoundConstant) -> torch.Tensor:
    """A constant of the document as a tensor on its device."""
    constant = bound.value
    dtype = getattr(torch, constant.dtype)
    if not constant.data:
        return torch.empty(constant.shape, dtype=dtype, device=bound.device)
    found = torch.frombuffer(bytearray(constant.data), dtype=dtype).reshape(constant.shape)
    return found.to(bound.device)


def write_constant(name: str, tensor: torch.Tensor, device: str = "cpu") -> BoundConstant:
    """The numbers of a real tensor, for `device`."""
    with TORCH.no_modes():
        dense = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
        # torch does not bring numpy, and bytes(storage) goes element by element.
        data = ctypes.string_at(dense.data_ptr(), dense.nbytes) if dense.nbytes else b""
    return BoundConstant(name, Constant(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data), device)
