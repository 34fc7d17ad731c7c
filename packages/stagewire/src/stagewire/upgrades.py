"""Plain data of an earlier version of a document as that of the next (`stagewire.codec.UPGRADES`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from stagewire.expr import symbol
from stagewire.grad import Binding, Grad, Rewrite, SavedInput, SavedResult, SavedSize, public_results
from stagewire.graph import Arg, Graph, Node, Ref, Value, definitions, map_arg
from stagewire.graph_passes import unused_name

# What drew random numbers by the lists that readers of version 1 had; as it was then, not kept up to date.
_NAMES = (
    "_fused_dropout _sample_dirichlet _standard_gamma alpha_dropout bernoulli bernoulli_ bernoulli_p binomial cauchy "
    "cauchy_ dropout exponential exponential_ geometric geometric_ log_normal log_normal_ multinomial native_dropout "
    "normal normal_ normal_functional normal_of philox_state poisson rrelu rrelu_with_noise "
    "rrelu_with_noise_functional standard_gamma uniform uniform_"
)
_DRAWING = frozenset(_NAMES.split())
_VIEW_NAMES = (
    "alias as_strided adjoint chunk conj _conj _neg_view contiguous detach diagonal expand expand_as imag lift_fresh "
    "movedim narrow permute real reshape _reshape_alias resolve_conj resolve_neg select slice split split_with_sizes "
    "squeeze t transpose unbind unflatten unfold unsqueeze view view_as view_as_complex view_as_real"
)
_VIEWS = frozenset(_VIEW_NAMES.split())
_ASSERTIONS = frozenset(("_assert_async", "_assert_scalar", "_assert_tensor_metadata"))


def state_effects(body: Any) -> Any:
    """Version 2 of grad, prim and loop: calls state their effect, which readers of version 1 told by the target.

    What is malformed stays as it is: reading the result as a document refuses it.
    """
    for call in _calls(body):
        match call:
            case {"target": str(target)}:
                call["effect"] = _effect(target)
    return body


def state_views(body: Any) -> Any:
    """Version 3 of grad and prim: calls of views state that their results alias."""
    for call in _calls(body):
        match call:
            case {"target": str(target)} if call.get("effect") is None and _effect(target) == "aliases":
                call["effect"] = "aliases"
    return body


def _calls(body: Any) -> Iterator[Any]:
    for direction in ("forward", "backward"):
        graph = body.get(direction) if isinstance(body, dict) else None
        for key in ("nodes", "steps"):
            calls = graph.get(key) if isinstance(graph, dict) else None
            if isinstance(calls, list):
                yield from calls


def _effect(target: str) -> str | None:
    namespace, _, rest = target.partition(".")
    name = rest.partition(".")[0]
    if namespace not in ("aten", "prims"):
        return "acts"
    attention = name.startswith("_scaled_dot_product") and not name.endswith("backward") and "_for_cpu" not in name
    if name in _DRAWING or name.startswith("rand") or attention:
        return "draws"
    return "acts" if name in _ASSERTIONS else "aliases" if namespace == "aten" and name in _VIEWS else None


class _CutGrad(msgspec.Struct, frozen=True):
    """`Grad` of version 2, which was cut in two."""

    binding: Binding
    forward: Graph
    backward: Graph | None = None
    rewrites: tuple[Rewrite, ...] = ()


def join_directions(body: Any) -> Any:
    """Version 3 of grad: one joint graph. What version 2 computes again in its backward, that of version 3 does too."""
    old = msgspec.convert(state_views(body), _CutGrad)
    try:
        binding, joint = joined(old.binding, old.forward, old.backward)
    except (IndexError, AttributeError, ValueError) as error:
        raise msgspec.ValidationError(f"forward and backward do not meet: {error}") from None
    return msgspec.to_builtins(Grad(binding=binding, joint=joint, rewrites=old.rewrites))


def joined(binding: Binding, forward: Graph, backward: Graph | None) -> tuple[Binding, Graph]:
    """The binding and the joint graph of what was cut in two."""
    bare = replace(binding, saved=(), input_gradients=())
    forward = replace(forward, nodes=tuple([replace(node, phase="forward") for node in forward.nodes]))
    # Behind the results that the program has stand those that were saved for the backward.
    count = max((*public_results(binding), *(item.result for item in binding.tangents)), default=-1) + 1
    outputs = forward.outputs[:count]
    if backward is None or not binding.tangents:
        bare = replace(bare, tangents=(), gradient_tangents=(), closed_by=())
        return bare, replace(forward, outputs=outputs)
    known: dict[str, Arg] = {}
    for value, slot in zip(backward.inputs, binding.saved, strict=False):
        match slot:
            case SavedInput(number):
                known[value.name] = Ref(forward.inputs[number].name)
            case SavedResult(number):
                known[value.name] = forward.outputs[number]
            case SavedSize(name):
                known[value.name] = symbol(name)
    taken = set(definitions(forward))

    def defined(value: Value) -> Value:
        name = unused_name(value.name, taken)
        taken.add(name)
        known[value.name] = Ref(name)
        return Value(name, value.type)

    def read(arg: Arg) -> Arg:
        return map_arg(arg, lambda leaf: known.get(leaf.name, leaf) if isinstance(leaf, Ref) else leaf)

    tangents = tuple(defined(value) for value in backward.inputs[len(binding.saved) :])
    nodes = [*forward.nodes]
    for node in backward.nodes:
        args, kwargs = tuple(map(read, node.args)), {key: read(arg) for key, arg in node.kwargs.items()}
        results = tuple(map(defined, node.results))
        nodes.append(Node(node.target, args, kwargs, results, node.line, "backward", node.effect))
    tensors = {place for place, arg in enumerate(backward.outputs) if isinstance(arg, Ref)}
    given = binding.input_gradients or (None,) * len(binding.inputs)
    places = [place if place in tensors else None for place in given]
    ends = tuple([None if place is None else read(backward.outputs[place]) for place in places])
    sources = binding.gradient_tangents and tuple(
        [binding.gradient_tangents[place] for place in places if place is not None]
    )
    joint = Graph(forward.inputs + tangents, tuple(nodes), outputs + ends)
    return replace(bare, gradient_tangents=sources), joint
