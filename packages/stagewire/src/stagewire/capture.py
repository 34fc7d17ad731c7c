"""`Capture`: what bytecap saw of one Python frame.

capture ::= code input* symbol* guard* graph function* check* checkpoint*
input   ::= value source role
source  ::= local | global | cell | constant | attribute | item | ...       (a path to a Python value)
guard   ::= kind source payload                                             (a condition on that value)
function::= name forward:graph backward:graph?                              (a gradient that the program defines)
          | name forward:graph transform                                    (a function that torch.func transforms)
          | name forward:graph second:graph? transform                      (cond, while_loop, scan: `CONTROL_FLOW`)
check   ::= output line*                                                (a condition on data that the graph computes)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from stagewire.expr import Dim, evaluate
from stagewire.graph import Arg, Graph, SourceLine, Value
from stagewire.types import TensorType


class Local(msgspec.Struct, frozen=True, tag="local", tag_field="kind"):
    """A local variable (argument) of the frame at its start."""

    name: str


class Global(msgspec.Struct, frozen=True, tag="global", tag_field="kind"):
    """A module-level name: of the frame's own module, or of `module` when it was inlined from elsewhere."""

    name: str
    module: str | None = None


class Builtin(msgspec.Struct, frozen=True, tag="builtin", tag_field="kind"):
    name: str


class Cell(msgspec.Struct, frozen=True, tag="cell", tag_field="kind"):
    """The content of the free variable `name` of the frame, or of the function at `function`."""

    name: str
    function: Source | None = None


class Attribute(msgspec.Struct, frozen=True, tag="attribute", tag_field="kind"):
    base: Source
    name: str


class Item(msgspec.Struct, frozen=True, tag="item", tag_field="kind"):
    """base[key] for a literal key."""

    base: Source
    key: int | str | bool | float | None


class DictKey(msgspec.Struct, frozen=True, tag="dict_key", tag_field="kind"):
    """The `index`-th key of a dict, in insertion order."""

    base: Source
    index: int


class DictValue(msgspec.Struct, frozen=True, tag="dict_value", tag_field="kind"):
    """The value under the `index`-th key of a dict, in insertion order."""

    base: Source
    index: int


class TypeOf(msgspec.Struct, frozen=True, tag="type_of", tag_field="kind"):
    base: Source


class Reading(msgspec.Struct, frozen=True, tag="reading", tag_field="kind"):
    """What a C function without side effects returns when it is called again: `torch.get_num_threads()`,
    `torch.Tensor.storage_offset(base)`."""

    function: str
    base: Source | None = None
    arguments: tuple[Arg, ...] = ()


class HandleSource(msgspec.Struct, frozen=True, tag="handle_source", tag_field="kind"):
    """An object that the process holds under `name` (not portable)."""

    name: str


Source = Local | Global | Builtin | Cell | Attribute | Item | DictKey | DictValue | TypeOf | Reading | HandleSource


class TypeIs(msgspec.Struct, frozen=True, tag="type_is", tag_field="kind"):
    """type(source) is the type named `name` ("module.qualname")."""

    source: Source
    name: str
    line: SourceLine | None = None


class IdentityIs(msgspec.Struct, frozen=True, tag="identity_is", tag_field="kind"):
    """source is the very object described by `name` (a function, a class, a module, None...)."""

    source: Source
    name: str
    line: SourceLine | None = None


class Equals(msgspec.Struct, frozen=True, tag="equals", tag_field="kind"):
    """source has exactly this literal value, and the literal's type."""

    source: Source
    value: Arg
    line: SourceLine | None = None


class TensorIs(msgspec.Struct, frozen=True, tag="tensor_is", tag_field="kind"):
    """A tensor of Python class `type_name` with this type; sizes that are `Expr` are free (bound to their symbol)."""

    source: Source
    type: TensorType
    type_name: str = "torch.Tensor"
    is_leaf: bool | None = None
    line: SourceLine | None = None


class LengthIs(msgspec.Struct, frozen=True, tag="length_is", tag_field="kind"):
    source: Source
    length: int
    line: SourceLine | None = None


class KeysAre(msgspec.Struct, frozen=True, tag="keys_are", tag_field="kind"):
    """A dict with exactly these literal keys in this order."""

    source: Source
    keys: tuple[Arg, ...]
    line: SourceLine | None = None


class HasKey(msgspec.Struct, frozen=True, tag="has_key", tag_field="kind"):
    """(key in source) is `present`, for a dict and a literal key."""

    source: Source
    key: int | str | bool | float | None
    present: bool
    line: SourceLine | None = None


class HasAttribute(msgspec.Struct, frozen=True, tag="has_attribute", tag_field="kind"):
    """hasattr(source, name) is `present` (looked up without running user code)."""

    source: Source
    name: str
    present: bool
    line: SourceLine | None = None


class SameObject(msgspec.Struct, frozen=True, tag="same_object", tag_field="kind"):
    """(first is second) is `same`."""

    first: Source
    second: Source
    same: bool
    line: SourceLine | None = None


class Distinct(msgspec.Struct, frozen=True, tag="distinct", tag_field="kind"):
    """Each of `sources` is another object than all the rest of them, and than each of `others`."""

    sources: tuple[Source, ...]
    others: tuple[Source, ...] = ()


class GlobalState(msgspec.Struct, frozen=True, tag="global_state", tag_field="kind"):
    """The state of torch that the capture relied on."""

    grad_enabled: bool
    inference_mode: bool = False
    default_dtype: str = "float32"
    autocast: tuple[tuple[str, str], ...] = ()  # (device type, dtype) of the enabled autocast regions
    deterministic: bool = False


class Relation(msgspec.Struct, frozen=True, tag="relation", tag_field="kind"):
    """A condition on symbols: `left operator right`."""

    left: Dim
    operator: Literal["==", "!=", "<", "<=", ">", ">="]
    right: Dim
    line: SourceLine | None = None


COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
"""By the operator of a `Relation`."""


def holds(relation: Relation, sizes: Mapping[str, int]) -> bool:
    """Whether a relation holds of these values of its symbols. Raises `ExprError` where a size has no value there."""
    return bool(COMPARED[relation.operator](evaluate(relation.left, sizes), evaluate(relation.right, sizes)))


Guard = (
    TypeIs
    | IdentityIs
    | Equals
    | TensorIs
    | LengthIs
    | KeysAre
    | HasKey
    | HasAttribute
    | SameObject
    | Distinct
    | GlobalState
    | Relation
)

InputRole = Literal["parameter", "buffer", "tensor", "constant", "symbol", "number"]


class Input(msgspec.Struct, frozen=True):
    """One graph input: `value.name` is its name in the graph; `source` says where to read it in the frame.

    Role "constant": a tensor that the process holds (or that travels beside the document) under `value.name`. Role
    "number": a Python float at `source`, which the graph is given as a float64 tensor without dimensions.
    """

    value: Value
    source: Source
    role: InputRole = "tensor"


class Symbol(msgspec.Struct, frozen=True):
    """A size symbol, its source, the value it had at capture, and its range (None: unbounded)."""

    name: str
    source: Source | None
    hint: int | None
    lower: int | None = 0
    upper: int | None = None


class Code(msgspec.Struct, frozen=True):
    """The captured code object."""

    name: str
    file: str
    first_line: int


class Transform(msgspec.Struct, frozen=True, kw_only=True):
    """A function transform of `torch.func`, or an op of control flow that runs functions; with trees flattened.

    kind: "call" is the function itself, and so is "dual_level", inside of a dual level of torch.autograd.forward_ad.
    arguments: how many operands the function takes; those of "jvp" and "vjp" are
    followed by tangents or cotangents. outputs: how many of the graph's outputs are the function's, the others being
    passed through. wanted: the arguments that are differentiated. in_dims, out_dims: of "vmap".

    Results: "vmap" each output; "grad" a gradient for each wanted argument, then each output; "jvp" the outputs, their
    tangents, the others; "vjp" a gradient for each argument; "jacrev" and "jacfwd" for each output the derivative by
    each wanted argument, then the others.

    Control flow, whose results are new tensors; what the functions do not use has gradients of zeros:
    cond: the operand is a bool of one element. The function where it is true, `second` where it is false.
    while_loop: the operands are arguments of both functions. While the output of `second`, a bool of one element, is
    true, the function's outputs are the next arguments. Results: the last ones.
    scan: the first `carried` operands and the rows of the others (along dimension 0, there are `length`) are the
    arguments. The first `carried` outputs are the next ones. Results: the last ones, then the others of all steps,
    stacked.
    """

    kind: Literal["call", "dual_level", "vmap", "grad", "jvp", "vjp", "jacrev", "jacfwd", "cond", "while_loop", "scan"]
    arguments: int
    outputs: int
    wanted: tuple[int, ...] = ()
    in_dims: tuple[int | None, ...] = ()
    out_dims: tuple[int | None, ...] = ()
    randomness: Literal["error", "different", "same"] = "error"
    chunk_size: int | None = None
    carried: int = 0
    length: Dim = 0


CONTROL_FLOW = frozenset({"cond", "while_loop", "scan"})
"""The kinds of `Transform` that run functions as often as data or sizes say."""


class CustomFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A `torch.autograd.Function` of the program: what it computes, and what its own backward does.

    A node applies it: `results = custom.<name>(*operands, captured)`, where `captured` is a tuple of tensors that
    no gradient reaches through it.

    forward: inputs operands, then captured; outputs the results, then what is kept for the backward. Runs without
    gradients. A result that is an operand is a view of it, or (in `written`) that operand, changed in place.
    backward: inputs a gradient for each result (zeros where none arrived), then what was kept; outputs for each operand
    its gradient or None. None: no operand requires grad.
    saved: how many of the kept values are saved tensors, whose later change in place is an error of the backward.
    non_differentiable, written: numbers of results. once: the gradient itself cannot be differentiated.
    transform: the node applies this transform of the forward instead, which runs with gradients and keeps nothing.
    second: another function that the transform takes, of the same inputs.
    """

    name: str
    operands: int
    results: int
    forward: Graph
    backward: Graph | None = None
    saved: int = 0
    non_differentiable: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    once: bool = False
    transform: Transform | None = None
    second: Graph | None = None

    @property
    def graphs(self) -> dict[str, Graph]:
        """The graphs by the names of their fields."""
        known = {"forward": self.forward, "backward": self.backward, "second": self.second}
        return {name: graph for name, graph in known.items() if graph is not None}


class Check(msgspec.Struct, frozen=True):
    """What the capture took for true of the data: the graph's output number `output`, a bool without dimensions.

    Where it is false, the call is undone and the program runs plain. lines: the branches that it stands for.
    """

    output: int
    lines: tuple[SourceLine, ...] = ()


class Checkpoint(msgspec.Struct, frozen=True):
    """The nodes from number `first` up to `last` (not included) run under `torch.utils.checkpoint`: what they make is
    to be computed again in the backward rather than kept for it."""

    first: int
    last: int


CUSTOM = "custom."
"""What the target of a node begins with that applies one of the capture's functions."""


class Capture(msgspec.Struct, frozen=True, kw_only=True, tag="capture", tag_field="document"):
    """A torch-level graph of calls by qualified name, with the sources of its inputs and the guards it stands under.

    A node's results are the tensors in the returned value, flattened in order; changes of the grad mode are nodes
    (`torch._C._set_grad_enabled`). `portable` is False when the graph or an input refers to handles of a process;
    guards, which are checked in the process that made them, may.
    """

    code: Code
    inputs: tuple[Input, ...]
    graph: Graph
    guards: tuple[Guard, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    state: GlobalState = GlobalState(grad_enabled=True)
    portable: bool = True
    functions: tuple[CustomFunction, ...] = ()
    checks: tuple[Check, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()


def functions_of(functions: Iterable[CustomFunction], graph: Graph) -> tuple[CustomFunction, ...]:
    """Those that a graph applies, and those that they apply, in their order."""
    wanted = {node.target for node in graph.nodes if node.target.startswith(CUSTOM)}
    found: list[CustomFunction] = []
    for function in reversed(tuple(functions)) if wanted else ():
        if CUSTOM + function.name in wanted:
            found.append(function)
            wanted.update(node.target for body in function.graphs.values() for node in body.nodes)
    return tuple(reversed(found))


def facts_of(capture: Capture) -> tuple[Relation, ...]:
    """What the guards of a capture check of its symbols, without the lines: stages may rely on it."""
    relations = (guard for guard in capture.guards if isinstance(guard, Relation))
    return tuple(Relation(one.left, one.operator, one.right) for one in relations)
