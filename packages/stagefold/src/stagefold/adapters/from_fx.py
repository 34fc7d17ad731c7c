"""From a `torch.fx.GraphModule` to `Capture`: `from_fx`, and `from_export` for exported programs.

The module is run once on types alone (abstract tensors), node by node, and each call of torch on the way is written
down. So graphs of any tracer are taken: torch.compile's, torch.fx.symbolic_trace's (modules that it left whole are
entered), make_fx's, torch.export's. Symbolic sizes are those of the example inputs, or of the placeholders' metadata.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from msgspec.structs import replace
from torch.overrides import TorchFunctionMode

from absint import AbstractMode, AbstractTensor, from_tensor, from_wire, to_wire
from absint.errors import UnknownTarget, UnwirableArgument
from absint.functions import leaves
from absint.symbolic import ShapeEnv, from_dim, make_size
from absint.targets import target_name
from absint.wire import to_arg
from bytecap import global_state, set_torch_modes, torch_modes
from stagefold.adapters import control_flow
from stagefold.adapters.torch_sizes import dim_of_torch, guards_of, range_of, symbols_among
from stagefold.torch_capabilities import foreign
from stagewire.capture import Capture, Checkpoint, Code, CustomFunction, Input, InputRole, Local, Symbol
from stagewire.errors import StageError
from stagewire.expr import Dim, Expr
from stagewire.graph import Arg, DTypeArg, Graph, Node, Ref, SourceLine, Value
from stagewire.types import ScalarType, TensorType


class UnsupportedGraphModule(StageError):
    """A GraphModule that has no form as a Capture; the message names the node."""

    code = "SF007"
    fix = "Use stagefold.compile on the model itself."


def from_fx(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any] | None = None, *, is_guarded: bool = False
) -> tuple[Capture, tuple[torch.Tensor, ...]]:
    """The graph of `module` as a capture, and the tensors that the module holds: they are its last inputs, in order.

    example_inputs: tensors and ints, one for each placeholder; sizes may be symbolic (SymInt), and so are ints then.
    Default: what the placeholders' metadata say. None, bools, floats and strings are taken as constants, and are no
    inputs of the capture. Its outputs are those of the graph, flattened in order.
    is_guarded: what torch's tracer took for true of symbolic sizes is checked elsewhere, as by torch.compile.
        Default: it is among the guards of the capture.

    >>> traced = torch.fx.symbolic_trace(torch.nn.Linear(2, 3))
    >>> capture, held = from_fx(traced, [torch.ones(1, 2)])
    >>> [node.target for node in capture.graph.nodes], len(held)
    (['torch.nn.functional.linear'], 2)
    """
    if not isinstance(module, torch.fx.GraphModule):
        what = f"a {type(module).__name__} is no torch.fx.GraphModule"
        raise UnsupportedGraphModule(what, fix="Trace it first, as torch.fx.symbolic_trace does.")
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    examples = described_inputs(placeholders, example_inputs)
    before = torch_modes()
    state = global_state()
    sizes = symbols_among(examples)
    known = () if is_guarded else guards_of(sizes)
    recording = Recording(sizes, module)
    try:
        with AbstractMode():
            given = [
                recording.input(node, example, example if example_inputs is None else example_inputs[position])
                for position, (node, example) in enumerate(zip(placeholders, examples, strict=True))
            ]
            with recording:
                result = _Runner(module, recording).run(*given, enable_io_processing=False)
            outputs = tuple(to_arg(leaf, recording.encode) for leaf in leaves(result))
    finally:
        set_torch_modes(before)
    inputs = (*recording.inputs, *recording.held)
    graph = Graph(tuple(one.value for one in inputs), tuple(recording.nodes), outputs)
    capture = Capture(
        code=Code(type(module).__name__, "<torch.fx>", 1),
        inputs=inputs,
        graph=graph,
        guards=tuple(dict.fromkeys((*known, *recording.env.relations))),
        symbols=tuple(recording.symbols.values()),
        state=state,
        functions=tuple(recording.functions),
        checkpoints=tuple(recording.checkpoints),
    )
    return capture, tuple(recording.tensors)


def from_export(program: Any) -> tuple[Capture, tuple[torch.Tensor, ...]]:
    """An exported program (`torch.export.export`) as a capture, and the parameters, buffers and constants that it has.

    The capture's inputs are the user's, flattened in order, then those tensors; its outputs are the user's. Buffers and
    inputs that the program writes are written by calls of the graph, as the program's signature says. Sizes that were
    exported as dynamic are symbols, within the ranges that the program states.
    """
    if not hasattr(program, "graph_signature"):
        what = f"a {type(program).__name__} is no exported program"
        raise UnsupportedGraphModule(what, fix="Pass what torch.export.export returns; from_fx takes graph modules.")
    return from_fx(program.module(), is_guarded=True)  # by a call of its graph


def described_inputs(placeholders: Sequence[torch.fx.Node], given: Sequence[Any] | None) -> list[Any]:
    """What is known of each input: the metadata of its placeholder where they are symbolic or nothing is given.

    torch.compile hands real tensors to its back ends, also where their sizes are symbols.
    """
    if given is not None and len(given) != len(placeholders):
        raise UnsupportedGraphModule(f"the graph has {len(placeholders)} inputs, and {len(given)} are given")
    found = []
    for position, node in enumerate(placeholders):
        described = node.meta.get("example_value", node.meta.get("val", _MISSING))
        if given is not None and (described is _MISSING or not symbols_among([described])):
            described = given[position]
        if described is _MISSING:
            raise UnsupportedGraphModule(f"input {node.name} carries no example value", fix="Pass example_inputs.")
        found.append(described)
    return found


def _name_of_input(node: torch.fx.Node) -> str:
    """The parameter's own name: torch.fx calls a value `input_1` where a builtin is called `input`."""
    return str(node.target).lstrip("*")


_MISSING = object()


class Recording(TorchFunctionMode):
    """Writes a node for each torch call that takes or makes tensors, and for each change of torch's modes."""

    def __init__(self, sizes: Mapping[str, torch.SymInt], module: torch.nn.Module) -> None:
        super().__init__()
        self.named = {id(one): name for name, one in (*module.named_parameters(), *module.named_buffers())}
        self.nodes: list[Node] = []
        self.inputs: list[Input] = []
        self.held: list[Input] = []
        self.tensors: list[torch.Tensor] = []
        self.symbols: dict[str, Symbol] = {}
        self.checkpoints: list[Checkpoint] = []
        self.line: SourceLine | None = None
        self.env = ShapeEnv(lambda: self.line)
        self._modes = torch_modes()
        self.functions: list[CustomFunction] = []
        self.tensors_by_name: dict[str, AbstractTensor] = {}
        self._refs: dict[int, Ref] = {}
        self._twins: dict[int, AbstractTensor] = {}
        self._names: set[str] = set()
        for name, size in sizes.items():
            self._declare(name, size)

    # -- inputs

    def input(self, node: torch.fx.Node, example: Any, given: Any) -> Any:
        """What stands for an input while the graph runs; `given` says whether it is a parameter and requires grad."""
        match example:
            case torch.Tensor():
                kind = replace(self._type_of(example), requires_grad=given.requires_grad)
                role: InputRole = "parameter" if isinstance(given, torch.nn.Parameter) else "tensor"
                value = Value(self.new_name(_name_of_input(node)), kind)
                self.inputs.append(Input(value, Local(value.name), role))
                return self.twin(value)
            case bool() | None | float() | str():
                return example
            case int() | torch.SymInt():
                return self._number(node, example)
        raise UnsupportedGraphModule(f"input {node.name} is a {type(example).__name__}")

    def _number(self, node: torch.fx.Node, example: Any) -> Any:
        """An int of the caller's: a symbol of its own, unless it is torch's name for one, or known of others."""
        dim = dim_of_torch(example) if isinstance(example, torch.SymInt) else None
        inputs = {one.value.name for one in self.inputs}
        if isinstance(dim, Expr) and dim.text in self.symbols and dim.text not in inputs:
            name = dim.text
        else:
            name = self.new_name(_name_of_input(node))
            self._declare(name, example)
        self.inputs.append(Input(Value(name, ScalarType("int")), Local(_name_of_input(node)), "symbol"))
        return self._size(Expr(name) if dim is None else dim)

    def _type_of(self, tensor: torch.Tensor) -> TensorType:
        sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        if all(type(size) is int for size in sizes):
            return to_wire(from_tensor(tensor), requires_grad=tensor.requires_grad)
        shape, stride = (tuple(map(_dim, dims)) for dims in (tensor.shape, tensor.stride()))
        dtype = str(tensor.dtype).removeprefix("torch.")
        return TensorType(dtype, shape, stride, _dim(tensor.storage_offset()), str(tensor.device), tensor.requires_grad)

    def _declare(self, name: str, size: Any) -> None:
        hint, lower, upper = range_of(size)
        self._names.add(name)
        self.symbols[name] = Symbol(name, Local(name), hint, lower, upper)
        self.env.create(name, hint, lower=0 if lower is None else lower, upper=upper)

    def _size(self, dim: Dim) -> Any:
        return dim if isinstance(dim, int) else make_size(self.env, from_dim(dim))

    def twin(self, value: Value) -> AbstractTensor:
        assert isinstance(value.type, TensorType)
        twin = AbstractTensor(from_wire(value.type, self._size), requires_grad=value.type.requires_grad)
        self._know(twin, value.name)
        return twin

    def _know(self, tensor: AbstractTensor, name: str) -> None:
        self.tensors_by_name[name] = tensor  # which keeps it alive, and so its id
        self._refs[id(tensor)] = Ref(name)

    def _hold(self, tensor: torch.Tensor) -> AbstractTensor:
        """The twin of a tensor that the module holds."""
        if id(tensor) not in self._twins:
            stem = re.sub(r"\W", "_", self.named.get(id(tensor), "held"))
            value = Value(self.new_name(stem if stem.isidentifier() else f"held_{stem}"), self._type_of(tensor))
            role: InputRole = "parameter" if isinstance(tensor, torch.nn.Parameter) else "constant"
            self.held.append(Input(value, Local(value.name), role))
            self.tensors.append(tensor)
            self._twins[id(tensor)] = self.twin(value)
        return self._twins[id(tensor)]

    def new_name(self, stem: str) -> str:
        name, number = stem, 0
        while name in self._names:
            number += 1
            name = f"{stem}_{number}"
        self._names.add(name)
        return name

    # -- calls

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        is_of_graphs = isinstance(func, foreign().higher_order_operator)
        if is_of_graphs and name in _ENTERED:
            with self:
                return _ENTERED[name](self, *args, **(kwargs or {}))
        args, kwargs = self._abstract(args), self._abstract(kwargs or {})
        if is_of_graphs and name in _CONTROL_FLOW:
            self._note_modes()
            return _CONTROL_FLOW[name](self, *args, **kwargs)
        if name in _SWITCHES:
            return func(*args, **kwargs)
        self._note_modes()
        try:
            encoded = tuple(to_arg(arg, self.encode) for arg in args)
            keywords = {key: to_arg(arg, self.encode) for key, arg in kwargs.items()}
        except UnwirableArgument as error:
            encoded, keywords, fault = (), {}, error
        else:
            fault = None
        result = func(*args, **kwargs)
        tensors = [leaf for leaf in leaves(result) if isinstance(leaf, torch.Tensor)]
        written = result is None and any(isinstance(arg, torch.Tensor) for arg in args)
        if not tensors and (not written or _accessor(func) == "__get__"):
            return result  # a Python value, known of the types alone
        if fault is not None:
            raise UnsupportedGraphModule(f"{func}: {fault.message}", where=self.line) from fault
        self._write(func, encoded, keywords, tensors)
        return result

    def _write(self, func: Any, args: tuple[Arg, ...], kwargs: dict[str, Arg], tensors: list[torch.Tensor]) -> None:
        try:
            target = _name_of(func)
        except UnknownTarget as error:
            raise UnsupportedGraphModule(f"{func}: {error.message}", where=self.line) from error
        self.add(target, args, kwargs, tensors)

    def add(self, target: str, args: tuple[Arg, ...], kwargs: dict[str, Arg], tensors: Sequence[torch.Tensor]) -> None:
        """A node with these results."""
        stem = target.removesuffix(".__get__").removesuffix(".default").rsplit(".", 1)[-1].strip("_")
        results = []
        for tensor in tensors:
            if not isinstance(tensor, AbstractTensor):
                raise self.unsupported(f"{target} gives a tensor that is no type")
            name = self.new_name(stem)
            results.append(Value(name, to_wire(tensor.meta, requires_grad=tensor.requires_grad)))
            self._know(tensor, name)
        self.nodes.append(Node(target, args, kwargs, tuple(results), self.line))

    def unsupported(self, message: str) -> UnsupportedGraphModule:
        """What to raise at the current node."""
        return UnsupportedGraphModule(message, where=self.line)

    def encode(self, value: object) -> Any:
        """A tensor as a reference."""
        if isinstance(value, torch.Tensor) and not isinstance(value, AbstractTensor):
            value = self._hold(value)
        return self._refs.get(id(value), NotImplemented) if isinstance(value, torch.Tensor) else NotImplemented

    def _abstract(self, tree: Any) -> Any:
        """With the module's own tensors replaced by their twins, and sizes as this recording computes them."""
        return torch.fx.node.map_aggregate(tree, self._stand_in)  # type: ignore[no-any-return]

    def _stand_in(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, AbstractTensor):
            return self._hold(leaf)
        return leaf

    def _note_modes(self) -> None:
        """Nodes for what changed of torch's modes since the last call."""
        now = torch_modes()
        if now.grad != self._modes.grad:
            self.nodes.append(Node("torch._C._set_grad_enabled", (now.grad,), {}, (), self.line))
        for device, is_on, was in zip(("cpu", "cuda"), now.autocast, self._modes.autocast, strict=True):
            if is_on != was:
                on, dtype = is_on
                name = DTypeArg(str(dtype).removeprefix("torch."))
                self.nodes.append(Node("torch.set_autocast_enabled", (device, on), {}, (), self.line))
                self.nodes.append(Node("torch.set_autocast_dtype", (device, name), {}, (), self.line))
        self._modes = now

    def checkpoint(self, function: Callable[..., Any], *operands: Any, **options: Any) -> Any:
        """A part of the program that is to be computed again in the backward."""
        self._note_modes()
        first = len(self.nodes)
        result = function(*operands)
        self.checkpoints.append(Checkpoint(first, len(self.nodes)))
        return result


def _under_grad(recording: Recording, enabled: bool, function: Callable[..., Any], *operands: Any) -> Any:
    with torch.set_grad_enabled(enabled):
        return function(*operands)


def _under_autocast(
    recording: Recording, device: str, dtype: Any, enabled: bool, cache: Any, function: Any, *operands: Any
) -> Any:
    with torch.autocast(device, dtype, enabled, cache):
        return function(*operands)


_ENTERED: dict[str, Callable[..., Any]] = {
    "wrap_with_set_grad_enabled": _under_grad,
    "wrap_with_autocast": _under_autocast,
    "tag_activation_checkpoint": Recording.checkpoint,
}
"""Operators that take a graph, by name: how it is entered."""

_CONTROL_FLOW: dict[str, Callable[..., Any]] = {
    "cond": control_flow.cond,
    "while_loop": control_flow.while_loop,
    "scan": control_flow.scan,
    "map_impl": control_flow.map_rows,
}
"""Operators that run graphs as often as data or sizes say, by name."""

_SWITCHES = frozenset(("_set_grad_enabled", "_enter_autocast", "_exit_autocast"))
"""Calls that change torch's modes; what they changed is noted at the next call."""


class _Runner(torch.fx.Interpreter):
    """Runs the graph node by node, and tells the recording where it is."""

    def __init__(self, module: torch.fx.GraphModule, recording: Recording) -> None:
        super().__init__(module)
        self._recording = recording

    def run_node(self, n: torch.fx.Node) -> Any:
        """One node. A float that torch carries as a symbol is fixed, which torch guards."""
        self._recording.line = line_of(n)
        known = n.meta.get("example_value")
        if isinstance(known, torch.SymFloat):
            return float(known)
        return super().run_node(n)


def _dim(size: Any) -> Dim:
    return dim_of_torch(size) if isinstance(size, torch.SymInt) else int(size)


def _accessor(func: Any) -> str:
    """ "__get__" or "__set__" of an attribute of tensors, "" for any other function."""
    name = getattr(func, "__name__", "")
    return name if name in ("__get__", "__set__") else ""


def _name_of(func: Any) -> str:
    accessor = _accessor(func)
    return f"torch.Tensor.{func.__self__.__name__}.{accessor}" if accessor else target_name(func)


def line_of(node: torch.fx.Node) -> SourceLine | None:
    """The innermost user line of a node's stack trace, if it has one."""
    last = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip().startswith('File "')]
    if not last:
        return None
    file, _, rest = last[-1].removeprefix('File "').partition('", line ')
    number, _, function = rest.partition(", in ")
    return SourceLine(file, int(number), function)
