"""Hypothesis strategies of Grad graphs: programs of ATen calls, written while they run in eager on small tensors.

    program ::= (graph, inputs)      # the types in the graph are those that eager gave

Every op draws its operands among the values made so far, so shapes broadcast, views follow views, dtypes mix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch.utils._pytree import tree_map

from absint.schema import effect_of
from absint.targets import resolve
from absint.wire import to_arg
from primops.interpret import tensor_type
from primops.meanings import DTYPES
from primops.testing.schema_samples import schema_samples, schema_targets
from stagewire.graph import Arg, Graph, Node, Ref, Value
from stagewire.testing.ops import one_of

Draw = Callable[[st.SearchStrategy[Any]], Any]
Program = tuple[Graph, tuple[torch.Tensor, ...]]

SHAPES = ((), (1,), (3,), (2, 3), (1, 3), (3, 1), (2, 1, 3), (2, 3, 4), (4, 2), (0, 3))
DTYPE_NAMES = ("float32", "float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool")
LITERALS = (0, 1, 2, -3, 0.5, -1.25, 1.0, True)


@st.composite
def programs(draw: Draw, max_nodes: int = 10, ops: Sequence[str] | None = None) -> Program:
    """A graph of 1 to `max_nodes` ATen calls, and inputs for it; `ops` names the kinds to draw from (see `KINDS`)."""
    writer = _Writer(draw)
    for _ in range(draw(st.integers(1, 3))):
        writer.add_input()
    for _ in range(draw(st.integers(1, max_nodes))):
        KINDS[draw(st.sampled_from(sorted(ops or KINDS)))](writer)
    return writer.finish()


class _Writer:
    """A graph in the making: the values made so far with their real tensors."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.inputs: list[Value] = []
        self.given: list[torch.Tensor] = []
        self.nodes: list[Node] = []
        self.tensors: dict[str, torch.Tensor] = {}

    def add_input(self) -> None:
        shape, dtype = self.draw(st.sampled_from(SHAPES)), self.draw(st.sampled_from(DTYPE_NAMES))
        generator = torch.Generator().manual_seed(self.draw(st.integers(0, 1 << 16)))
        tensor = (torch.randn(shape, generator=generator, dtype=torch.float64) * 2).to(DTYPES[dtype])
        if len(shape) > 1 and self.draw(st.booleans()):
            tensor = tensor.transpose(0, -1)
        self.take(tensor)

    def take(self, tensor: torch.Tensor) -> Ref:
        """A tensor as a new input."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(Value(name, tensor_type(tensor)))
        self.given.append(tensor)
        self.tensors[name] = tensor
        return Ref(name)

    def pick(self, accept: Callable[[torch.Tensor], bool] = lambda t: True) -> str | None:
        """The name of a value that will do, or None."""
        names = [name for name, tensor in self.tensors.items() if accept(tensor)]
        return self.draw(st.sampled_from(names)) if names else None

    def call(self, target: str, *args: Any, **kwargs: Any) -> bool:
        """Run the op and write it down; False where eager refuses."""
        op = resolve(target)
        try:
            made = op(*[self.real(a) for a in args], **{k: self.real(v) for k, v in kwargs.items()})
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return False
        results = list(made) if isinstance(made, (tuple, list)) else [made]
        if any(t.numel() > 600 or t.dtype not in DTYPES.values() or t.is_complex() for t in results):
            return False
        values = []
        for tensor in results:
            name = f"v{len(self.tensors)}"
            self.tensors[name] = tensor
            values.append(Value(name, tensor_type(tensor)))
        encoded = {key: to_arg(value) for key, value in kwargs.items()}
        arguments = tuple(to_arg(a) for a in args)
        self.nodes.append(Node(target, arguments, encoded, tuple(values), effect=effect_of(target)))
        return True

    def real(self, argument: Any) -> Any:
        if isinstance(argument, Ref):
            return self.tensors[argument.name]
        if isinstance(argument, list):
            return [self.real(item) for item in argument]
        return argument

    def finish(self) -> Program:
        """Outputs: the last value, and some others; those that share memory with an earlier one come as copies."""
        made = [value.name for node in self.nodes for value in node.results]
        chosen = self.draw(st.lists(st.sampled_from(made), max_size=3, unique=True)) if made else []
        outputs: list[Arg] = []
        for name in dict.fromkeys([*chosen, *made[-1:]]):
            self.call("aten.clone.default", Ref(name))
            outputs.append(Ref(self.nodes[-1].results[0].name))
        return Graph(tuple(self.inputs), tuple(self.nodes), tuple(outputs)), tuple(self.given)


# --- kinds of calls ------------------------------------------------------------------------------------------------
def _is_float(t: torch.Tensor) -> bool:
    return t.dtype.is_floating_point


def _refs(*names: str | None) -> tuple[Ref, ...] | None:
    return None if None in names else tuple(Ref(name) for name in names)  # type: ignore[arg-type]


def _unary(writer: _Writer) -> None:
    name = writer.draw(st.sampled_from((
        "neg", "abs", "sign", "relu", "exp", "tanh", "sigmoid", "sqrt", "rsqrt", "floor", "trunc", "erf", "sin", "silu",
        "gelu", "isnan", "logical_not", "bitwise_not", "square", "hardswish", "log1p", "reciprocal", "mish", "clone",
        "zeros_like", "ones_like", "detach", "softplus", "leaky_relu", "elu", "hardtanh",
    )))  # fmt: skip
    operands = _refs(writer.pick())
    if operands:
        writer.call(f"aten.{name}.default", *operands)


def _binary(writer: _Writer) -> None:
    name = writer.draw(
        st.sampled_from(("add", "sub", "mul", "div", "eq", "lt", "ge", "remainder", "fmod", "bitwise_and"))
    )
    operands = _refs(writer.pick(), writer.pick())
    if operands:
        writer.call(f"aten.{name}.Tensor", *operands)


def _extreme(writer: _Writer) -> None:
    name = writer.draw(st.sampled_from(("maximum", "minimum", "logical_and", "logical_or", "atan2")))
    operands = _refs(writer.pick(), writer.pick())
    if operands:
        writer.call(f"aten.{name}.default", *operands)


def _scalar(writer: _Writer) -> None:
    name = writer.draw(st.sampled_from(("add.Tensor", "mul.Tensor", "sub.Tensor", "div.Tensor", "pow.Tensor_Scalar",
                                        "gt.Scalar", "remainder.Scalar", "clamp_min.default")))  # fmt: skip
    operands = _refs(writer.pick())
    if operands:
        writer.call(f"aten.{name}", *operands, writer.draw(st.sampled_from(LITERALS)))


def _where(writer: _Writer) -> None:
    operands = _refs(writer.pick(lambda t: t.dtype == torch.bool), writer.pick(), writer.pick())
    if operands:
        writer.call("aten.where.self", *operands)


def _convert(writer: _Writer) -> None:
    operands = _refs(writer.pick(lambda t: bool(t.double().abs().nan_to_num(1e9).le(100).all())))
    if operands:
        dtype = DTYPES[writer.draw(st.sampled_from(DTYPE_NAMES))]
        writer.call("aten._to_copy.default", *operands, dtype=dtype)


def _view(writer: _Writer) -> None:
    name = writer.pick(lambda t: t.dim() > 0)
    if name is None:
        return
    rank = writer.tensors[name].dim()
    shape = list(writer.tensors[name].shape)
    dim, other = writer.draw(st.integers(-rank, rank - 1)), writer.draw(st.integers(-rank, rank - 1))
    size = shape[dim]
    start, stop = sorted((writer.draw(st.integers(-size, size)), writer.draw(st.integers(-size, size))))
    permutation = writer.draw(st.permutations(range(rank)))
    choice: dict[str, tuple[Any, ...]] = {
        "transpose.int": (dim, other), "permute.default": (list(permutation),), "unsqueeze.default": (dim,),
        "squeeze.dim": (dim,), "slice.Tensor": (dim, start, stop, writer.draw(st.integers(1, 2))),
        "select.int": (dim, writer.draw(st.integers(-size, max(size - 1, 0)))), "view.default": ([-1],),
        "reshape.default": ([-1, 1],), "expand.default": ([2, *shape],), "flip.default": ([dim],),
        "unbind.int": (dim,), "split.Tensor": (1, dim), "diagonal.default": (), "alias.default": (),
        "constant_pad_nd.default": ([1, -1 if size > 1 else 0],), "roll.default": ([1], [dim]), "tril.default": (),
        "repeat.default": ([2, *(1 for _ in shape)],), "unfold.default": (dim, min(2, size), 1),
    }  # fmt: skip
    target = writer.draw(st.sampled_from(sorted(choice)))
    writer.call(f"aten.{target}", Ref(name), *choice[target])


def _reduce(writer: _Writer) -> None:
    name = writer.pick()
    if name is None:
        return
    rank = writer.tensors[name].dim()
    dims = [writer.draw(st.integers(-rank, rank - 1))] if rank else []
    keep = writer.draw(st.booleans())
    choice: dict[str, tuple[Any, ...]] = {
        "sum.dim_IntList": (dims, keep), "mean.dim": (dims, keep), "amax.default": (dims, keep),
        "amin.default": (dims, keep),
        "any.dims": (dims, keep), "all.default": (), "sum.default": (), "var.correction": (dims,), "argmax.default": (),
        "logsumexp.default": (dims, keep), "linalg_vector_norm.default": (2, dims, keep), "prod.default": (),
        "max.dim": (*dims, keep), "cumsum.default": tuple(dims),
    }  # fmt: skip
    target = writer.draw(st.sampled_from(sorted(choice)))
    writer.call(f"aten.{target}", Ref(name), *choice[target])


def _normalise(writer: _Writer) -> None:
    name = writer.pick(lambda t: _is_float(t) and t.dim() > 0 and t.numel() > 0)
    if name is None:
        return
    tensor = writer.tensors[name]
    kind = writer.draw(st.sampled_from(("softmax", "log_softmax", "layer_norm", "batch_norm", "group_norm")))
    if kind in ("softmax", "log_softmax"):
        writer.call(
            f"aten._{kind}.default", Ref(name), writer.draw(st.integers(-tensor.dim(), tensor.dim() - 1)), False
        )
    elif kind == "layer_norm":
        writer.call("aten.native_layer_norm.default", Ref(name), [tensor.shape[-1]], None, None, 1e-5)
    elif kind == "batch_norm" and tensor.dim() > 1:
        writer.call("aten._native_batch_norm_legit.no_stats", Ref(name), None, None, True, 0.1, 1e-3)
    elif kind == "group_norm" and tensor.dim() == 3 and tensor.is_contiguous():
        n, c, rest = tensor.shape
        writer.call("aten.native_group_norm.default", Ref(name), None, None, n, c, rest, 1, 1e-3)


def _join(writer: _Writer) -> None:
    first = writer.pick(lambda t: t.dim() > 0)
    if first is None:
        return
    shape = writer.tensors[first].shape
    second = writer.pick(lambda t: t.shape == shape)
    target = writer.draw(st.sampled_from(("aten.cat.default", "aten.stack.default")))
    writer.call(target, [Ref(first), Ref(second or first)], writer.draw(st.integers(-1, 0)))


def _index(writer: _Writer) -> None:
    name = writer.pick(lambda t: t.dim() > 0 and t.numel() > 0)
    if name is None:
        return
    tensor = writer.tensors[name]
    writer.call("aten.arange.default", writer.draw(st.integers(1, tensor.shape[0])))
    positions = Ref(writer.nodes[-1].results[0].name)
    kind = writer.draw(st.sampled_from(("index", "index_select", "embedding", "index_put", "index_add")))
    if kind == "index":
        writer.call("aten.index.Tensor", Ref(name), [positions])
    elif kind == "index_select":
        writer.call("aten.index_select.default", Ref(name), 0, positions)
    elif kind == "embedding" and tensor.dim() == 2:
        writer.call("aten.embedding.default", Ref(name), positions)
    elif kind == "index_put":
        writer.call("aten.select.int", Ref(name), 0, 0)
        row = Ref(writer.nodes[-1].results[0].name)
        writer.call("aten.index_put.default", Ref(name), [positions], row, writer.draw(st.booleans()))
    elif kind == "index_add":
        writer.call("aten.index_select.default", Ref(name), 0, positions)
        rows = Ref(writer.nodes[-1].results[0].name)
        writer.call("aten.index_add.default", Ref(name), 0, positions, rows)


def _scatter(writer: _Writer) -> None:
    name = writer.pick(lambda t: t.dim() > 0 and t.numel() > 0)
    if name is None:
        return
    writer.call("aten.slice.Tensor", Ref(name), 0, 0, 1)
    piece = Ref(writer.nodes[-1].results[0].name)
    kind = writer.draw(st.sampled_from(("slice_scatter", "select_scatter", "slice_backward", "scatter")))
    shape = list(writer.tensors[name].shape)
    if kind == "slice_scatter":
        writer.call("aten.slice_scatter.default", Ref(name), piece, 0, 0, 1)
    elif kind == "select_scatter":
        writer.call("aten.select.int", Ref(name), 0, 0)
        writer.call("aten.select_scatter.default", Ref(name), Ref(writer.nodes[-1].results[0].name), 0, shape[0] - 1)
    elif kind == "slice_backward":
        writer.call("aten.slice_backward.default", piece, shape, 0, 0, 1, 1)
    else:
        writer.call("aten.zeros_like.default", piece, dtype=torch.int64)
        writer.call("aten.scatter.src", Ref(name), 0, Ref(writer.nodes[-1].results[0].name), piece)


def _multiply(writer: _Writer) -> None:
    """An extern among the prims."""
    first = writer.pick(lambda t: t.dim() == 2 and _is_float(t))
    if first is None:
        return
    tensor = writer.tensors[first]
    second = writer.pick(lambda t: t.dim() == 2 and t.dtype == tensor.dtype and t.shape[0] == tensor.shape[1])
    if second is not None:
        writer.call("aten.mm.default", Ref(first), Ref(second))


def _dropout(writer: _Writer) -> None:
    operands = _refs(writer.pick(_is_float))
    if operands:
        writer.call("aten.native_dropout.default", *operands, writer.draw(st.sampled_from((0.0, 0.3, 1.0))), True)


def _sampled(writer: _Writer) -> None:
    """Whatever has a decomposition, on operands of its own."""
    target = one_of(writer.draw, schema_targets(), len(writer.nodes))  # type: ignore[arg-type]
    sample = writer.draw(st.sampled_from(schema_samples(target)))

    def given(leaf: Any) -> Any:
        return writer.take(leaf.detach()) if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = tree_map(given, sample)
    writer.call(target, *args, **kwargs)


KINDS: dict[str, Callable[[_Writer], None]] = {
    "unary": _unary,
    "binary": _binary,
    "extreme": _extreme,
    "scalar": _scalar,
    "where": _where,
    "convert": _convert,
    "view": _view,
    "reduce": _reduce,
    "normalise": _normalise,
    "join": _join,
    "index": _index,
    "scatter": _scatter,
    "multiply": _multiply,
    "dropout": _dropout,
    "sampled": _sampled,
}
"""The kinds of calls, by name."""
