"""From a captured graph to the `torch.fx.GraphModule` that a back end written for torch.compile expects.

Placeholders are the capture's inputs in order (parameters and buffers among them, as in torch 2.13), with a SymInt in
front of the first tensor that has a symbolic size; the output is a tuple. Methods of tensors are call_method nodes,
attributes are getattr calls (written ones: set_attribute), and a call that returns several tensors is followed by
operator.getitem nodes. What fx cannot print as Python is called by its name (`graph_calls.call_by_name`). Nodes carry
`stack_trace`, `meta["example_value"]` (fake tensors) and `meta["source_fn_stack"]`.
"""

from __future__ import annotations

import keyword
import linecache
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import isbuiltin
from typing import Any, NamedTuple

import msgspec
import torch
import torch.fx

import absint.functions
import absint.targets
import absint.wire
from stagefold.adapters.example_values import ExampleValues, Path
from stagefold.adapters.graph_calls import call_by_name, flatten_tensors, is_printed, set_attribute
from stagefold.adapters.torch_sizes import value_of
from stagefold.errors import SizesRefused
from stagefold.torch_capabilities import TORCH
from stagewire import capture as captures
from stagewire.errors import Misplaced
from stagewire.expr import Expr
from stagewire.grad import Grad
from stagewire.graph import Arg, Graph, Node, Ref, SourceLine, Value
from stagewire.symbols import symbols_of_nodes, symbols_of_type
from stagewire.types import ScalarType

Form = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
"""Kind of node, its target, its arguments."""

_SAMPLE_SIZE = 64
"""What a symbol of a bare graph is taken to be worth where a back end asks."""

_METHOD, _GETTER, _SETTER = "torch.Tensor.", ".__get__", ".__set__"
_OPERATORS: dict[str, Callable[..., Any]] = {
    name: function for name, function in vars(operator).items() if name.startswith("__") and isbuiltin(function)
}
"""`__add__` and the others of Python."""


def to_fx(
    document: captures.Capture | Grad | Graph, examples: Sequence[torch.Tensor] | None = None
) -> torch.fx.GraphModule:
    """A graph as a GraphModule: a captured one, or one of ATen calls (a Grad has both directions in one).

    examples: the tensors of the call that was captured. Symbolic sizes are SymInt placeholders, each in front of the
    first tensor that has it, as torch.compile hands graphs to its back ends.

    >>> from stagefold import from_fx
    >>> capture, _ = from_fx(torch.fx.symbolic_trace(lambda x: x.relu() + 1), [torch.ones(2)])
    >>> print(to_fx(capture).code.strip())  # doctest: +ELLIPSIS
    def forward(self, L_...
    """
    return write_fx(document, examples).module


class Written(NamedTuple):
    """A GraphModule, the mode and sizes of its example values, and for each placeholder the number of the input that it
    is, or the name of the symbol."""

    module: torch.fx.GraphModule
    values: ExampleValues
    places: tuple[int | str, ...]


def write_fx(document: captures.Capture | Grad | Graph, examples: Sequence[torch.Tensor] | None = None) -> Written:
    """`to_fx`, and what a caller of the module has to know."""
    symbols, inputs, graph, functions = _parts(document)
    with ExampleValues(symbols) as values:
        module, places = _module(values, inputs, graph, functions, examples)
    return Written(module, values, places)


def _module(
    values: ExampleValues,
    inputs: Sequence[captures.Input],
    graph: Graph,
    functions: tuple[captures.CustomFunction, ...],
    examples: Sequence[torch.Tensor] | None,
) -> tuple[torch.fx.GraphModule, tuple[int | str, ...]]:
    """A graph with the functions that it applies, and the places of its placeholders."""
    applied = {captures.CUSTOM + function.name: function for function in captures.functions_of(functions, graph)}
    controls = {
        target: one for target, one in applied.items() if one.transform and one.transform.kind in captures.CONTROL_FLOW
    }
    writer = _Writer(values, controls)
    root = torch.nn.Module()
    callables = absint.functions.custom_functions(tuple(applied.values()))
    for target in applied.keys() & {node.target for node in graph.nodes}:
        if target not in controls:
            root.add_module(_module_name(target), AppliedFunction(callables[target]))
            continue
        for name, body in applied[target].graphs.items():
            module = _body(values, body, functions)
            if name == "second" and controls[target].transform.kind == "while_loop":  # a tensor, and no tuple of one
                output = module.graph.output_node()
                output.args = output.args[0]
                module.recompile()
            root.add_module(f"{_module_name(target)}_{name}", module)
    for position, item in enumerate(inputs):
        writer.placeholder(position, item, None if examples is None else examples[position])
    for node in graph.nodes:
        writer.call(node)
    writer.graph.output(tuple(writer.argument(arg) for arg in graph.outputs))
    writer.drop_unused_items()
    module = torch.fx.GraphModule(root, writer.graph)
    module.graph.lint()
    return module, tuple(writer.places)


def _body(values: ExampleValues, graph: Graph, functions: tuple[captures.CustomFunction, ...]) -> torch.fx.GraphModule:
    """A graph that control flow runs. The sizes of its inputs are numbers: an operator of torch takes no others."""
    symbols = symbols_of_nodes(graph.nodes).union(*[symbols_of_type(value.type) for value in graph.inputs])
    if symbols:
        raise SizesRefused(f"control flow over the sizes {', '.join(sorted(symbols))}, for a back end of torch.compile")
    inputs = [captures.Input(value, captures.Local(value.name)) for value in graph.inputs]
    return _module(values, inputs, graph, functions, None)[0]


def _parts(document: captures.Capture | Grad | Graph) -> tuple[Any, ...]:
    """Symbols, inputs, graph and custom functions."""
    match document:
        case captures.Capture(symbols=symbols, inputs=inputs, graph=graph, functions=functions):
            return symbols, inputs, graph, functions
        case Grad(binding=binding, joint=graph):
            symbols = binding.symbols
        case Graph() as graph:
            names = {name for value in graph.inputs for name in symbols_of_type(value.type)}
            symbols = tuple(captures.Symbol(name, captures.Local(name), _SAMPLE_SIZE, 2) for name in sorted(names))
        case _:
            what = f"to_fx takes a capture, a grad or a graph of ATen calls, not a {type(document).__name__}"
            raise Misplaced(what, fix="Later documents have ops of their own; stagefold.meaning runs them.")
    return symbols, tuple(captures.Input(value, captures.Local(value.name)) for value in graph.inputs), graph, ()


class AppliedFunction(torch.nn.Module):
    """A custom function of the capture, as a part of the GraphModule."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        """The results, a tuple."""
        return self.function(*args)


def _module_name(target: str) -> str:
    return target.replace(".", "_")


class _Writer:
    """The graph so far, and the node of each value of the capture."""

    def __init__(self, values: ExampleValues, controls: Mapping[str, captures.CustomFunction]) -> None:
        """controls: the control flow among its functions, by targets."""
        self.graph = torch.fx.Graph()
        self._controls = controls
        self.nodes: dict[str, torch.fx.Node] = {}
        self._values = values
        self.places: list[int | str] = []
        self._sizes: dict[str, torch.fx.Node] = {}
        self._taken: set[str] = set()
        self._items: list[torch.fx.Node] = []

    def placeholder(self, position: int, item: captures.Input, example: torch.Tensor | None) -> None:
        """One input, behind the symbols of its type that no input before it has."""
        for name in sorted(symbols_of_type(item.value.type)):
            if name not in self._sizes:
                size = self._values.sizes.of[name]
                self._sizes[name] = self._placeholder(str(size), torch.SymInt, name)
                self._sizes[name].meta["example_value"] = size
        if isinstance(item.value.type, ScalarType):
            node = self._placeholder(placeholder_name(item.source), torch.SymInt, position)
            node.meta["example_value"] = self._values.sizes.of[item.value.name]
            self._sizes.setdefault(item.value.name, node)
            return
        kind = torch.nn.Parameter if item.role == "parameter" else torch.Tensor
        node = self._placeholder(placeholder_name(item.source), kind, position)
        node.meta["tensor_dict"] = {}
        if example is None:
            self._values.typed(node, item.value)
        else:
            self._values.placeholder(node, example, item.value)
        self.nodes[item.value.name] = node

    def _placeholder(self, name: str, kind: type, place: int | str) -> torch.fx.Node:
        while name in self._taken:
            name += "1_"
        self._taken.add(name)
        self.places.append(place)
        return self.graph.placeholder(name, type_expr=kind)

    def call(self, node: Node) -> None:
        args = tuple(self.argument(arg) for arg in node.args)
        kwargs = {key: self.argument(arg) for key, arg in node.kwargs.items()}
        if node.target in self._controls:
            made = self._add(("call_function", *self._control(self._controls[node.target], args), {}), node.line)
            self._take(made, node)
            return
        made = self._add(_form(node.target, args, kwargs), node.line)
        # A module of the graph is not run on fake tensors: its results are of the types that the capture has.
        places = None if made.op == "call_module" else self._values.call(made)
        if places is None or len(places) != len(node.results):
            self._untyped(made, node)
            return
        for path, result in zip(places, node.results, strict=True):
            self.nodes[result.name] = self._item(made, path, node.line)

    def argument(self, arg: Arg) -> Any:
        return absint.wire.from_arg(
            arg, lambda leaf: self.nodes[leaf.name] if isinstance(leaf, Ref) else self._size(leaf)
        )

    def _size(self, size: Expr) -> torch.fx.Node:
        """What computes a size of the placeholders."""
        if size.text not in self._sizes:
            self._sizes[size.text] = value_of(size, self._sizes, self._computed)
        return self._sizes[size.text]

    def _computed(self, function: Callable[[Any, Any], Any], *operands: Any) -> torch.fx.Node:
        node = self.graph.call_function(function, operands)
        self._values.call(node)
        return node

    def _add(self, form: Form, line: SourceLine | None) -> torch.fx.Node:
        kind, target, args, kwargs = form
        node = self.graph.create_node(kind, target, args, kwargs)
        if target is not TORCH.set_grad_enabled:
            node.meta["source_fn_stack"] = [(node.name, target)]
        if line is not None:
            node.stack_trace = _stack_trace(line)
        return node

    def _item(self, node: torch.fx.Node, path: Path, line: SourceLine | None) -> torch.fx.Node:
        for key in path:
            node = self._add(("call_function", operator.getitem, (node, key), {}), line)
            self._values.call(node)
            self._items.append(node)
        return node

    def drop_unused_items(self) -> None:
        """Of several tensors that a call returns, only those are taken out that something uses."""
        for node in reversed(self._items):
            if not node.users:
                self.graph.erase_node(node)

    def _untyped(self, made: torch.fx.Node, node: Node) -> None:
        """The results of a call whose value has an unknown structure."""
        match node.results:
            case ():
                return
            case (Value() as result,) if not _returns_sequence(node):
                self._values.typed(made, result)
                self.nodes[result.name] = made
                return
        self._take(self._add(("call_function", flatten_tensors, (made,), {}), node.line), node)

    def _take(self, leaves: torch.fx.Node, node: Node) -> None:
        """The results of a call, from a flat tuple."""
        for position, result in enumerate(node.results):
            item = self._add(("call_function", operator.getitem, (leaves, position), {}), node.line)
            self._values.typed(item, result)
            self.nodes[result.name] = item

    def _control(self, function: captures.CustomFunction, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """torch's operator, and its arguments."""
        assert function.transform is not None
        names = [f"{_module_name(captures.CUSTOM + function.name)}_{name}" for name in function.graphs]
        bodies, count = [self.graph.get_attr(name) for name in names], function.transform.carried
        *operands, captured = args
        # The operators take no tensor twice.
        operands = [self.graph.call_function(torch.clone, (x,)) if x in captured else x for x in operands]
        ops = torch.ops.higher_order
        match function.transform.kind:
            case "cond":
                return ops.cond, (operands[0], *bodies, captured)
            case "while_loop":
                return ops.while_loop, (*bodies[::-1], tuple(operands), captured)
        if not count:
            return ops.map_impl, (*bodies, operands, list(captured))
        return ops.scan, (*bodies, operands[:count], operands[count:], captured)


def _form(target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Form:
    """How torch's own capture writes the call of `target`."""
    if any(map(keyword.iskeyword, kwargs)):  # `random_(from=3)`
        return "call_function", call_by_name, (target, args, kwargs), {}
    if target.startswith(captures.CUSTOM):
        return "call_module", _module_name(target), args, kwargs
    if target.startswith(_METHOD) and args and isinstance(args[0], torch.fx.Node):
        name = target.removeprefix(_METHOD)
        if name.endswith(_GETTER):
            return "call_function", getattr, (args[0], name.removesuffix(_GETTER)), {}
        if name.endswith(_SETTER):
            return "call_function", set_attribute, (args[0], name.removesuffix(_SETTER), *args[1:]), {}
        if name in _OPERATORS:
            return "call_function", _OPERATORS[name], args, kwargs
        if "." not in name:
            return "call_method", name, args, kwargs
    function = absint.targets.resolve(target)
    if is_printed(function):
        return "call_function", function, args, kwargs
    return "call_function", call_by_name, (target, args, kwargs), {}


def _stack_trace(line: SourceLine) -> str:
    text = linecache.getline(line.file, line.line).strip()
    return f'  File "{line.file}", line {line.line}, in {line.function}\n' + (f"    {text}\n" if text else "")


def _returns_sequence(node: Node) -> bool:
    """True when even a single result comes inside a tuple or list (chunk of one, split of one)."""
    name = node.target.rsplit(".", 1)[-1]
    sequences = ("split", "chunk", "unbind", "tensor_split", "split_with_sizes", "broadcast_tensors", "meshgrid")
    return node.target.startswith(captures.CUSTOM) or name in sequences


def placeholder_name(source: captures.Source) -> str:
    """An identifier for the tensor at `source`, as torch.compile spells it: L_..._ for locals and cells, G_..._ for
    globals.

    >>> from stagewire.capture import Attribute, Item, Local
    >>> placeholder_name(Item(Attribute(Attribute(Local("self"), "linear"), "_parameters"), "weight"))
    'L_self_linear_parameters_weight_'
    """
    name = re.sub(r"[^a-zA-Z0-9]+", "_", _spelled(source))
    return f"{name.rstrip('_')}_"


_SPELLED: dict[type[Any], str] = {
    **dict.fromkeys((captures.Local, captures.Cell), "L.{name}"),
    **dict.fromkeys((captures.Global, captures.Builtin), "G.{name}"),
    captures.HandleSource: "O.{name}",
    captures.Attribute: "{base}.{name}",
    captures.Item: "{base}.{key}",
    captures.DictKey: "{base}.keys.{index}",
    captures.DictValue: "{base}.values.{index}",
    captures.TypeOf: "type.{base}",
    captures.Reading: "{base}.{function}",
}


def _spelled(source: captures.Source) -> str:
    fields = msgspec.structs.asdict(source)
    if "base" in fields:
        fields["base"] = "O" if fields["base"] is None else _spelled(fields["base"])
    return fields["base"] if fields.get("name") == "__dict__" else _SPELLED[type(source)].format(**fields)
