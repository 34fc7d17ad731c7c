"""Where size symbols are used, and where inputs give them values."""

from __future__ import annotations

from typing import NamedTuple

from stagewire.expr import Expr, symbol
from stagewire.graph import Graph, List, Node, Ref, Value, last_uses
from stagewire.symbols import Place, bind_sizes, size_reader, symbol_places, symbols_of_nodes, symbols_of_type
from stagewire.types import ScalarType, TensorType, contiguous

N, M = symbol("n"), symbol("m")


class Tensor(NamedTuple):
    """As much of a tensor as a reader looks at."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def size(self, dimension: int) -> int:
        return self.sizes[dimension]

    def stride(self, dimension: int) -> int:
        return self.strides[dimension]


def test_a_number_goes_before_a_size_and_a_size_before_a_stride() -> None:
    rows = Value("x", TensorType("float32", (2, M), (N, 1)))
    assert symbol_places([rows]) == {"m": Place(0, "size", 1), "n": Place(0, "stride", 0)}
    columns = Value("y", contiguous("float32", (3, N)))
    assert symbol_places([rows, columns])["n"] == Place(1, "size", 1)
    assert symbol_places([rows, columns, Value("n", ScalarType("int"))])["n"] == Place(2, "number")


def test_an_expression_gives_no_symbol_its_value() -> None:
    assert symbol_places([Value("x", contiguous("float32", (N * 2,)))]) == {}
    assert size_reader([Value("x", contiguous("float32", (4,)))]) is None


def test_values_are_read_off_the_inputs() -> None:
    inputs = [Value("x", TensorType("float32", (2, M), (N, 1))), Value("k", ScalarType("int"))]
    assert bind_sizes(inputs, [Tensor((2, 5), (7, 1)), 3]) == {"k": 3, "m": 5, "n": 7}


def test_symbols_in_use() -> None:
    result = Value("y", contiguous("float32", (M, 3)))
    node = Node("aten.view.default", (Ref("x"), List((N // 2, 3))), {"k": symbol("k")}, (result,))
    assert symbols_of_nodes([node]) == {"n", "m", "k"}
    assert symbols_of_type(TensorType("float32", (2,), (1,), Expr("n"))) == {"n"}
    assert symbols_of_type(ScalarType("int")) == set()


def test_values_are_let_go_of_after_their_last_use() -> None:
    kind = contiguous("float32", (2,))
    values = {name: Value(name, kind) for name in "xyzuv"}
    nodes = (
        Node("f", (Ref("x"),), {}, (values["y"], values["u"])),
        Node("g", (Ref("y"), Ref("x")), {}, (values["z"],)),
        Node("h", (), {"a": Ref("z")}, (values["v"],)),
    )
    assert last_uses(Graph((values["x"],), nodes, (Ref("z"),))) == [("u",), ("y", "x"), ("v",)]
