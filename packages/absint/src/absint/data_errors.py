"""Which calls of ATen may raise because of the data of their operands, as data, by op.

    error ::= operands (always | on integers | where an index is no mask | where `check_errors` is true)

What only sizes, dtypes and attributes decide is refused before anything runs (`absint.rules.table`,
`absint.kernels`). On a GPU only factorizations raise: an index out of range stops the device, and a division by zero is
none of its errors.

`tests/test_data_errors.py` holds the table against eager, on torch's operator samples with other data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Literal, NamedTuple

from absint.targets import resolve
from stagewire.graph import Arg, List, Node, Ref, Value
from stagewire.types import TensorType, ValueType

Only = Literal["integers", "positions", "checked"]


class DataError(NamedTuple):
    """operands: names of the arguments whose elements decide whether a call raises.

    only: "integers", where the results are such (a division); "positions", where an operand is no mask; "checked",
    where `check_errors` is true.
    everywhere: on a GPU too.
    """

    operands: tuple[str, ...]
    only: Only | None = None
    everywhere: bool = False


def _table(rows: Mapping[str, str], only: Only | None = None, everywhere: bool = False) -> dict[str, DataError]:
    return {
        f"aten.{name}": DataError(tuple(operands.split()), only, everywhere)
        for names, operands in rows.items()
        for name in names.split()
    }


DATA_ERRORS: Mapping[str, DataError] = {
    **_table({
        "index_select gather scatter scatter_add scatter_reduce index_copy index_add index_reduce index_fill": "index",
        "take put": "index",
        "embedding max_unpool2d max_unpool3d": "indices",
        "_embedding_bag _embedding_bag_forward_only": "indices offsets",
        "masked_scatter": "mask",
        "nll_loss_forward nll_loss2d_forward multi_margin_loss multilabel_margin_loss_forward": "target",
        "binary_cross_entropy histc _histogramdd_bin_edges": "self",
        "histogram": "self bins",
        "linalg_lu_solve": "pivots",
        "lu_unpack": "LU_pivots",
        "searchsorted": "sorter",
        "repeat_interleave": "repeats",
        "segment_reduce": "lengths indices offsets",
    }),
    **_table({"index index_put _unsafe_index _unsafe_index_put": "indices"}, "positions"),
    **_table({"div floor_divide remainder fmod": "other"}, "integers"),
    **_table({
        "cholesky cholesky_inverse linalg_pinv linalg_eig": "self",
        "_linalg_eigh _linalg_svd": "A",
        "linalg_lstsq": "self b",
    }, everywhere=True),
    **_table({
        "linalg_cholesky_ex linalg_ldl_factor_ex": "self",
        "linalg_inv_ex linalg_lu_factor_ex _linalg_solve_ex": "A",
    }, "checked", everywhere=True),
}  # fmt: skip
"""By name without overload."""

_INTEGERS = frozenset(("uint8", "int8", "int16", "int32", "int64"))
_MASKS = frozenset(("bool", "uint8"))


def may_raise(target: str, device: str = "cpu") -> bool:
    """Whether data may make a call on `device` ("cpu", "cuda:0") raise.

    >>> may_raise("aten.take.default"), may_raise("aten.take.default", "cuda:0"), may_raise("aten.cholesky.default")
    (True, False, True)
    """
    error = DATA_ERRORS.get(target.rpartition(".")[0])
    return error is not None and (error.everywhere or device == "cpu")


def deciding_arguments(node: Node, values: Mapping[str, Value]) -> tuple[Arg, ...]:
    """The arguments of a call whose data may make it raise; none where nothing of them can. values: by their names.

    >>> from stagewire.graph import definitions
    >>> from stagewire.parser import parse_graph
    >>> text = "input %x: f32[4]; input %i: i64[2]; %y: f32[2] = aten.index_select.default(%x, 0, %i); return %y"
    >>> graph = parse_graph(text.replace("; ", chr(10)))
    >>> deciding_arguments(graph.nodes[0], definitions(graph))
    (Ref(name='i'),)
    """
    error = DATA_ERRORS.get(node.target.rpartition(".")[0])
    if error is None:
        return ()
    given = dict(zip(_argument_names(node.target), node.args, strict=False)) | node.kwargs
    if error.only == "checked" and not given.get("check_errors"):
        return ()
    if error.only == "integers" and not any(_dtype(value.type) in _INTEGERS for value in node.results):
        return ()
    found = tuple(_present(given.get(name) for name in error.operands))
    if error.only == "positions" and any(_dtype(values[one.name].type) in _MASKS for one in found if type(one) is Ref):
        return ()
    return found


def _present(arguments: Iterator[Arg]) -> Iterator[Arg]:
    for argument in arguments:
        if isinstance(argument, List):
            yield from _present(iter(argument.items))
        elif argument is not None:
            yield argument


def _dtype(type_: ValueType) -> str | None:
    return type_.dtype if isinstance(type_, TensorType) else None


@cache
def _argument_names(target: str) -> tuple[str, ...]:
    return tuple([argument.name for argument in resolve(target)._schema.arguments])  # type: ignore[union-attr]
