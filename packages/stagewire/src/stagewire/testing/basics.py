"""Strategies for names, sizes, types, literals and the user's lines.

Sizes are small (0 to 8), because a researcher's interpreter runs on what these draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from hypothesis import strategies as st

from stagewire import graph
from stagewire.capture import Local, Symbol
from stagewire.errors import ExprError
from stagewire.expr import Dim, Expr, parse_expr
from stagewire.forms import KEYWORDS
from stagewire.graph import Arg, Ref, SourceLine, is_keyword_name
from stagewire.types import DTYPES, DType, NoneType, ScalarType, TensorType, ValueType, contiguous_stride

INTEGERS: st.SearchStrategy[int] = st.one_of(st.integers(-8, 64), st.integers(-(2**63), 2**64 - 1))
FLOATS: st.SearchStrategy[float] = st.floats(allow_nan=False, allow_infinity=False)
TEXT: st.SearchStrategy[str] = st.text(st.characters(codec="utf-8"), max_size=8)

plain_names: st.SearchStrategy[str] = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
"""Names as programs write them."""

names: st.SearchStrategy[str] = st.one_of(
    plain_names, plain_names, st.sampled_from(sorted(KEYWORDS)), TEXT.filter(bool), st.just("a.b"), st.just("0")
)
"""Any name that a value may have: words of the printed form, dots, blanks and quotes among them."""

argument_names: st.SearchStrategy[str] = st.one_of(
    plain_names.filter(is_keyword_name), st.sampled_from(("from", "self", "_", "É2"))
)
"""Of arguments that a call is given by name."""

qualified_names: st.SearchStrategy[str] = st.one_of(
    st.sampled_from(["mylib.add.Tensor", "others.mm.default", "mylib.op.default"]),
    st.from_regex(r"[a-z_]{1,6}(\.[a-z_0-9]{1,6}){1,2}", fullmatch=True),
)
"""Of operators that no vocabulary has."""

source_lines: st.SearchStrategy[SourceLine] = st.builds(
    SourceLine,
    st.sampled_from(["model.py", "/tmp/a b.py", "<string>"]),
    st.integers(0, 10**6),
    st.sampled_from(["", "forward", "Model.<locals>.f"]),
)

dtypes: st.SearchStrategy[DType] = st.sampled_from(DTYPES)
devices: st.SearchStrategy[str] = st.sampled_from(["cpu", "cpu", "cpu", "cuda:0", "meta"])


class Names:
    """A supply of names that are drawn each once."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.taken: set[str] = set()

    def fresh(self) -> str:
        """A name that this supply has not given before."""
        name = self.draw(names)
        if name in self.taken:
            name = f"{name}_{len(self.taken)}"
        self.taken.add(name)
        return name


@st.composite
def symbol_tables(draw: st.DrawFn) -> tuple[Symbol, ...]:
    """Up to three size symbols with a hint within their range."""
    found: list[Symbol] = []
    for number in range(draw(st.sampled_from([0, 0, 0, 1, 2, 3]))):
        hint = draw(st.integers(2, 9))
        upper = draw(st.one_of(st.none(), st.integers(hint, 100)))
        source = draw(st.one_of(st.none(), st.just(Local("n"))))
        found.append(Symbol(f"s{number}", source, hint, draw(st.sampled_from([0, 1, 2, None])), upper))
    return tuple(found)


def exprs(symbols: Sequence[str]) -> st.SearchStrategy[Dim]:
    """Canonical size expressions over `symbols` (an integer where they cancel)."""
    leaves = st.sampled_from([*symbols, *symbols, "1", "2", "3"])

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        operator = st.sampled_from(["+", "-", "*", "//", "%"])
        binary = st.builds(lambda a, op, b: f"({a}) {op} ({b})", inner, operator, inner)
        return st.one_of(
            binary, st.builds(lambda name, a, b: f"{name}({a}, {b})", st.sampled_from(["Min", "Max"]), inner, inner)
        )

    return st.recursive(leaves, larger, max_leaves=4).map(_parsed).filter(lambda dim: dim is not None)


def _parsed(text: str) -> Dim:
    try:
        return parse_expr(text)
    except ExprError:  # a division by what cancels to zero
        return 1


def sizes(symbols: Sequence[str] = ()) -> st.SearchStrategy[Dim]:
    """Sizes that are not negative; symbols, and sums and products of them, if there are any."""
    return _sizes(tuple(symbols))


@lru_cache(maxsize=64)
def _sizes(symbols: tuple[str, ...]) -> st.SearchStrategy[Dim]:
    numbers = st.one_of(st.integers(1, 4), st.sampled_from([0, 1, 8]))
    if not symbols:
        return numbers
    symbolic = st.builds(
        lambda name, factor, rest: parse_expr(f"{name}*{factor} + {rest}"),
        st.sampled_from(list(symbols)),
        st.integers(1, 3),
        st.integers(0, 2),
    )
    return st.one_of(numbers, symbolic)


@st.composite
def tensor_types(
    draw: st.DrawFn,
    symbols: Sequence[str] = (),
    dtypes: st.SearchStrategy[DType] = dtypes,
    devices: st.SearchStrategy[str] = devices,
    most_dims: int = 3,
    row_major: bool = False,
) -> TensorType:
    """Types of any layout: row-major, permuted, expanded or with any strides; row-major alone on request."""
    dtype = draw(dtypes)
    shape = tuple(draw(st.lists(sizes(symbols), max_size=most_dims)))
    layout = (
        "row-major" if row_major else draw(st.sampled_from(["row-major", "row-major", "permuted", "expanded", "any"]))
    )
    differentiable = dtype.startswith(("float", "bfloat", "complex"))
    return TensorType(
        dtype,
        shape,
        _stride(draw, shape, layout),
        draw(st.sampled_from([0, 0, 0, 5])) if layout == "any" else 0,
        draw(devices),
        differentiable and draw(st.booleans()),
    )


_LAYOUTS = ("row-major", "row-major", "permuted", "expanded", "any")


def _stride(draw: st.DrawFn, shape: tuple[Dim, ...], layout: str) -> tuple[Dim, ...]:
    match layout:
        case "permuted":
            order = draw(st.permutations(range(len(shape))))
            inner = contiguous_stride(tuple(shape[dim] for dim in order))
            return tuple(inner[order.index(dim)] for dim in range(len(shape)))
        case "expanded":
            return tuple(draw(st.sampled_from([0, stride])) for stride in contiguous_stride(shape))
        case "any":
            return tuple(draw(st.integers(0, 20)) for _ in shape)
        case _:
            return contiguous_stride(shape)


def value_types(symbols: Sequence[str] = ()) -> st.SearchStrategy[ValueType]:
    """Tensors mostly; Python numbers and nothing."""
    scalars = st.builds(ScalarType, st.sampled_from(["int", "float", "bool", "complex"]))
    tensors = tensor_types(symbols)
    return st.one_of(tensors, tensors, tensors, scalars, st.just(NoneType()))


_SHAPES = ("leaf",) * 5 + ("tuple", "list", "dict", "slice")
_MOST_DEPTH = 2


@st.composite
def args(
    draw: st.DrawFn, references: Sequence[str] = (), symbols: Sequence[str] = (), handles: bool = True, depth: int = 0
) -> Arg:
    """Arguments of every kind; they refer to `references` only and use `symbols` only."""

    def inner() -> Arg:
        return draw(args(references, symbols, handles, depth + 1))

    match "leaf" if depth == _MOST_DEPTH else draw(st.sampled_from(_SHAPES)):
        case "tuple":
            return graph.Tuple(tuple(inner() for _ in range(draw(_COUNTS))))
        case "list":
            return graph.List(tuple(inner() for _ in range(draw(_COUNTS))))
        case "dict":
            return graph.Dict(tuple((draw(TEXT), inner()) for _ in range(draw(_COUNTS))))
        case "slice":
            return graph.Slice(inner(), inner(), inner())
        case _:
            if len(references) > 0 and draw(_EITHER):
                return Ref(draw(st.sampled_from(references)))
            return draw(literals(tuple(symbols), handles))


_COUNTS = st.integers(0, 3)
_EITHER = st.booleans()


@lru_cache(maxsize=64)
def literals(symbols: tuple[str, ...] = (), handles: bool = True) -> st.SearchStrategy[Arg]:
    """Arguments that hold no other and refer to nothing."""
    infinite = st.builds(graph.NonFinite, st.sampled_from(["inf", "-inf", "nan"]))
    parts = st.one_of(FLOATS, infinite)
    word = st.sampled_from(["float32", "strided", "channels_last", "cuda:0"])
    found: list[st.SearchStrategy[Arg]] = [
        st.sampled_from([None, True, False, graph.Ellipsis(), 0, 1]),
        INTEGERS,
        FLOATS,
        TEXT,
        infinite,
        st.builds(graph.Complex, parts, parts),
        st.builds(graph.DTypeArg, dtypes),
        st.builds(graph.DeviceArg, devices),
        st.builds(graph.LayoutArg, word),
        st.builds(graph.MemoryFormatArg, word),
        st.builds(graph.Callee, st.one_of(qualified_names, TEXT)),
    ]
    if handles:
        found.append(st.builds(graph.HandleRef, names))
    if symbols:
        found += [exprs(symbols).filter(lambda dim: isinstance(dim, Expr))] * 2
    return st.one_of(found)
