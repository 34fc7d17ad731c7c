"""`trace`: a Capture as one joint graph of functional ATen ops, forward and backward."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from operator import or_
from typing import Any

import torch
from msgspec.structs import replace

from absint import from_wire, to_wire
from absint.forms import symbolic_forms
from absint.forms.attention import ATTENTION_AMONG
from absint.functions import custom_functions
from absint.gradients import TARGET, gradients
from absint.meta import contiguous
from absint.symbolic import create_float
from aotgrad import errors
from aotgrad.bind import write_constant
from aotgrad.joint import Joint
from aotgrad.torch_capabilities import TORCH
from aotgrad.tracer import copied_views
from aotgrad.tracer.attention import ATTENTION, attention_among_call, attention_call
from aotgrad.tracer.failing_call import CallsOfHistory
from aotgrad.tracer.flex_attention import attend
from aotgrad.tracer.gradient import (
    Backward,
    backward,
    gradient_program,
    refuse_overwritten,
    refuse_second_gradients,
)
from aotgrad.tracer.mode import TraceMode
from aotgrad.tracer.outputs import Placeholder, Plan, plan_outputs
from aotgrad.tracer.replay import outputs_of, replay
from aotgrad.tracer.sizes import SizesOf
from aotgrad.tracer.values import DATA, Traced
from aotgrad.tracer.views import rebase_stale_views
from aotgrad.written_attention import Fusion
from stagewire.capture import Capture, GlobalState, Input, Relation, TensorIs, facts_of
from stagewire.collector import resting_collector
from stagewire.errors import StageError
from stagewire.flex_attention import CALL
from stagewire.grad import Binding, BoundInput, Tangent
from stagewire.graph import Graph, Node, Ref, Value
from stagewire.graph_passes import operands
from stagewire.types import ScalarType, TensorType


def trace(
    capture: Capture,
    *,
    training: bool = True,
    gradient_order: int = 0,
    attention: Fusion | None = None,
    flex_attention: tuple[str, ...] = (),
) -> Joint:
    """Run `capture` on types under autograd and record both directions.

    The backward is traced when grad mode was on at capture, some input requires grad and some result depends on it
    differentiably; `training=False` never traces it. gradient_order: of which program, see `tracer.gradient`.
    attention: puts fused kernels in the place of attention that the program writes out; without it attention of torch's
    is eager's kernel. flex_attention: the types of devices on which FlexAttention stays an op.

    An error in the backward says in whose derivative (`StageError.hindering_result`), where that is one call's.
    """
    calls = CallsOfHistory()
    traced = partial(_traced, capture, training, flex_attention)
    try:
        return _settled(partial(traced, gradient_order, attention, calls), attention)
    except StageError as error:
        if calls.backward_began and not gradient_order and error.refuses_program and not error.needs_fixed_sizes:
            error.hindering_result = _failing_result(traced)
        raise


def _failing_result(traced: Callable[[int, Fusion | None, CallsOfHistory], Joint]) -> str | None:
    """A result of the call in whose derivative a backward fails, found by a trace of its own."""
    calls = CallsOfHistory(follows=True)
    try:
        traced(0, None, calls)
    except StageError:
        return calls.failing_result
    return None


def _settled(traced: Callable[[], Joint], attention: Fusion | None) -> Joint:
    """What is traced when `attention` has no rewrite left to take back."""
    while True:
        try:
            joint = traced()
        except errors.BackwardFailed:
            if attention is None or not attention.refuse("its output is written, of which a kernel makes the gradient"):
                raise
            continue
        if attention is None:
            return joint
        graph = attention.settle(joint.graph)
        if graph is not None:
            return joint if graph is joint.graph else joint.with_graph(graph)


def _traced(
    capture: Capture,
    training: bool,
    flex_attention: tuple[str, ...],
    gradient_order: int,
    attention: Fusion | None,
    calls: CallsOfHistory,
) -> Joint:
    sizes = SizesOf(capture)
    mode = TraceMode(
        symbolic=bool(capture.symbols), flex_attention=flex_attention, replaces_attention=attention is not None
    )
    # A collection during the trace walks every tensor and autograd node made so far: measured 5 times slower.
    with resting_collector(), ExitStack() as stack:
        stack.callback(mode.release)
        # The frame that is compiled may stand in any of these; the trace follows the capture instead.
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(_autocast(None))
        stack.enter_context(torch.set_grad_enabled(capture.state.grad_enabled))
        stack.enter_context(_default_dtype(getattr(torch, capture.state.default_dtype)))
        recurrent = any(node.target.endswith(".lstm") for node in capture.graph.nodes)
        if recurrent:  # one trace at a time, of either kind: one flips the switch that the other reads
            stack.enter_context(_without_onednn() if gradient_order else _ONEDNN)
        stack.enter_context(mode)
        return _trace(mode, calls, capture, sizes, training, gradient_order, attention)


@contextmanager
def _without_onednn() -> Iterator[None]:
    # oneDNN's whole-layer LSTM has no gradient of its gradient.
    # The switch belongs to the process: one trace at a time, so that each restores what it found.
    with _ONEDNN:
        enabled = torch.backends.mkldnn.enabled
        TORCH.set_onednn(False)
        try:
            yield
        finally:
            TORCH.set_onednn(enabled)


_ONEDNN = threading.RLock()


def _trace(
    mode: TraceMode,
    calls: CallsOfHistory,
    capture: Capture,
    sizes: SizesOf,
    training: bool,
    gradient_order: int,
    attention: Fusion | None,
) -> Joint:
    mode.keeps_statistics = gradient_order == 0
    sizes.env.line = lambda: mode.recorder.line
    inputs = [_placeholder(mode, capture, sizes, index, training) for index in range(len(capture.inputs))]
    recorder = mode.recorder
    rows: list[copied_views.Row] = []
    aliases: copied_views.Aliases = []

    values: dict[str, Any] = {}
    nodes = capture.graph.nodes
    homes = {id(node): n for n, part in enumerate(capture.checkpoints) for node in nodes[part.first : part.last]}

    def on_node(node: Node) -> None:
        mode.call_start = len(recorder.nodes)
        recorder.line, recorder.checkpoint = node.line, homes.get(id(node))
        mode.home = _device(node.results)  # where the captured call makes tensors
        rebase_stale_views(mode, values)
        if attention is not None:
            attention.before()

    if attention is not None:
        attention.begin(capture, mode, sizes, values)
    with torch.set_grad_enabled(torch.is_grad_enabled()), _autocast(capture.state):
        functions = custom_functions(capture.functions, sizes, symbolic_forms())
        functions |= copied_views.noted_functions(
            functions, copied_views.gradients_of_their_own(capture), aliases, mode.note_gradients
        )
        known = {
            **symbolic_forms(),
            DATA: mode.data,
            TARGET: _kept_gradients,
            ATTENTION: partial(attention_call, mode=mode),
            ATTENTION_AMONG: partial(attention_among_call, mode),
            CALL: partial(attend, mode, trace),
        }
        instead = {**known, **copied_views.row_calls(mode, rows), **functions}
        given_tensors = tuple(given.tensor for given in inputs)
        on_results = calls.note if calls.follows else None if attention is None else attention.after
        replay(capture, given_tensors, on_node, instead, values, sizes, on_results)
        rebase_stale_views(mode, values)
        outputs = outputs_of(capture.graph, values)
    recorder.line = recorder.checkpoint = None
    mode.home = _device((*capture.graph.inputs, *(value for node in nodes for value in node.results)))
    copied_views.refuse_lost_views(rows, outputs, capture.graph, values)
    copied_views.refuse_lost_gradients(aliases, given_tensors, outputs, nodes)
    try:
        plan = plan_outputs(mode, inputs, outputs)
        _refuse_changes(capture, inputs, plan, training)
    except RuntimeError as error:  # an output whose history torch itself refuses to tell
        raise errors.BackwardFailed(str(error)) from error
    written = frozenset(mutation.input for mutation in plan.mutations)
    for _ in range(gradient_order):
        if any(function.once for function in capture.functions):
            refuse_second_gradients(mode, inputs, plan)
        inputs, plan = gradient_program(mode, inputs, plan)
    recorder.phase = "backward"
    with calls.watched():
        found = backward(mode, inputs, plan)
    for number, given in enumerate(inputs):
        if given.leaf.memory.written_in_backward:
            raise errors.NoFunctionalForm(f"the backward writes into input {number}")
    joint = sizes.rewrite(_joint(mode, capture, sizes.assumptions, inputs, plan, found))
    if gradient_order:
        refuse_overwritten(joint, written)
    return joint


def _kept_gradients(*args: Any, **options: Any) -> tuple[Any, ...]:
    """`torch.autograd.grad` inside of the program, whose own backward goes through the same history later."""
    return gradients(*args, **{**options, "retain_graph": True})


@contextmanager
def _autocast(state: GlobalState | None) -> Iterator[None]:
    """Autocast as in `state`, or off."""
    wanted = dict(state.autocast) if state is not None else {}
    with ExitStack() as stack:
        for device in sorted({"cpu", "cuda", *wanted}):
            if device in wanted:
                dtype = getattr(torch, wanted[device])
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
            elif torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    if before is dtype:  # it belongs to the process: leave it alone where other threads may compile
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _placeholder(mode: TraceMode, capture: Capture, sizes: SizesOf, index: int, training: bool) -> Placeholder:
    given = capture.inputs[index]
    wire = given.value.type
    if isinstance(wire, ScalarType) and given.role == "symbol":
        return _number(mode, BoundInput(given.value.name, wire, given.role), index)
    if not isinstance(wire, TensorType):
        raise errors.BadCapture(f"input {given.value.name} is no tensor")
    meta = from_wire(wire, sizes)
    requires_grad = wire.requires_grad and training
    value = mode.recorder.define(given.value.name, meta)
    leaf = mode.owner(meta, value, input=index, requires_grad=requires_grad)
    if given.role == "number":
        mode.given[index] = create_float(sizes.env, given.value.name)
    if mode.recorder.symbolic:
        wire = to_wire(meta, requires_grad=wire.requires_grad)
    bound = BoundInput(given.value.name, wire, given.role)
    if not requires_grad or _is_leaf(capture, given):
        return Placeholder(bound, leaf, leaf, leaf.grad_fn, requires_grad)
    return _not_a_leaf(mode, bound, leaf)


def _number(mode: TraceMode, bound: BoundInput, index: int) -> Placeholder:
    """An int of the caller's: calls name it in size expressions, so that nothing reads the tensor in its place."""
    meta = contiguous((), torch.int64)
    leaf = mode.owner(meta, mode.recorder.define(bound.name, meta), input=index)
    return Placeholder(bound, leaf, leaf, None, False)


def _not_a_leaf(mode: TraceMode, bound: BoundInput, leaf: Traced) -> Placeholder:
    """Let the program work on a copy of `leaf` that counts as the input's own memory, so that it may be written."""
    with torch.enable_grad():
        copy = leaf.clone()
        mode.recorder.nodes.pop()
        if copy.meta != leaf.meta:
            # C++ knows the layout of a tensor by itself, and asks whether it is contiguous, say.
            copy = _SameLayout.apply(leaf)
    memory = leaf.memory
    copy.value, copy.generation = memory.value, 0
    copy.memory = memory
    copy.meta = leaf.meta
    memory.base = copy
    return Placeholder(bound, leaf, copy, copy.grad_fn, True)


class _SameLayout(torch.autograd.Function):
    """A copy with the strides of the original, gaps, overlaps and all."""

    @staticmethod
    def forward(ctx: Any, leaf: Traced) -> Traced:
        return Traced(leaf.meta, leaf.memory)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _is_leaf(capture: Capture, given: Input) -> bool:
    if given.role == "parameter":
        return True
    return any(isinstance(g, TensorIs) and g.source == given.source and g.is_leaf for g in capture.guards)


def _refuse_changes(capture: Capture, inputs: list[Placeholder], plan: Plan, training: bool) -> None:
    """What the program does to its inputs or outputs that no binding can do afterwards."""
    for given in inputs:
        name, leaf = given.bound.name, given.leaf
        if leaf.requires_grad and leaf.is_leaf and not given.bound.requires_grad:
            raise errors.MetadataMutation(f"the program makes the input {name} require grad")
        if given.started and not (leaf.requires_grad and given.tensor.requires_grad):
            raise errors.MetadataMutation(f"the program detaches the input {name} in place")
        if leaf.is_leaf and leaf.grad is not None:
            raise errors.NoGraphForm(f"the program accumulates a gradient into the input {name}")
    if not any(tensor is not None for tensor in plan.tensors):
        return
    if not capture.state.grad_enabled:
        raise errors.UnsupportedOutput("an output is computed under enable_grad() in a program that is called without")
    if training and not any(given.leaf.requires_grad for given in inputs):
        raise errors.UnsupportedOutput(
            "an output has a history that reaches no input, but a tensor that the program makes"
        )


def _joint(
    mode: TraceMode,
    capture: Capture,
    assumptions: tuple[Relation, ...],
    inputs: list[Placeholder],
    plan: Plan,
    found: Backward,
) -> Joint:
    metas = mode.recorder.metas
    tangents, gradients, closed_by = found
    mutated = {mutation.input for mutation in plan.mutations}
    constants = tuple(Value(name, to_wire(metas[name])) for name in mode.constants)
    starts = tuple(Value(ref.name, to_wire(metas[ref.name])) for ref in tangents.values())
    bound = tuple(
        replace(given.bound, mutated=index in mutated, fixed_offset=index in mode.fixed_inputs)
        for index, given in enumerate(inputs)
    )
    binding = Binding(
        inputs=bound,
        outputs=tuple(plan.outputs),
        mutations=tuple(plan.mutations),
        tangents=tuple(Tangent(number, to_wire(metas[ref.name])) for number, ref in tangents.items()),
        symbols=capture.symbols,
        facts=facts_of(capture) + assumptions,
        assumptions=assumptions,
        constants=tuple(write_constant(name, tensor) for name, tensor in mode.constants.items()),
    )
    primals = tuple(Value(given.name, given.type) for given in bound) + constants
    ends = gradients if tangents else []
    graph = Graph(primals + starts, tuple(mode.recorder.nodes), (*plan.results, *ends))
    sources = _gradient_tangents(graph.nodes, tuple(tangents.values()), gradients, mode.given_for)
    binding = replace(binding, gradient_tangents=sources, closed_by=closed_by)
    return Joint(graph, binding)


def _gradient_tangents(
    nodes: tuple[Node, ...], tangents: tuple[Ref, ...], gradients: list[Ref | None], given_for: dict[str, set[str]]
) -> tuple[tuple[int, ...], ...]:
    """For each gradient the tangents for which there is one; nothing where every gradient is there for each tangent.

    given_for: for what a custom function's backward returned, the gradients it was given, used or not.
    """
    count = len(tangents)
    masks = {ref.name: 1 << number for number, ref in enumerate(tangents)}

    def mask_of(names: Iterable[str]) -> int:
        sources = (other for name in names for other in (name, *given_for.get(name, ())))
        return reduce(or_, (masks.get(source, 0) for source in sources), 0)

    for node in nodes if count > 1 else ():
        if node.phase == "backward":
            mask = mask_of(operands(node))
            for value in node.results:
                masks[value.name] = mask
    found = [mask_of([ref.name]) for ref in gradients if ref is not None]
    if count < 2 or all(mask == (1 << count) - 1 for mask in found):
        return ()
    return tuple(tuple(number for number in range(count) if mask >> number & 1) for mask in found)


def _device(values: Iterable[Value]) -> torch.device | None:
    """The one device, other than the CPU, of all values; None where it is not one. A 0-dim tensor on the CPU goes along
    with any device."""
    types = [value.type for value in values if isinstance(value.type, TensorType)]
    devices = {type_.device for type_ in types if type_.shape or type_.device != "cpu"}
    return torch.device(devices.pop()) if len(devices) == 1 and devices != {"cpu"} else None
