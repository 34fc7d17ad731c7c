"""The graph under construction: inputs as they are met, nodes in order of execution."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from absint import AbstractTensor
from absint.meta import from_tensor, to_wire
from bytecap.errors import UnsupportedValue
from stagewire import capture
from stagewire.capture import CustomFunction, Input, InputRole, Source
from stagewire.graph import Arg, Graph, Node, Ref, SourceLine, Tuple, Value, node_references
from stagewire.symbols import bound_symbols, symbols_of_nodes
from stagewire.types import ScalarType, TensorType


def input_role(real: torch.Tensor, source: Source) -> InputRole:
    """What an input is to the module that holds it."""
    if isinstance(real, torch.nn.Parameter):
        return "parameter"
    match source:
        case capture.Item(capture.Attribute(_, "_buffers"), _):
            return "buffer"
    return "tensor"


def source_hint(source: Source) -> str:
    """A readable name for the input at `source`: `self.layers[0].weight` becomes `layers_0_weight`."""
    parts: list[str] = []
    at: Any = source
    while at is not None:
        match at:
            case capture.Attribute(base, name):
                parts += [] if name in ("_parameters", "_buffers", "_modules", "__dict__") else [name]
                at = base
            case capture.Item(base, key):
                parts.append(str(key))
                at = base
            case capture.HandleSource():
                parts.append("constant")
                at = None
            case _:
                name = getattr(at, "name", "")
                parts += [] if name == "self" and parts else [name]
                at = getattr(at, "base", None)
    return "_".join(reversed(parts)) or "input"


class Outside(torch.autograd.Function):
    """The same tensor as something that was computed: neither a leaf nor a view of one, so that it may be written."""

    @staticmethod
    def forward(ctx: Any, leaf: AbstractTensor) -> AbstractTensor:
        return AbstractTensor(leaf.meta, leaf.storage_record)


# Nodes that only change the state in which later nodes run.
STATE_TARGETS = frozenset({"torch._C._set_grad_enabled"})
_REFUSED_INFERENCE = frozenset({"torch.Tensor.requires_grad_", "torch.Tensor.data.__set__"})


@dataclass
class Inference:
    """is_on: whether captured code is in a `torch.inference_mode` of its own. memories: what was made there, by its id.
    names: the tensors on it.
    """

    is_on: bool = False
    memories: dict[int, Any] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Made:
    """What the replacement computes in front of the graph: `function` of `parts`, values and constants.

    example: what the graph is given of it at capture, if it is an input.
    """

    function: Callable[..., Any]
    parts: tuple[Any, ...] = ()
    example: Callable[[], torch.Tensor] | None = None


class GraphBuilder:
    """Inputs, nodes and fresh names; with an `outer` builder, the body of a function of that graph.

    Names are unique in the whole capture. What a body reads from outside is an input of the outermost graph.
    functions: the finished custom functions of the capture. hidden: values of their bodies, which nothing outside
    may use; min() and max() of tensors that require grad. inference: what of the capture is in inference mode.
    made: inputs that the replacement makes; they stand behind the others. is_transformed: the body is that of a
    function under a transform of torch.func; is_branch: of one that control flow runs. dual_writes: of the calls
    inside of a dual level, which is entered meanwhile; how many writes there were before it. numbers: Python
    numbers that nodes give, of data. floats: those of them that are computed of sizes, by what they compute.
    read: what such a node gave of a tensor, by the tensor, how often its memory was written, and the call.
    gradient_order: the body is that of a backward, whose results may be differentiated in turn: 1, or one more for
    the backward of a function that such a body applies.
    """

    def __init__(
        self, outer: GraphBuilder | None = None, *, is_transformed: bool = False, gradient_order: int = 0
    ) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Input] = [] if outer is None else outer.inputs
        self.functions: list[CustomFunction] = [] if outer is None else outer.functions
        self.hidden: set[str] = set()
        self.is_body = outer is not None
        self.inference = Inference() if outer is None else outer.inference
        self.is_transformed = is_transformed
        self.is_branch = False
        self.dual_writes: int | None = None
        self.gradient_order = gradient_order
        self.checkpoints: list[capture.Checkpoint] = []
        self.made: set[str] = set() if outer is None else outer.made
        self.floats: dict[Any, str] = {}
        self.read: dict[tuple[str, int, str], Any] = {}
        self.numbers: set[str] = set() if outer is None else outer.numbers
        self._taken: dict[str, int] = {} if outer is None else outer._taken

    def name(self, hint: str) -> str:
        """A fresh value name that starts with `hint`, and is none of a size symbol (`s0`)."""
        stem = "".join(c if c.isalnum() or c == "_" else "_" for c in hint).strip("_") or "value"
        if stem[0].isdigit() or (stem[0] == "s" and stem[1:].isdigit()):
            stem = f"v{stem}"
        count = self._taken.get(stem, 0)
        self._taken[stem] = count + 1
        if count == 0:
            return stem
        return self.name(f"{stem}_{count}")

    def add_input(self, hint: str, type_: TensorType, source: Source, role: InputRole) -> str:
        """Append an input."""
        name = self.name(hint)
        self.inputs.append(Input(Value(name, type_), source, role))
        return name

    def add_made(self, name: str, type_: TensorType, place: str, role: InputRole) -> str:
        """Append an input that the replacement makes in front of the graph, in a local; returns its name."""
        self.add_symbol(name, type_, capture.Local(place), role)
        self.made.add(name)
        return name

    def add_symbol(self, name: str, type_: ScalarType | TensorType, source: Source, role: InputRole) -> None:
        """Append a number from outside as an input."""
        self.inputs.append(Input(Value(name, type_), source, role))

    def add_node(
        self,
        target: str,
        args: tuple[Arg, ...],
        kwargs: dict[str, Arg],
        results: list[AbstractTensor],
        line: SourceLine | None,
    ) -> list[str]:
        """Append a node with these tensor results; returns their names."""
        stem = target.removesuffix(".__get__").rpartition(".")[2].strip("_") or "value"
        values = tuple(Value(self.name(stem), tensor_type(tensor)) for tensor in results)
        self.append(Node(target, args, kwargs, values, line))
        return [value.name for value in values]

    def apply_custom(
        self,
        function: CustomFunction,
        operands: Iterable[str],
        captured: Iterable[str],
        results: tuple[Value, ...],
        line: SourceLine | None,
        body: Iterable[str] = (),
    ) -> None:
        """Add a custom function to the capture, and the node that applies it to operands and to what it sees round it.
        body: values of its own, which nothing outside may use."""
        self.hidden.update(set(body).difference(value.name for value in results))
        self.functions.append(function)
        arguments = (*map(Ref, operands), Tuple(tuple(map(Ref, captured))))
        self.append(Node(capture.CUSTOM + function.name, arguments, {}, results, line))

    def append(self, node: Node) -> None:
        """Append a finished node."""
        self._refuse_hidden(node_references(node))
        self._refuse_inference(node)
        self.nodes.append(node)

    def _refuse_hidden(self, names: Iterable[str]) -> None:
        if self.hidden and not self.hidden.isdisjoint(names):
            what = "a tensor made inside a torch.autograd.Function that is used outside of it"
            raise UnsupportedValue(f"{what}, or a computation with min() or max() of tensors that require grad")

    def _refuse_inference(self, node: Node) -> None:
        """Torch refuses to save an inference tensor for a backward, to have it require grad or share its memory."""
        names = self.inference.names
        if not names:
            return
        is_tracked = self.is_body or any(getattr(value.type, "requires_grad", False) for value in node.results)
        is_refused = (is_tracked and not self.inference.is_on) or node.target in _REFUSED_INFERENCE
        if is_refused and not names.isdisjoint(node_references(node)):
            raise UnsupportedValue(f"{node.target} of an inference tensor")

    def finish(self, outputs: list[str]) -> Graph:
        """The frozen graph; inputs that it does not use are dropped (attributes that the program only overwrites)."""
        self._refuse_hidden(outputs)
        used = {name for node in self.nodes for name in node_references(node)}.union(outputs)
        self.inputs = sorted(self._kept(used), key=lambda item: item.value.name in self.made)
        return Graph(tuple(item.value for item in self.inputs), tuple(self.nodes), tuple(Ref(name) for name in outputs))

    def _kept(self, used: set[str]) -> list[Input]:
        """The inputs that are used, by themselves or for their sizes."""
        bodies = (graph.nodes for function in self.functions for graph in function.graphs.values())
        wanted = symbols_of_nodes([*self.nodes, *itertools.chain(*bodies)]) - self.numbers
        for item in self.inputs:
            if item.value.name in used:
                wanted.difference_update(name for name, _, _ in bound_symbols(item.value))
        kept = []
        for item in self.inputs:
            binds = {name for name, _, _ in bound_symbols(item.value)}
            if item.value.name in used or not wanted.isdisjoint(binds):
                wanted -= binds
                kept.append(item)
        return kept

    @property
    def defined(self) -> dict[str, Value]:
        """The values that the nodes give, by their names."""
        return {value.name: value for node in self.nodes for value in node.results}

    @property
    def has_work(self) -> bool:
        """Whether any node computes something."""
        return any(node.target not in STATE_TARGETS for node in self.nodes)


def tensor_type(tensor: Any) -> TensorType:
    """The wire type of an abstract (or real strided) tensor."""
    meta = tensor.meta if isinstance(tensor, AbstractTensor) else from_tensor(tensor)
    return to_wire(meta, requires_grad=bool(tensor.requires_grad))
