"""B1 to B12: how a binding meets a joint graph, or its two directions; P1, P2: the opset and the form of a Prim."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from stagewire.grad import Binding, Fresh, Grad, SameAsInput, SavedInput, SavedResult, SavedSize, ViewOf
from stagewire.graph import Graph, node_references, references
from stagewire.prim import Prim
from stagewire.types import TensorType, ValueType
from stagewire.verify.captures import check_symbols
from stagewire.verify.fault import Fault, Faults, Path, duplicates
from stagewire.verify.graphs import check_graph, check_ops
from stagewire.vocabulary import vocabulary

QUALIFIED = re.compile(r"[A-Za-z_]\w*(\.\w+)+")
"""G5 for Grad and Prim: `aten.add.Tensor`, `prims.add`, `mylib.op.default`."""


class Direction(NamedTuple):
    """What a binding needs to know of one direction: types of its inputs (None: unknown), number of results."""

    name: str
    inputs: tuple[ValueType | None, ...]
    results: int


Body = TypeVar("Body")


def check_directions(
    binding: Binding,
    forward: Body,
    backward: Body | None,
    check: Callable[[Body, Path], Faults],
    describe: Callable[[str, Body], Direction],
) -> Faults:
    """What Grad, Prim, Loop and Program have in common: each direction by itself, then how the binding meets them."""
    yield from check(forward, ("forward",))
    if backward is not None:
        yield from check(backward, ("backward",))
    described = None if backward is None else describe("backward", backward)
    yield from check_binding(binding, describe("forward", forward), described)


def check_grad(document: Grad) -> Faults:
    yield from _check_joint(document.binding, document.joint)


def check_prim(document: Prim) -> Faults:
    binding, joint, forward, backward = document.binding, document.joint, document.forward, document.backward
    if joint is not None and forward is None and backward is None:
        yield from _check_joint(binding, joint)
    elif joint is not None or forward is None:
        yield Fault("P2", "a prim has a joint graph, or a forward and perhaps a backward", ())
    else:
        yield from check_directions(binding, forward, backward, check_qualified, _direction)
    known = vocabulary("prims")
    if document.opset < 1 or (known is not None and document.opset > known.version):
        installed = "" if known is None else f" here: the installed prims are of version {known.version}"
        yield Fault("P1", f"there is no opset {document.opset}{installed}", ("opset",))


def check_qualified(graph: Graph, path: Path = ()) -> Faults:
    yield from check_graph(graph, path, QUALIFIED)
    yield from check_ops(graph, path)


def _direction(name: str, graph: Graph) -> Direction:
    return Direction(name, tuple(value.type for value in graph.inputs), len(graph.outputs))


def _check_joint(binding: Binding, joint: Graph) -> Faults:
    """B7, B8 and B10 to B12, and what holds of a forward alone."""
    path: Path = ("binding",)
    yield from check_qualified(joint, ("joint",))
    results = len(joint.outputs) - (len(binding.inputs) if binding.tangents else 0)
    yield from check_binding(binding, _direction("joint", joint)._replace(results=results), None)
    if results < 0:
        yield Fault("B7", f"the joint graph gives {len(joint.outputs)} values, fewer than inputs", ("joint", "outputs"))
        return
    yield from _check_tangents_of(binding, sum(arg is not None for arg in joint.outputs[results:]), path)
    for field in ("saved", "input_gradients"):
        if getattr(binding, field):
            yield Fault("B11", f"a joint graph, and {field} of its parts", (*path, field))
    backward = {value.name for value in joint.inputs[len(binding.inputs) + len(binding.constants) :]}
    for position, node in enumerate(joint.nodes):
        if node.phase == "backward":
            backward.update(value.name for value in node.results)
        else:
            yield from _apart(node_references(node), backward, ("joint", "nodes", position))
    for arg in joint.outputs[:results]:
        yield from _apart(references(arg), backward, ("joint", "outputs"))


def _apart(names: tuple[str, ...], backward: set[str], path: Path) -> Faults:
    for name in names:
        if name in backward:
            yield Fault("B12", f"the forward uses %{name}, which the backward has", path)


def check_binding(binding: Binding, forward: Direction, backward: Direction | None) -> Faults:
    path: Path = ("binding",)
    names = [item.name for item in binding.inputs] + [item.name for item in binding.constants]
    for position, name in duplicates(names):
        inside = position < len(binding.inputs)
        where = (*path, "inputs", position) if inside else (*path, "constants", position - len(binding.inputs))
        yield Fault("B1", f"the input {name!r} has the name of another, or none", where)
    yield from check_symbols(binding.symbols, (*path, "symbols"))
    yield from _check_numbers(binding, forward.results, path)
    yield from _check_forward(binding, forward)
    yield from _check_mutations(binding, path)
    yield from _check_backward(binding, backward, path)


def _check_numbers(binding: Binding, results: int, path: Path) -> Faults:
    """B2."""
    inputs = len(binding.inputs)
    arguments = inputs + len(binding.constants)
    for position, output in enumerate(binding.outputs):
        where = (*path, "outputs", position)
        match output:
            case SameAsInput(number):
                yield from _in_range("input", number, inputs, where)
            case ViewOf():
                yield from _in_range(output.of, output.base, inputs if output.of == "input" else results, where)
            case Fresh(number):
                yield from _in_range("result", number, results, where)
    for position, mutation in enumerate(binding.mutations):
        yield from _in_range("input", mutation.input, inputs, (*path, "mutations", position))
        yield from _in_range("result", mutation.result, results, (*path, "mutations", position))
    for position, saved in enumerate(binding.saved):
        where = (*path, "saved", position)
        match saved:
            case SavedInput(number):
                yield from _in_range("input", number, arguments, where)
            case SavedResult(number):
                yield from _in_range("result", number, results, where)
    for position, tangent in enumerate(binding.tangents):
        yield from _in_range("result", tangent.result, results, (*path, "tangents", position))
    for position, number in enumerate(binding.gradient_inputs):
        yield from _in_range("input", number, inputs, (*path, "gradient_inputs", position))


def _in_range(what: str, number: int, count: int, path: Path) -> Faults:
    if not 0 <= number < count:
        yield Fault("B2", f"there is no {what} number {number} of {count}", path)


def _check_forward(binding: Binding, forward: Direction) -> Faults:
    """B3; B7 of a joint graph, which takes the tangents too."""
    is_joint = forward.name == "joint"
    expected = len(binding.inputs) + len(binding.constants) + (len(binding.tangents) if is_joint else 0)
    if len(forward.inputs) != expected:
        message = f"the {forward.name} takes {len(forward.inputs)} values, the binding gives {expected}"
        yield Fault("B7" if is_joint else "B3", message, (forward.name,))
    for position, (item, found) in enumerate(zip(binding.inputs, forward.inputs, strict=False)):
        kind = item.type
        if isinstance(found, TensorType) and (
            not isinstance(kind, TensorType) or (found.dtype, found.shape) != (kind.dtype, kind.shape)
        ):
            yield Fault(
                "B3", f"{item.name} is {item.type}, the {forward.name} takes {found}", ("binding", "inputs", position)
            )


def _check_mutations(binding: Binding, path: Path) -> Faults:
    seen: set[int] = set()
    for position, mutation in enumerate(binding.mutations):
        where = (*path, "mutations", position)
        if mutation.input in seen:
            yield Fault("B6", f"input {mutation.input} is mutated twice", where)
        elif 0 <= mutation.input < len(binding.inputs) and not binding.inputs[mutation.input].mutated:
            yield Fault("B6", f"input {mutation.input} is not marked as mutated", where)
        seen.add(mutation.input)


def _check_backward(binding: Binding, backward: Direction | None, path: Path) -> Faults:
    gradients = binding.input_gradients
    if gradients and len(gradients) != len(binding.inputs):
        message = f"{len(gradients)} input gradients for {len(binding.inputs)} inputs"
        yield Fault("B5", message, (*path, "input_gradients"))
    if backward is None:
        return
    expected = len(binding.saved) + len(binding.tangents)
    if len(backward.inputs) != expected:
        message = f"the backward takes {len(backward.inputs)} values, the binding gives {expected}"
        yield Fault("B4", message, (backward.name,))
    for number in gradients:
        if number is not None and not 0 <= number < backward.results:
            message = f"there is no gradient number {number} of {backward.results}"
            yield Fault("B5", message, (*path, "input_gradients"))
    yield from _check_tangents_of(binding, backward.results, path)
    yield from _check_saved_sizes(binding, backward, path)


def _check_saved_sizes(binding: Binding, backward: Direction, path: Path) -> Faults:
    """B9."""
    symbols = {symbol.name for symbol in binding.symbols}
    for position, saved in enumerate(binding.saved):
        where = (*path, "saved", position)
        if not isinstance(saved, SavedSize):
            if position and isinstance(binding.saved[position - 1], SavedSize):
                yield Fault("B9", "a saved value stands behind a saved size", where)
            continue
        if saved.symbol not in symbols:
            yield Fault("B9", f"{saved.symbol!r} is no declared symbol", where)
        if position < len(backward.inputs) and isinstance(backward.inputs[position], TensorType):
            yield Fault("B9", f"the backward takes a tensor where {saved.symbol!r} is saved", where)


def _check_tangents_of(binding: Binding, gradients: int, path: Path) -> Faults:
    """B8 and B10."""
    tangents = len(binding.tangents)
    for label, field, count, what in (
        ("B8", "gradient_tangents", gradients, "gradients"),
        ("B10", "closed_by", tangents, "tangents"),
    ):
        entries, where = getattr(binding, field), (*path, field)
        if entries and len(entries) != count:
            yield Fault(label, f"{len(entries)} entries for {count} {what}", where)
        for number in sorted({number for entry in entries for number in entry}):
            if not 0 <= number < tangents:
                yield Fault(label, f"there is no tangent number {number} of {tangents}", where)
