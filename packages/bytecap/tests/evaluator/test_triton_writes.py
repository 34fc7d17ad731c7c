"""Which arguments of a Triton kernel are written, as its source says."""

from __future__ import annotations

from typing import Any

import pytest

from bytecap.nodes.triton_writes import python_function, written_parameters

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def stored(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def stored_by_name(x, out):
    tl.store(value=tl.load(x), pointer=out)


@triton.jit
def moved_in_a_loop(x, out, n):
    pointer = out
    for _ in range(n):
        tl.store(pointer, tl.load(x))
        pointer, x = pointer + 1, x + 1


@triton.jit
def chosen(x, y, out, FIRST: tl.constexpr):
    where = x if FIRST else y
    tl.atomic_add(where, tl.load(out))


@triton.jit
def at_loaded_places(index, out):
    tl.store(out + tl.load(index), 1.0)


@triton.jit
def second_is_written(first, second, value):
    second += 1
    tl.store(second, value)
    return first


@triton.jit
def by_a_helper(x, y, z):
    back = second_is_written(x, y, tl.load(z))
    tl.atomic_max(back, 1)


@triton.jit
def by_a_helper_with_names(x, y, z):
    second_is_written(value=tl.load(x), second=y, first=z)


@triton.jit
def blocks(a, b, rows, columns):
    given = tl.make_block_ptr(a, (rows, columns), (columns, 1), (0, 0), (16, 16), (1, 0))
    made = tl.make_tensor_descriptor(b, [rows, columns], [columns, 1], [16, 16])
    for i in tl.static_range(4):
        made.store([i * 16, 0], tl.load(given, boundary_check=(0, 1)).to(tl.float32))
        given = tl.advance(given, (16, 0))


@triton.jit
def by_block_pointer(a, b, rows):
    made = tl.make_block_ptr(a, (rows,), (1,), (0,), (16,), (0,))
    tl.store(made, tl.load(b + tl.arange(0, 16)))


@triton.jit
def by_a_parameter(x, y, FUNCTION: tl.constexpr):
    tl.store(x, FUNCTION(y))


@triton.jit
def reads(pointer):
    return tl.load(pointer)


@triton.jit
def writes(pointer):
    tl.store(pointer, 1)
    return 1


@triton.jit
def calls_itself(x, y, n: tl.constexpr):
    if n:
        calls_itself(x, y, n - 1)


@triton.jit
def in_assembly(x, y):
    tl.store(y, tl.inline_asm_elementwise("", "=r,l", [x], dtype=tl.int32, is_pure=False, pack=1))


@triton.jit
def in_a_tuple(pair, x):
    tl.store(pair[0], tl.load(x))


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (stored, {"out"}),
        (stored_by_name, {"out"}),
        (moved_in_a_loop, {"out"}),
        (chosen, {"x", "y"}),
        (at_loaded_places, {"out"}),
        (by_a_helper, {"x", "y"}),
        (by_a_helper_with_names, {"y"}),
        (blocks, {"b"}),
        (by_block_pointer, {"a"}),
        (by_a_parameter, {"x", "y"}),
        (calls_itself, {"x", "y"}),
        (in_assembly, {"x", "y"}),
        (in_a_tuple, {"pair"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_pointers(kernel: Any, expected: set[str]) -> None:
    numbers = {"n", "BLOCK", "rows", "columns", "FIRST"}
    assert written_parameters(python_function(kernel), {}) - numbers == expected


@pytest.mark.parametrize(("function", "expected"), [(reads, {"x"}), (writes, {"x", "y"}), (triton.cdiv, {"x", "y"})])
def test_functions_that_a_kernel_is_given(function: Any, expected: set[str]) -> None:
    assert written_parameters(python_function(by_a_parameter), {"FUNCTION": function}) >= expected - {"y"}
    assert ("y" in written_parameters(python_function(by_a_parameter), {"FUNCTION": function})) == (function is writes)


def test_what_has_no_source_writes_all() -> None:
    names: dict[str, Any] = {"tl": tl}
    exec("def kernel(x, y):\n    tl.store(y, tl.load(x))", names)
    assert written_parameters(names["kernel"], {}) == {"x", "y"}
