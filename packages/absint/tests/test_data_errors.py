"""What may raise because of data: every row of the table is an error of eager's, and no call without one is in it."""

from __future__ import annotations

import pytest

from absint.data_errors import DATA_ERRORS, deciding_arguments, may_raise
from absint.targets import resolve
from absint.testing.data_errors import EXAMPLES
from stagewire.graph import definitions
from stagewire.parser import parse_graph


def test_each_row_has_an_example() -> None:
    assert {name.rpartition(".")[0] for name in EXAMPLES} == set(DATA_ERRORS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_eager_refuses_data_and_not_sizes(name: str) -> None:
    call = resolve(name)
    args, kwargs = EXAMPLES[name].arguments(refused=False)
    call(*args, **kwargs)
    args, kwargs = EXAMPLES[name].arguments(refused=True)
    with pytest.raises((IndexError, RuntimeError)):
        call(*args, **kwargs)


@pytest.mark.parametrize("name", EXAMPLES)
def test_operands_are_arguments(name: str) -> None:
    known = {argument.name for argument in resolve(name)._schema.arguments}
    assert known.intersection(DATA_ERRORS[name.rpartition(".")[0]].operands)


@pytest.mark.parametrize(
    ("call", "deciding"),
    [
        ("%y: f32[4] = aten.add.Tensor(%x, %x)", 0),
        ("%y: f32[2] = aten.take.default(%x, %i)", 1),
        ("%y: f32[2] = aten.index.Tensor(%x, [%i])", 1),
        ("%y: f32[4] = aten.index_put.default(%x, [%m], %x)", 0),
        ("%y: f32[4] = aten.div.Tensor(%x, %x)", 0),
        ("%y: i64[2] = aten.floor_divide.default(%i, %i)", 1),
        ("%y: f32[4] = aten.linalg_inv_ex.default(%x)", 0),
        ("%y: f32[4] = aten.linalg_inv_ex.default(%x, check_errors=True)", 1),
    ],
)
def test_what_decides(call: str, deciding: int) -> None:
    graph = parse_graph(f"input %x: f32[4]\ninput %i: i64[2]\ninput %m: b8[4]\n{call}\nreturn %y")
    assert len(deciding_arguments(graph.nodes[0], definitions(graph))) == deciding


def test_on_a_gpu_factorizations_alone_raise() -> None:
    assert may_raise("aten.embedding.default")
    assert not may_raise("aten.embedding.default", "cuda:0")
    assert may_raise("aten._linalg_svd.default", "cuda:0")
    assert not may_raise("aten.add.Tensor")
