"""Function transforms of torch.func: the function is evaluated once, and becomes a custom function of the capture.

    torch.func.grad(f)(*args)  ->  results = custom.<name>(*operands, captured)

The function is evaluated on the types that it sees inside of the transform (examples without their batch dimension,
arguments that require grad); the types of the results come from torch's own transform of the captured graph, run on
abstract tensors. Transforms of transforms nest. What cannot be captured inside refuses the call as a whole.
"""

from __future__ import annotations

import itertools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import msgspec
import torch

from absint import AbstractMode, AbstractTensor
from absint.functions import custom_functions, run_graph
from absint.symbolic import from_dim, make_size
from absint.tensor import tensors_in
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.graph.builder import GraphBuilder, tensor_type
from bytecap.nodes.bodies import all_tensors, as_functions, recording
from bytecap.nodes.torch_calls import evaluate
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import NONE, Constant, Value, inlined
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, TupleValue
from bytecap.torch_capabilities import TORCH
from stagewire.capture import CUSTOM, CustomFunction, Transform, functions_of
from stagewire.expr import Expr
from stagewire.graph import Value as WireValue

# -- the calls of torch that are known


def grad_and_value(tracer: Tracer, func: Value, argnums: Value, has_aux: Value, args: Value, kwargs: Value) -> Value:
    """`torch.func.grad_and_value(func, argnums, has_aux)(*args, **kwargs)`."""
    chosen, wanted = _chosen(tracer, argnums, args)
    body, results, value, aux = _applied(tracer, "grad", func, args, has_aux, wanted, kwargs)
    gradients = body.take(results, chosen)
    given = body.take(results, TupleValue([value, aux]) if has_aux.truth(tracer) else value)
    return TupleValue([gradients, given])


def grad(tracer: Tracer, func: Value, argnums: Value, has_aux: Value, args: Value, kwargs: Value) -> Value:
    """`torch.func.grad(func, argnums, has_aux)(*args, **kwargs)`."""
    gradients, value = grad_and_value(tracer, func, argnums, has_aux, args, kwargs).values(tracer)  # type: ignore[attr-defined]
    return TupleValue([gradients, value.values(tracer)[1]]) if has_aux.truth(tracer) else gradients


def vmap(
    tracer: Tracer,
    func: Value,
    in_dims: Value,
    out_dims: Value,
    randomness: Value,
    chunk_size: Value,
    *args: Value,
    **kwargs: Value,
) -> Value:
    """`torch.vmap(func, in_dims, out_dims, randomness, chunk_size=chunk_size)(*args, **kwargs)`."""
    given, named = TupleValue(list(args)), tracer.objects.new_dict(kwargs)
    body = TransformedFunction(tracer, func, given, named)
    places = [place.concrete() for place in spread(tracer, in_dims, given)]
    places += [None for _ in leaves_of(tracer, named)]  # whatever torch's documentation says
    leaves = [*leaves_of(tracer, given), *leaves_of(tracer, named)]
    if any(place is not None and not isinstance(leaf, TensorValue) for leaf, place in zip(leaves, places, strict=True)):
        raise UnsupportedCall("torch.vmap over an argument that is no tensor")
    dims = [place for leaf, place in zip(leaves, places, strict=True) if isinstance(leaf, TensorValue)]
    returned = body.evaluate(lambda tensor, number: _example(tracer, tensor, dims[number]))
    outputs = leaves_of(tracer, returned)
    if not all(isinstance(output, TensorValue) for output in outputs):
        raise UnsupportedCall("torch.vmap of a function that gives something else than tensors")
    results = body.apply(
        "vmap",
        outputs,
        len(outputs),
        in_dims=tuple(dims),
        out_dims=tuple(place.concrete() for place in spread(tracer, out_dims, returned)),
        randomness=randomness.concrete(),
        chunk_size=chunk_size.concrete(),
    )
    return body.take(results, returned)


def jvp(
    tracer: Tracer,
    func: Value,
    primals: Value,
    tangents: Value,
    argnums: Value = NONE,
    *,
    strict: Value = NONE,
    has_aux: Value,
) -> Value:
    """`torch.func.jvp(func, primals, tangents, has_aux=has_aux)`."""
    if not argnums.is_none() or (not strict.is_none() and strict.truth(tracer)):
        raise UnsupportedCall("torch.func.jvp with strict=True")
    more = all_tensors(leaves_of(tracer, tangents), "jvp")
    body, results, output, aux = _applied(tracer, "jvp", func, primals, has_aux, more=more)
    items = [body.take(results, tree) for tree in (output, output)]
    return TupleValue([*items, body.take(results, aux)] if has_aux.truth(tracer) else items)


def vjp(tracer: Tracer, func: Value, *primals: Value, argnums: Value = NONE, has_aux: Value | None = None) -> Value:
    """`torch.func.vjp(func, *primals, has_aux=has_aux)`: the function's results, and the way back as a closure."""
    if not argnums.is_none():
        raise UnsupportedCall("torch.func.vjp with argnums")
    with_aux = Constant(False) if has_aux is None else has_aux
    body = TransformedFunction(tracer, func, TupleValue(list(primals)), tracer.objects.new_dict({}))
    returned = body.evaluate(lambda tensor, number: _level(tensor, False), grad=True)
    outputs = leaves_of(tracer, returned)
    results = body.apply("call", outputs, len(outputs))
    if body.draws():
        raise UnsupportedCall("torch.func.vjp of a function that draws random numbers")
    output, aux = _with_aux(tracer, body.take(results, returned), with_aux)
    given = [func, with_aux, TupleValue(list(primals)), Constant(torch.is_grad_enabled())]
    back = tracer.objects.wrap(make_pull_back, None).call(tracer, given, {})
    return TupleValue([output, back, aux] if with_aux.truth(tracer) else [output, back])


def pull_back(
    tracer: Tracer, func: Value, has_aux: Value, primals: Value, is_recorded: Value, cotangents: Value
) -> Value:
    """The gradients that the way back of `vjp` gives."""
    if torch.is_grad_enabled() and not is_recorded.truth(tracer):
        raise UnsupportedCall("the way back of a torch.func.vjp under no_grad, outside of it")
    more = all_tensors(leaves_of(tracer, cotangents), "vjp")
    body, results, _, _ = _applied(tracer, "vjp", func, primals, has_aux, more=more)
    return body.take(results, primals)


def jacobian(tracer: Tracer, name: Value, func: Value, options: Value, args: Value) -> Value:
    """`torch.func.jacrev` or `jacfwd` of a function, called."""
    given = {str(key.concrete()): value for key, value in options.pairs(tracer)}  # type: ignore[attr-defined]
    kind, argnums, has_aux = name.concrete(), given["argnums"], given["has_aux"]
    chosen, wanted = _chosen(tracer, argnums, args)
    more = {key: value.concrete() for key, value in given.items() if key in ("randomness", "chunk_size")}
    body, results, output, aux = _applied(tracer, kind, func, args, has_aux, wanted, **more)
    rows = map_leaves(tracer, output, lambda leaf: body.take(results, chosen))
    return TupleValue([rows, body.take(results, aux)]) if has_aux.truth(tracer) else rows


# -- the parts of a call


def _applied(
    tracer: Tracer, kind: str, func: Value, args: Value, has_aux: Value, wanted: tuple[int, ...] = (),
    kwargs: Value | None = None, **more: Any,
) -> tuple[TransformedFunction, Iterator[TensorValue], Value, Value]:  # fmt: skip
    """The function, the results of its derivative, what it returns, and that besides which is not differentiated."""
    body = TransformedFunction(tracer, func, args, kwargs or tracer.objects.new_dict({}))
    returned = body.evaluate(lambda tensor, number: _level(tensor, number in wanted), grad=True)
    output, aux = _with_aux(tracer, returned, has_aux)
    if kind == "grad" and (not isinstance(output, TensorValue) or output.abstract.dim()):
        raise UnsupportedCall("torch.func.grad of a function that gives no tensor without dimensions")
    outputs = leaves_of(tracer, output)
    results = body.apply(kind, [*outputs, *leaves_of(tracer, aux)], len(outputs), wanted=wanted, **more)
    return body, results, output, aux


def _chosen(tracer: Tracer, argnums: Value, args: Value) -> tuple[Value, tuple[int, ...]]:
    """The arguments that are differentiated, one of them or a tuple, and which operands their tensors are."""
    items = args.values(tracer)  # type: ignore[attr-defined]
    numbers = argnums.concrete()
    tensors = [sum(isinstance(leaf, TensorValue) for leaf in leaves_of(tracer, item)) for item in items]
    ends = list(accumulate(tensors))
    wanted: list[int] = []
    try:
        for number in (numbers,) if isinstance(numbers, int) else numbers:
            all_tensors(leaves_of(tracer, items[number]), "a derivative")
            wanted += range(ends[number] - tensors[number], ends[number])
        chosen = items[numbers] if isinstance(numbers, int) else TupleValue([items[number] for number in numbers])
    except (IndexError, TypeError):
        raise UnsupportedCall(f"a derivative by the arguments {numbers!r}") from None
    return chosen, tuple(wanted)


def _with_aux(tracer: Tracer, returned: Value, has_aux: Value) -> tuple[Value, Value]:
    if not has_aux.truth(tracer):
        return returned, TupleValue([])
    items = returned.values(tracer) if isinstance(returned, TupleValue) else []
    if len(items) != 2:
        raise UnsupportedCall("has_aux=True for a function that gives no pair")
    all_tensors(leaves_of(tracer, items[1]), "has_aux=True")
    return items[0], items[1]


def _level(tensor: TensorValue, wanted: bool) -> AbstractTensor:
    """What a function sees of an argument under a derivative."""
    meta = tensor.abstract.meta
    if wanted and not (meta.dtype.is_floating_point or meta.dtype.is_complex):
        raise UnsupportedCall(f"a derivative by a tensor of {meta.dtype}")
    return AbstractTensor(meta, requires_grad=wanted)


def _example(tracer: Tracer, tensor: TensorValue, dim: int | None) -> AbstractTensor:
    """What a function sees of an argument under vmap. Of no rows too, it sees one."""
    whole = tensor.abstract
    with tracer.mode, torch.no_grad():
        try:
            if dim is None:
                seen = whole
            elif whole.shape[dim]:
                seen = whole.select(dim, 0)
            else:
                seen = whole.new_empty(whole.movedim(dim, 0).shape[1:])
        except IndexError:
            raise UnsupportedCall(f"torch.vmap over dimension {dim} of a {tensor.describe()}") from None
    return AbstractTensor(seen.meta, requires_grad=tensor.abstract.requires_grad)


# -- Python functions that the evaluator inlines: `torch.func.jacrev` and its kin are closures around one known call
#
# In plain code, behind a graph break, they are what they stand for.


def jacobian_of(name: str, func: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...]) -> Any:
    """`torch.func.<name>(func, **options)(*args)`."""
    return getattr(torch.func, name)(func, **options)(*args)


def _closure(name: str, func: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    def wrapper_fn(*args: Any) -> Any:
        return jacobian_of(name, func, options, args)

    return wrapper_fn


def jacrev(
    func: Callable[..., Any], argnums: Any = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Callable[..., Any]:
    """torch.func.jacrev."""
    return _closure("jacrev", func, {"argnums": argnums, "has_aux": has_aux, "chunk_size": chunk_size})


def jacfwd(
    func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Callable[..., Any]:
    """torch.func.jacfwd."""
    return _closure("jacfwd", func, {"argnums": argnums, "has_aux": has_aux, "randomness": randomness})


def _copy(function: Any) -> Any:
    """Another function of the same code: the evaluator knows the public one by its identity, and inlines this one."""
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)


_leaves = TORCH.tree_leaves
_scan = _copy(TORCH.associative_scan) if TORCH.has("associative_scan") else TORCH.associative_scan


def associative_scan(
    combine_fn: Callable[..., Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """torch's associative_scan by slices and steps, which have gradients. "pointwise" stands for a kernel without."""
    if combine_mode == "pointwise" and all(x.device.type != "cpu" for x in _leaves(xs)):
        combine_mode = "generic"
    return _scan(combine_fn, xs, dim, reverse, combine_mode)


def pulled_back(
    func: Callable[..., Any], has_aux: bool, primals: tuple[Any, ...], is_recorded: bool, cotangents: Any
) -> Any:
    """What the second result of `torch.func.vjp(func, *primals)` gives for `cotangents`.

    is_recorded: whether grad mode was on there.
    """
    with torch.set_grad_enabled(is_recorded):
        back = torch.func.vjp(func, *primals, has_aux=has_aux)[1]
    return back(cotangents)


def make_pull_back(
    func: Callable[..., Any], has_aux: bool, primals: tuple[Any, ...], is_recorded: bool
) -> Callable[..., Any]:
    """The second result of `torch.func.vjp(func, *primals)`."""

    def wrapper(cotangents: Any, retain_graph: bool = True, create_graph: Any = None) -> Any:
        return pulled_back(func, has_aux, primals, is_recorded, cotangents)

    return wrapper


TRANSFORMS: dict[Any, Callable[..., Value]] = {
    TORCH.grad: grad,
    TORCH.grad_and_value: grad_and_value,
    TORCH.vmap: vmap,
    TORCH.jvp: jvp,
    TORCH.vjp: vjp,
    torch.func.jacrev: inlined(jacrev),
    torch.func.jacfwd: inlined(jacfwd),
    TORCH.associative_scan: inlined(associative_scan),
    jacobian_of: jacobian,
    pulled_back: pull_back,
}


# -- A function that torch.func transforms: evaluated once, then applied by nodes of the graph.

# -- trees of values: tuples, lists and dicts with other values as leaves, as `torch.utils._pytree` sees them


def leaves_of(tracer: Tracer, tree: Value) -> list[Value]:
    """The leaves in order."""
    found: list[Value] = []
    map_leaves(tracer, tree, lambda leaf: found.append(leaf) or leaf)
    return found


def map_leaves(tracer: Tracer, tree: Value, change: Callable[[Value], Value]) -> Value:
    """A tree of the same form with other leaves."""
    if type(tree) is TupleValue and (tree.cls is tuple or hasattr(tree.cls, "_fields")):
        return TupleValue([map_leaves(tracer, item, change) for item in tree.values(tracer)], cls=tree.cls)
    if type(tree) is ListValue:
        return ListValue([map_leaves(tracer, item, change) for item in tree.values(tracer)])
    if isinstance(tree, DictValue) and tree.cls in (dict, OrderedDict):
        made = DictValue(cls=tree.cls)
        for key, item in tree.pairs(tracer):
            made.set_item(tracer, key, map_leaves(tracer, item, change))
        return made
    TORCH.require("tree_nodes")
    if tree.python_type() in TORCH.tree_nodes:
        raise UnsupportedCall(f"a {tree.describe()} among the arguments or results of a function")
    return change(tree)


def spread(tracer: Tracer, prefix: Value, tree: Value) -> list[Value]:
    """For each leaf of `tree` the leaf of `prefix` above it: a prefix has a leaf where the tree may have more."""
    if isinstance(prefix, Constant):
        return [prefix for _ in leaves_of(tracer, tree)]
    if isinstance(prefix, DictValue) and isinstance(tree, DictValue):
        pairs = tree.pairs(tracer)
        above = [prefix.lookup(tracer, key) for key, _ in pairs]
        if None not in above and len(pairs) == prefix.length(tracer):
            return [leaf for up, (_, item) in zip(above, pairs, strict=True) for leaf in spread(tracer, up, item)]  # type: ignore[arg-type]
    if isinstance(prefix, (TupleValue, ListValue)) and isinstance(tree, (TupleValue, ListValue)):
        above, items = prefix.values(tracer), tree.values(tracer)
        if len(above) == len(items):
            return [leaf for up, item in zip(above, items, strict=True) for leaf in spread(tracer, up, item)]
    raise UnsupportedCall("dimensions of vmap that are not of the form of the arguments")


# -- the function


def with_tensors(tracer: Tracer, tree: Value, tensors: Iterator[TensorValue]) -> Value:
    """A tree of this form with the next of `tensors` for its own."""
    return map_leaves(tracer, tree, lambda leaf: next(tensors) if isinstance(leaf, TensorValue) else leaf)


class _Draws(AbstractMode):
    """Notes whether random numbers are drawn."""

    found = False

    def on_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.found = self.found or self.record(func).effect == "draws"
        return super().on_op(func, args, kwargs)


class TransformedFunction:
    """A function that is transformed: evaluated once, then applied by one node or several."""

    def __init__(self, tracer: Tracer, function: Value, args: Value, kwargs: Value) -> None:
        self.tracer = tracer
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.outer = tracer.graph
        if self.outer.is_body and not (self.outer.is_transformed or self.outer.is_branch):
            raise UnsupportedCall("a function transform inside of a torch.autograd.Function")
        leaves = [*leaves_of(tracer, args), *leaves_of(tracer, kwargs)]
        self.operands = [leaf for leaf in leaves if isinstance(leaf, TensorValue)]
        self.arguments: list[TensorValue] = []

    def evaluate(self, inside: Callable[[TensorValue, int], AbstractTensor], *, grad: bool = False) -> Value:
        """What the function returns. inside: what it sees of each operand. grad: whether grad mode is on there."""
        tracer = self.tracer
        if grad and self.outer.inference.is_on:
            raise UnsupportedCall("a derivative by torch.func in torch.inference_mode")
        known, writes = len(tracer.inputs.tensors), len(tracer.mode.written)
        seen = [inside(operand, number) for number, operand in enumerate(self.operands)]
        self.arguments = [tracer.inputs.tensor_of(each, self.outer.name("argument")) for each in seen]
        given = iter(self.arguments)
        args, kwargs = (with_tensors(tracer, tree, given) for tree in (self.args, self.kwargs))
        named = {str(key.concrete()): value for key, value in kwargs.pairs(tracer)}  # type: ignore[attr-defined]
        self.inside = GraphBuilder(self.outer, is_transformed=True)
        with recording(tracer, self.inside, grad=grad or None):
            returned = self.function.call(tracer, list(args.values(tracer)), named)  # type: ignore[attr-defined]
        written = {id(memory) for memory in tracer.mode.written[writes:]}
        # The memory of all tensors is looked at only where anything was written: programs map thousands of functions.
        outside = itertools.islice(tracer.inputs.tensors.values(), known + len(self.arguments)) if written else ()
        if any(id(tensor.abstract.storage_record) in written for tensor in outside):
            raise UnsupportedCall("a function that is transformed and writes a tensor that it did not make")
        return returned

    def draws(self) -> bool:
        """Whether the function draws random numbers."""
        (graph,), captured = as_functions(self.tracer, self.arguments, (self.inside.nodes, ()))
        given = [tensor.abstract for tensor in (*self.arguments, *captured)]
        functions = custom_functions(functions_of(self.outer.functions, graph), self._size_of)
        with _Draws() as mode:
            run_graph(graph, tuple(given), functions, self._size_of)
        return mode.found

    # -- the node

    def apply(
        self, kind: str, outputs: Sequence[Value], count: int, *, more: Sequence[TensorValue] = (), **options: Any
    ) -> Iterator[TensorValue]:
        """Record the call; its results. outputs: of the function, `count` of them first. more: further operands."""
        tracer, operands = self.tracer, [*self.operands, *more]
        tensors = all_tensors(list(outputs[:count]), f"a function under {kind}, which gives something")
        tensors += [output for output in outputs[count:] if isinstance(output, TensorValue)]
        (graph,), captured = as_functions(tracer, self.arguments, (self.inside.nodes, tensors))
        function = CustomFunction(
            name=self.outer.name(kind),
            operands=len(operands),
            results=0,
            forward=graph,
            transform=Transform(kind=kind, arguments=len(self.operands), outputs=count, **options),  # type: ignore[arg-type]
        )
        known = functions_of(self.outer.functions, graph)
        apply = custom_functions((*known, function), self._size_of)[CUSTOM + function.name]
        held = tuple(tensor.abstract for tensor in captured)
        found = tensors_in(evaluate(tracer, apply, (*[operand.abstract for operand in operands], held), {}))
        made = tuple([WireValue(self.outer.name(function.name), tensor_type(tensor)) for tensor in found])
        function = msgspec.structs.replace(function, results=len(found))
        own = [*[argument.name for argument in self.arguments], *self.inside.defined]
        given = [[tensor.name for tensor in tensors] for tensors in (operands, captured)]
        self.outer.apply_custom(function, *given, made, tracer.line(), own)
        return iter([tracer.inputs.tensor_of(tensor, one.name) for tensor, one in zip(found, made, strict=True)])

    def take(self, results: Iterator[TensorValue], tree: Value) -> Value:
        """A tree of this form with the next results for its tensors."""
        return with_tensors(self.tracer, tree, results)

    def _size_of(self, size: Expr) -> Any:
        """What a size of the function's graph stands for now."""
        return make_size(self.tracer.sizes.env, from_dim(size))
