"""Units with symbolic sizes: compiled once, right at every size, with memory and errors as units over numbers have."""

import ctypes
from itertools import combinations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import Codegen, Options, load
from codegen.cpp.machine_code import compile_sources
from codegen.errors import MalformedLoop, WrongInput
from codegen.runtime.encode import SIZE_OPS, SizeProgram, encode
from codegen.runtime.library import Library
from codegen.runtime.native import executor_source, load_machine, make_native
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.programs import SYMBOLIC_STEPS
from codegen.testing.reference import run_graph, span
from codegen.testing.strategies import SYMBOL_VALUES, at_value, sample_inputs, symbolic_graphs
from stagewire.errors import ExprError
from stagewire.expr import Dim, Expr, evaluate
from stagewire.loop import Kernel, LoopGraph
from stagewire.parser import parse_document
from stagewire.testing.basics import exprs
from stagewire.testing.symbolic import instantiated

FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def steps() -> LoopGraph:
    return parse_document(SYMBOLIC_STEPS).forward


@pytest.mark.parametrize("executor", ["fast", "reference"])
def test_a_program_serves_every_size(directory, executor):
    unit = Codegen().run(parse_document(SYMBOLIC_STEPS)).forward
    run = load(unit, directory, executor=executor)
    for b, s in ((2, 3), (64, 65), (2, 3), (5, 1), (1, 1)):
        x, w = torch.randn(b, s, 8), torch.randn(8, 6)
        top, copied, number = run(x, w)
        product = (2 * x).reshape(b * s, 8) @ w
        torch.testing.assert_close(top, product.reshape(b, -1).amax(1))
        torch.testing.assert_close(copied, product)
        assert number == 2 * b * s


def test_a_program_with_sizes_is_one_native_call(directory):
    run = load(Codegen().run(parse_document(SYMBOLIC_STEPS)).forward, directory)
    assert type(run).__name__ == "builtin_function_or_method"


def test_inputs_of_other_sizes_than_each_other_are_refused(directory):
    text = SYMBOLIC_STEPS.replace("%w: f32[8, 6] = input", "%w: f32[8, 6] = input\n        %y: f32[s] = input")
    run = load(emit(parse_document(text.replace('("x", "w")', '("x", "w", "y")')).forward, Options()), directory)
    with pytest.raises(WrongInput, match=r"'y' is torch.float32 \(4,\)"):
        run(torch.randn(2, 3, 8), torch.randn(8, 6), torch.randn(4))
    with pytest.raises(WrongInput, match="has 2 dimensions"):
        run(torch.randn(2, 3), torch.randn(8, 6), torch.randn(3))
    assert len(run(torch.randn(2, 3, 8), torch.randn(8, 6), torch.randn(3))) == 3


def test_a_symbol_that_no_input_binds_is_a_malformed_loop(directory):
    text = SYMBOLIC_STEPS.replace("f32[b, s, 8] = input", "f32[b, 2*s, 8] = input")
    with pytest.raises(MalformedLoop, match="no input gives the symbol 's' a value"):
        load(emit(parse_document(text).forward, Options()), directory)


def test_equal_kernels_of_different_sizes_are_one_function():
    text = SYMBOLIC_STEPS.replace(
        "%twice: f32[b, s, 8] = kernel", "%twice: f32[b, s, 8] = kernel\n        %more: f32[s] = kernel"
    )
    again = """
        kernel more for i in s {
          section {
            %v: f32 = load %x[i]
            %d: f32 = add(%v, %v)
            store %more[i] = %d
          }
        }
        %sorted ="""
    graph = parse_document(text.replace("\n        %sorted =", again)).forward
    unit = emit(graph, Options())
    assert sum(isinstance(step, Kernel) for step in graph.steps) == len(unit.kernels) + 1
    assert "b*s" not in unit.source


def test_the_source_is_the_same_for_every_hint():
    def source(hint: int) -> str:
        return Codegen().run(parse_document(SYMBOLIC_STEPS.replace("hint=4", f"hint={hint}"))).forward.source

    assert source(4) == source(4096)


@FEW
@given(symbolic_graphs(), st.integers(0, 5), st.sampled_from((1, 1 << 40)), st.sampled_from(("fast", "reference")))
def test_generated_kernels(directory, graph, seed, threshold, executor):
    run = load(emit(graph, Options(parallel_threshold=threshold)), directory, executor=executor)
    for n in (*SYMBOL_VALUES, SYMBOL_VALUES[0]):
        at = at_value(graph, n)
        inputs = sample_inputs(at, seed)
        types = {buffer.name: buffer.type for buffer in at.buffers}
        tensors = [inputs[name].as_strided(types[name].shape, types[name].stride) for name in at.inputs]
        found, expected = run(n, *tensors), run_graph(at, inputs)
        for output, tensor in zip(at.outputs, found, strict=True):
            assert_same(tensor.as_strided((span(types[output.name]),), (1,)), expected[output.name])


@given(exprs(("a", "b")), st.integers(1, 9), st.integers(1, 9))
def test_the_program_of_a_size_gives_its_value(dim: Dim, a: int, b: int) -> None:
    if not isinstance(dim, Expr):
        return
    program = SizeProgram(("a", "b"))
    number = program.value(dim)
    values, meaning = [a, b], {number: name for name, number in SIZE_OPS.items()}
    try:
        for op, left, right in program.instructions:
            values.append(_run(meaning[op], left, right, values))
        expected = evaluate(dim, {"a": a, "b": b})
    except (ExprError, ZeroDivisionError):
        return
    assert values[number] == expected


def _run(name: str, left: int, right: int, values: list[int]) -> int:
    if name == "CONSTANT":
        return left
    x, y = values[left], values[right]
    return {
        "ADD": lambda: x + y, "MULTIPLY": lambda: x * y, "FLOOR_DIVIDE": lambda: x // y, "REMAINDER": lambda: x % y,
        "LEAST": lambda: min(x, y), "GREATEST": lambda: max(x, y),
    }[name]()  # fmt: skip


@pytest.fixture(scope="module")
def place_roots(directory):
    """The executor's own placing of memory."""
    head = executor_source().split("// The native executor:")[0]
    body = """
    extern "C" i64 placed(const i64 *roots, i64 count, i64 *offsets) {
      Sizes s = {};
      s.roots = count;
      return place_roots(&s, roots, offsets);
    }
    """
    (path,) = compile_sources([head + body], directory)
    return ctypes.CDLL(str(path)).placed


lifetimes = st.lists(
    st.tuples(st.sampled_from((0, 8, 64, 400, 4096)), st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=12
)


@given(lifetimes)
def test_what_lives_at_once_lies_apart(place_roots, drawn):
    """At aligned places, and within the size that is told; alone it begins at 0."""
    roots = [(size, start, start + length) for size, start, length in drawn]
    words = [word for root in roots for word in root]
    place_roots.restype = ctypes.c_longlong
    offsets = (ctypes.c_longlong * len(roots))()
    total = place_roots((ctypes.c_longlong * len(words))(*words), ctypes.c_longlong(len(roots)), offsets)
    spans = [(at, at + size) for at, (size, _, _) in zip(offsets, roots, strict=True)]
    assert total == max(end for _, end in spans)
    assert all(at % 64 == 0 for at, _ in spans)
    for (one, (_, start, end)), (other, (_, begin, stop)) in combinations(zip(spans, roots, strict=True), 2):
        assert begin > end or start > stop or one[1] <= other[0] or other[1] <= one[0]
    largest = max(range(len(roots)), key=lambda k: (roots[k][0], -roots[k][1], -k))
    assert offsets[largest] == 0


def test_memory_of_the_largest_sizes_is_kept_and_of_smaller_ones_used(directory):
    run = load(emit(steps(), Options()), directory)
    w = torch.randn(8, 6)
    small, large = torch.randn(2, 3, 8), torch.randn(64, 65, 8)
    first = run(small, w)
    kept = [value.clone() for value in first[:2]]
    run(large, w)
    again = run(small, w)
    for value, copy, other in zip(first, kept, again, strict=False):
        assert torch.equal(value, copy)
        assert torch.equal(other, copy)


def test_units_of_numbers_are_the_instances_of_those_of_symbols(directory):
    inputs = torch.randn(3, 4, 8), torch.randn(8, 6)
    fixed = load(emit(instantiated(steps(), {"b": 3, "s": 4}), Options()), directory)(*inputs)
    free = load(emit(steps(), Options()), directory)(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(fixed[:2], free[:2], strict=True))
    assert fixed[2] == free[2] == 24


def test_the_native_executor_is_loaded_whatever_the_default_device_is(tmp_path):
    with torch.device("meta"):
        assert load_machine(compile_sources([executor_source()], tmp_path)[0]) is not None


def test_a_run_at_sizes_beyond_the_limits_is_given_away(tmp_path):
    """As where machine code is for multiples of a number: other sizes are left to another callable, unlooked at."""
    unit = emit(parse_document(SYMBOLIC_STEPS).forward, Options(target="cpp"))
    paths = compile_sources([unit.source, executor_source()], tmp_path)
    library, machine, seen = Library(paths[0]), load_machine(paths[1]), []
    plain = load(unit, tmp_path, executor="reference")

    def other(*inputs):
        seen.append(inputs)
        return "other"

    encoded = encode(unit, lambda name: ("LAUNCH", (library.address(name),)), ((Expr("s") % 4, 0), (Expr("b"), 6)))
    run = make_native(unit, other, machine, encoded, library, checks=False)
    for b, s, fits in ((2, 4, True), (3, 6, False), (6, 8, True), (7, 4, False), (5, 12, True)):
        x, w = torch.randn(b, s, 8), torch.randn(8, 6)
        found = run(x, w)
        assert (found != "other") is fits
        assert (run([x, w]) != "other") is fits
        if fits:
            for one, expected in zip(found, plain(x, w), strict=True):
                torch.testing.assert_close(one, expected)
        else:
            assert [len(given) for given in seen] == [2, 1]
            ((given,), (*alone,)) = seen.pop(), seen.pop()
            assert all(a is b is c for a, b, c in zip(given, alone, (x, w), strict=True))
