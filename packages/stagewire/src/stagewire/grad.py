"""`Grad`: the joint graph of functional ATen calls, not yet cut, and how it is bound to the caller's tensors.

    grad     ::= binding joint:graph rewrite*
    binding  ::= input* output* mutation* saved* tangent* input_gradient*

Calling convention, for any executor of the graphs:
    joint(*inputs, *constants, *tangents) -> results, gradients   (where there are tangents: one an input, or None)
cut in two (a `Prim` after the partition, `Loop`, `Program`):
    forward(*inputs, *constants)   -> results        (fresh outputs, new values of mutated inputs, saved activations)
    backward(*saved, *tangents)    -> gradients      (`input_gradients` says whose)

The gradient of a gradient is a program of its own: its inputs are those of the first and its tangents.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stagewire.capture import InputRole, Relation, Symbol
from stagewire.graph import Arg, Graph, SourceLine
from stagewire.types import DType, TensorType, ValueType


class BoundInput(msgspec.Struct, frozen=True):
    """One caller's tensor, or (role "symbol") an int that is the size symbol `name`.

    `requires_grad` as at capture; `mutated` if the program writes into it.

    `fixed_offset`: the graph is right for this storage offset only (it addresses the storage itself, by as_strided).
    `used`: False if no result, output or gradient depends on the values in it.
    """

    name: str
    type: ValueType
    role: InputRole = "tensor"
    mutated: bool = False
    fixed_offset: bool = False
    used: bool = True

    @property
    def requires_grad(self) -> bool:
        """Did it require grad at capture."""
        return isinstance(self.type, TensorType) and self.type.requires_grad


class Fresh(msgspec.Struct, frozen=True, tag="fresh", tag_field="kind"):
    """The output is forward result number `result`; `differentiable` if a tangent may come back for it."""

    result: int
    requires_grad: bool = False


class SameAsInput(msgspec.Struct, frozen=True, tag="same_as_input", tag_field="kind"):
    """The output is the caller's input object number `input` itself (after its mutation, if any)."""

    input: int


class ViewOf(msgspec.Struct, frozen=True, tag="view_of", tag_field="kind"):
    """The output is a view of input number `base`, or of output base number `base` among the forward results.

    The view is rebuilt on the runtime tensor by replaying `chain`: (view op target, arguments after the tensor).
    `same_as`: the earlier output, also a view, that is the very same object. `other_mode`: the positions in `chain` of
    ops that run in the other grad mode than the call (a view made under no_grad has no history of its own). `pieces`:
    of ops in `chain` that give several views, the position, and the number of the view.
    """

    of: Literal["input", "result"]
    base: int
    chain: tuple[tuple[str, tuple[Arg, ...]], ...]
    type: TensorType
    same_as: int | None = None
    other_mode: tuple[int, ...] = ()
    pieces: tuple[tuple[int, int], ...] = ()


class Literally(msgspec.Struct, frozen=True, tag="literally", tag_field="kind"):
    """The output is a Python literal."""

    value: Arg


BoundOutput = Fresh | SameAsInput | ViewOf | Literally


class Mutation(msgspec.Struct, frozen=True):
    """After the forward, input number `input` receives the value of forward result number `result`.

    `under_grad`: the write is visible to autograd (made with grad mode on, on a tensor that requires grad).
    `versions`: by how much the program's writes move the version counter. `in_place`: the forward writes the result
    where the input is, so that nothing is left to copy.
    """

    input: int
    result: int
    under_grad: bool = False
    versions: int = 1
    in_place: bool = False


class SavedInput(msgspec.Struct, frozen=True, tag="saved_input", tag_field="kind"):
    """The backward takes the caller's input number `input` itself (version-checked by autograd).

    Numbers from `len(inputs)` on are constants.
    """

    input: int


class SavedResult(msgspec.Struct, frozen=True, tag="saved_result", tag_field="kind"):
    """The backward takes forward result number `result`."""

    result: int


class SavedSize(msgspec.Struct, frozen=True, tag="saved_size", tag_field="kind"):
    """The backward takes the value that the size symbol had in the forward, as an int; these come last."""

    symbol: str


Saved = SavedInput | SavedResult | SavedSize


class Tangent(msgspec.Struct, frozen=True):
    """The gradient of forward result `result`, expected in this type (the binder copies it to these strides)."""

    result: int
    type: TensorType


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """How the graphs meet the caller's tensors; see the module's calling convention. `saved` and `input_gradients` are
    the partition's: they are empty before it."""

    inputs: tuple[BoundInput, ...]
    outputs: tuple[BoundOutput, ...]
    mutations: tuple[Mutation, ...] = ()
    saved: tuple[Saved, ...] = ()
    tangents: tuple[Tangent, ...] = ()
    input_gradients: tuple[int | None, ...] = ()  # per input: which backward result is its gradient
    symbols: tuple[Symbol, ...] = ()
    constants: tuple[BoundConstant, ...] = ()
    # Per gradient that there is (per backward result): the tangents it depends on; it is no gradient at all when none
    # of them arrived. Empty: all.
    gradient_tangents: tuple[tuple[int, ...], ...] = ()
    # Per tangent: the tangents, itself among them, whose backward cannot run after its own without retain_graph, since
    # that has freed what they need. Empty: all of them, after any.
    closed_by: tuple[tuple[int, ...], ...] = ()
    # Inputs on whose values, at the time of the call, the gradients depend: to compute them again takes these,
    # and the random stream as it stood on these devices.
    gradient_inputs: tuple[int, ...] = ()
    gradient_devices: tuple[str, ...] = ()
    # Conditions on the symbols: what holds in every call, and what of that the capture does not guard by itself.
    facts: tuple[Relation, ...] = ()
    assumptions: tuple[Relation, ...] = ()


class Constant(msgspec.Struct, frozen=True):
    """The bytes of one contiguous tensor, little-endian, row-major."""

    dtype: DType
    shape: tuple[int, ...]
    data: bytes


class BoundConstant(msgspec.Struct, frozen=True):
    """A tensor that the program made from literals; it follows the inputs in the forward's arguments, on `device`."""

    name: str
    value: Constant
    device: str = "cpu"


class Rewrite(msgspec.Struct, frozen=True):
    """Calls of the program that were traced in another form (`what`: of which kind), or were not, and why."""

    what: str
    reason: str
    refused: bool = False
    line: SourceLine | None = None


class Grad(msgspec.Struct, frozen=True, kw_only=True, tag="grad", tag_field="document"):
    """One graph of functional ATen calls ("aten.add.Tensor") of both directions (`Node.phase`).

    No node mutates or aliases its inputs observably except views, which appear as the view ops themselves
    ("aten.view.default") and read as pure functions.
    """

    binding: Binding
    joint: Graph
    rewrites: tuple[Rewrite, ...] = ()


def returned_inputs(binding: Binding) -> set[int]:
    """Inputs that are outputs, or what outputs are views of."""
    given = [o.input for o in binding.outputs if isinstance(o, SameAsInput)]
    return {*given, *[o.base for o in binding.outputs if isinstance(o, ViewOf) and o.of == "input"]}


def public_results(binding: Binding) -> list[int]:
    """Forward results that are outputs, what outputs are views of, or new values of inputs, with repetitions."""
    views = [o.base for o in binding.outputs if isinstance(o, ViewOf) and o.of == "result"]
    return [o.result for o in binding.outputs if isinstance(o, Fresh)] + views + [m.result for m in binding.mutations]
