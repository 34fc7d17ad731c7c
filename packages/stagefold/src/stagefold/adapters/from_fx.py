"""From a traced `torch.fx.GraphModule` to `Capture`.

Every call must carry what it returned at trace time in `node.meta["example_value"]` (or "val"), as the graphs that
torch's capture hands to its backends do: types are read off it, nothing is run again.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from absint import from_tensor, to_wire
from absint.targets import target_name
from absint.wire import to_arg
from stagefold.adapters.graph_calls import flatten_tensors
from stagewire.capture import Capture, Code, GlobalState, Input, Local
from stagewire.errors import StageError
from stagewire.graph import Arg, Graph, Node, Ref, SourceLine, Value
from stagewire.types import TensorType


class UnsupportedGraphModule(StageError):
    """A GraphModule that has no form as a Capture; the message names the node."""

    code = "SF007"
    fix = "Use stagefold.compile on the model itself."


def from_fx(module: torch.fx.GraphModule, example_inputs: list[Any]) -> tuple[Capture, tuple[torch.Tensor, ...]]:
    """The capture, and the tensors held by the module: they are its last inputs, in order."""
    return _Reader(module, example_inputs).read()


class _Reader:
    def __init__(self, module: torch.fx.GraphModule, example_inputs: list[Any]) -> None:
        self.module = module
        self.examples = list(example_inputs)
        self.values: dict[torch.fx.Node, Any] = {}  # a Ref, a literal, or a nested tuple of them
        self.inputs: list[Input] = []
        self.held: list[Input] = []
        self.constants: list[torch.Tensor] = []
        self.nodes: list[Node] = []

    def read(self) -> tuple[Capture, tuple[torch.Tensor, ...]]:
        outputs: tuple[Arg, ...] = ()
        for node in self.module.graph.nodes:
            match node.op:
                case "placeholder":
                    self.placeholder(node)
                case "get_attr":
                    self.attribute(node)
                case "call_function" | "call_method":
                    self.call(node)
                case "output":
                    returned = node.args[0] if isinstance(node.args[0], tuple | list) else (node.args[0],)
                    outputs = tuple(to_arg(self.substitute(item)) for item in returned)
                case other:
                    raise UnsupportedGraphModule(f"node {node.name}: op {other!r}")
        inputs = (*self.inputs, *self.held)
        graph = Graph(tuple(i.value for i in inputs), tuple(self.nodes), outputs)
        state = GlobalState(grad_enabled=torch.is_grad_enabled())
        code = Code(type(self.module).__name__, "<torch.fx>", 1)
        return Capture(code=code, inputs=inputs, graph=graph, state=state), tuple(self.constants)

    def placeholder(self, node: torch.fx.Node) -> None:
        example = self.examples[len(self.inputs)]
        if not isinstance(example, torch.Tensor):
            raise UnsupportedGraphModule(
                f"input {node.name} is a {type(example).__name__}",
                fix="Pass dynamic=False to torch.compile: symbolic sizes are not carried yet.",
            )
        role = "parameter" if isinstance(example, torch.nn.Parameter) else "tensor"
        value = Value(node.name, type_of(example, node.name))
        self.inputs.append(Input(value, Local(node.name), role))  # type: ignore[arg-type]
        self.values[node] = Ref(node.name)

    def attribute(self, node: torch.fx.Node) -> None:
        held: Any = self.module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        if not isinstance(held, torch.Tensor):
            raise UnsupportedGraphModule(f"attribute {node.target} is a {type(held).__name__}")
        self.held.append(Input(Value(node.name, type_of(held, node.name)), Local(node.name), "constant"))
        self.constants.append(held)
        self.values[node] = Ref(node.name)

    def call(self, node: torch.fx.Node) -> None:
        if node.target is operator.getitem and isinstance(self.values.get(node.args[0]), tuple):  # type: ignore[arg-type]
            self.values[node] = self.values[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        if node.target is flatten_tensors:
            self.values[node] = tuple(_references(self.values[node.args[0]]))  # type: ignore[index]
            return
        returned = node.meta.get("example_value", node.meta.get("val", _MISSING))
        if returned is _MISSING:
            returned = None if str(node.target).endswith("_set_grad_enabled") else self.missing(node)
        results: list[Value] = []
        self.values[node] = self.structure(node.name, returned, results)
        if not results and not _has_effect(node):
            return  # a Python value, known at trace time
        name = f"torch.Tensor.{node.target}" if node.op == "call_method" else target_name(node.target)  # type: ignore[arg-type]
        args = tuple(to_arg(self.substitute(arg)) for arg in node.args)
        kwargs = {key: to_arg(self.substitute(arg)) for key, arg in node.kwargs.items()}
        self.nodes.append(Node(name, args, kwargs, tuple(results), line_of(node)))

    def missing(self, node: torch.fx.Node) -> Any:
        raise UnsupportedGraphModule(f"node {node.name} ({node.target}) carries no example value")

    def structure(self, name: str, returned: Any, results: list[Value]) -> Any:
        """Refs in the shape of the returned value; appends a result for each tensor leaf."""
        if isinstance(returned, torch.Tensor):
            result = Value(f"{name}_{len(results)}" if results else name, type_of(returned, name))
            results.append(result)
            return Ref(result.name)
        if isinstance(returned, tuple | list) and not isinstance(returned, torch.Size):
            return tuple(self.structure(name, item, results) for item in returned)
        return returned

    def substitute(self, arg: Any) -> Any:
        return torch.fx.node.map_arg(arg, lambda node: self.values[node])


_MISSING = object()


def _references(value: Any) -> Iterator[Ref]:
    """The Refs of a nested structure, in order."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _references(item)


def _has_effect(node: torch.fx.Node) -> bool:
    return str(getattr(node.target, "__name__", node.target)).startswith(("_set_", "_enter", "_exit", "manual_seed"))


def type_of(tensor: torch.Tensor, name: str) -> TensorType:
    """The type of a real or fake tensor with plain integer sizes."""
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    if not all(isinstance(size, int) for size in sizes):
        raise UnsupportedGraphModule(
            f"{name} has symbolic sizes {tuple(tensor.shape)}", fix="Pass dynamic=False to torch.compile."
        )
    return to_wire(from_tensor(tensor), requires_grad=tensor.requires_grad)


def line_of(node: torch.fx.Node) -> SourceLine | None:
    """The innermost user line of a node's stack trace, if it has one."""
    last = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip().startswith('File "')]
    if not last:
        return None
    file, _, rest = last[-1].removeprefix('File "').partition('", line ')
    number, _, function = rest.partition(", in ")
    return SourceLine(file, int(number), function)
